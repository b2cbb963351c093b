"""The configuration files of a checkpoint, all checked before anything is allocated."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forerun.errors import (
    CheckpointError,
    ConfigError,
    ForerunError,
    UnknownNameError,
    UnsupportedModelError,
    shown,
)
from forerun.files import is_regular, parse_json, read_text
from forerun.models.architecture import ACTIVATIONS, native, read_architecture
from forerun.models.families import ROPE_TYPES, sliding_window
from forerun.options import check
from forerun.params import RECOMMENDED, SamplingParams

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"

MOST_BYTES = 16 * 2**20
# transformers copies what it reads, level by level.
DEEPEST = 32
# transformers makes one list entry and module per layer before it looks at the weights.
MOST_LAYERS = 1024

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
_SIZES = (
    *("vocab_size", "hidden_size", "n_embd", "d_model"),
    *("num_attention_heads", "n_head", "n_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "n_inner", "max_position_embeddings", "n_positions", "n_ctx"),
    "moe_intermediate_size",
)
_EXPERTS = ("num_experts", "num_local_experts", "num_experts_per_tok")
_EPSILONS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon")
_FACTORS = (
    *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
    *("attention_multiplier", "embedding_multiplier", "residual_multiplier"),
    *("logits_scaling", "logit_scale"),
)
_FLAGS = (
    *("tie_word_embeddings", "attention_bias", "mlp_bias", "use_bias", "use_qkv_bias"),
    *("use_parallel_residual", "norm_topk_prob"),
)
# Entries of every decoder's config, under the names that transformers uses for all families.
_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
# Names, the type of their values, and bounds.
_NUMBERS: tuple[tuple[tuple[str, ...], type, dict[str, Any]], ...] = (
    (_LAYERS, int, {"ge": 1, "le": MOST_LAYERS}),
    (_SIZES, int, {"ge": 1, "le": 2**30}),
    (_EXPERTS, int, {"ge": 0, "le": 2**16}),
    (_EPSILONS, float, {"ge": 0.0, "le": 1.0}),
    (_FACTORS, float, {"gt": 0.0, "le": 1e30}),
    (("rope_theta",), float, {"gt": 0.0, "le": 1e30}),
    (_FLAGS, bool, {}),
)
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
_ROPE_NUMBERS = (
    *("rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor"),
    *("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor"),
)


class DecoderConfig(SimpleNamespace):
    """Config of a decoder of Llama's kind, with the names and defaults of transformers' configs.

    The configs themselves bring in most of transformers and torch's compiler, which takes seconds.

    Args:
        model_type: one of `LLAMA_LIKE`.
        values: the values that differ from the defaults.
    """

    is_heterogeneous = False

    def __init__(self, model_type: str, **values: Any) -> None:
        rope = {"rope_type": "default", "rope_theta": values.pop("rope_theta", 10000.0)}
        given = values.pop("rope_parameters", None) or {}
        by_kind = any(isinstance(value, dict) for value in given.values())
        super().__init__(
            model_type=model_type,
            **{"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
            | {"attention_bias": False, "mlp_bias": False, "sliding_window": None}
            | {"layer_types": ["full_attention"] * values["num_hidden_layers"]}
            | ({"head_dim": 128} if model_type == "qwen3" else {})
            | {"num_key_value_heads": values["num_attention_heads"]}
            | values
            | {"rope_parameters": given if by_kind else rope | given},
        )

    @classmethod
    def of(cls, where: Path | str, model_type: str, values: Mapping[str, Any]) -> DecoderConfig:
        """Make a config of values from a file.

        Raises:
            CheckpointError: for a number of layers that no model has, and a hidden size that does not
                divide among the heads, naming the file.
        """
        check_layers(where, values.get("num_hidden_layers"))
        with _in_file(where):
            config = cls(model_type, **values)
            _check_numbers(partial(getattr, config))
            if not hasattr(config, "head_dim") and config.hidden_size % config.num_attention_heads:
                raise CheckpointError(
                    f"hidden_size is {config.hidden_size}; without head_dim it must be a multiple of "
                    f"num_attention_heads, {config.num_attention_heads}."
                )
        return config

    def get_text_config(self) -> DecoderConfig:
        """Itself, which is the config of a text model."""
        return self


def check_layers(where: Path | str, layers: object) -> None:
    """Refuse a number of layers that no model has, before anything is made for each of them.

    Raises:
        CheckpointError: naming the file.
    """
    with _in_file(where):
        check("num_hidden_layers", layers, int, ge=1, le=MOST_LAYERS)


def as_transformers(config: Any) -> Any:
    """A copy of a config, as a config of transformers."""
    if not isinstance(config, DecoderConfig):
        return copy.deepcopy(config)
    from transformers import AutoConfig

    return AutoConfig.for_model(**vars(config))


def read_config(place: Path) -> Any:
    """Read the config of a checkpoint through transformers and check its values.

    Args:
        place: the checkpoint's directory, or the file.

    Raises:
        CheckpointError: if it is missing, not JSON, or wrong.
        UnsupportedModelError: for a model type, an activation or a rotary embedding that
            transformers does not know.
    """
    from transformers import AutoConfig

    path = place if place.is_file() else place / CONFIG
    content = read_object(path)
    kind = content.get("model_type")
    if not isinstance(kind, str):
        raise CheckpointError(f"{path} names no model_type; add it.")
    with _in_file(path):
        _check_numbers(content.get)
        if isinstance(content.get("text_config"), dict):
            _check_numbers(content["text_config"].get)
    try:
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
    except Exception as error:
        # Configs of transformers check themselves and may raise any exception.
        if "does not recognize this architecture" in str(error):
            raise UnsupportedModelError(
                f"transformers does not know the model type {kind!r} of {place}; "
                "update transformers."
            ) from error
        raise CheckpointError(f"{path} is wrong ({one_line(error)}); download it again.") from error
    check_config(config, path)
    return config


def check_config(config: Any, path: Path | str) -> None:
    """Refuse a config of transformers with values that no model has.

    Args:
        config: the config.
        path: file that it was read from, for messages.

    Raises:
        CheckpointError, UnsupportedModelError: naming the file, the value and what is allowed.
    """
    try:
        text = config.get_text_config()
    except ValueError as error:
        raise UnsupportedModelError(
            f"{path} describes several models ({one_line(error)})."
        ) from error
    with _in_file(path):
        for layer in layer_configs(text):
            _check_numbers(partial(getattr, layer))
            for name in _REQUIRED:
                if hasattr(layer, name) and getattr(layer, name) is None:
                    raise CheckpointError(f"{name} is null; it must be an integer.")
        _check_rope(getattr(text, "rope_parameters", None) or {})
        for name in _ACTIVATIONS:
            value = getattr(text, name, None)
            if value is not None and not (isinstance(value, str) and value in ACTIVATIONS):
                _check_activation(name, value)
        if native(config):
            read_architecture(config)
        else:
            sliding_window(text)


def _check_activation(name: str, value: object) -> None:
    """Refuse an activation that transformers does not know either."""
    from transformers.activations import ACT2FN

    if not isinstance(value, str) or value not in ACT2FN:
        raise UnknownNameError(name, str(value), ACT2FN)


@contextmanager
def _in_file(path: Path | str) -> Iterator[None]:
    """Turn errors about values into errors about the file that holds them."""
    try:
        yield
    except UnknownNameError as error:
        raise UnsupportedModelError(f"{path}: {error}") from None
    except (CheckpointError, ConfigError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def layer_configs(text: Any) -> list[Any]:
    """One config per layer if layers differ in size, otherwise only the model's."""
    return list(text.per_layer_config) if text.is_heterogeneous else [text]


def read_object(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file of a checkpoint.

    Raises:
        CheckpointError: if it is missing, not a regular file, or holds no JSON object.
    """
    # Opening a pipe would wait for its writer.
    if not is_regular(path):
        missing = f"{path.parent} has no {path.name}; give the directory of a complete checkpoint."
        there = path.is_symlink() or path.exists()
        raise CheckpointError(
            f"{path} is not a regular file; download it again." if there else missing
        )
    text = read_text(path, "file", CheckpointError, most_bytes=MOST_BYTES)
    content = parse_json(text, str(path), CheckpointError)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object; download it again.")
    if _is_deep(content):
        raise CheckpointError(f"{path} is nested deeper than {DEEPEST} levels; download it again.")
    return content


def _is_deep(entry: Any, levels: int = DEEPEST) -> bool:
    """True if objects and lists are nested deeper than so many levels."""
    inside = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ()
    return any(levels == 1 or _is_deep(value, levels - 1) for value in inside)


def read_end_tokens(directory: Path, config: Any) -> frozenset[int]:
    """The tokens that end a text, from generation_config.json or else from config.json.

    Raises:
        CheckpointError: if the file is not JSON, or an id lies outside the vocabulary.
    """
    text = config.get_text_config()
    path = directory / GENERATION_CONFIG
    value = read_object(path).get("eos_token_id") if path.exists() else None
    if value is None or value == []:
        path, value = directory / CONFIG, getattr(text, "eos_token_id", None)
    return check_end_tokens(value, f"{path}: eos_token_id", text.vocab_size)


def check_end_tokens(value: Any, where: str, vocab_size: int) -> frozenset[int]:
    """The tokens that end a text as a set, from one token, a list or None; `where` names them.

    Raises:
        CheckpointError: for values that are not tokens of the vocabulary.
    """
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise CheckpointError(
                f"{where} is {shown(token)}; it must be a token id from 0 to {vocab_size - 1}."
            )
    return frozenset(ids)


def one_line(error: Exception) -> str:
    """Another library's message on one line, cut after 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


def _check_numbers(get: Callable[[str, None], Any]) -> None:
    """Check the values that `get` returns by name; None is checked elsewhere."""
    for names, kind, bounds in _NUMBERS:
        for name in names:
            value = get(name, None)
            # Some models have a size for each layer.
            sizes = value if isinstance(value, list) and name == "intermediate_size" else [value]
            for size in sizes:
                if size is not None:
                    check(name, size, kind, **bounds)


def _check_rope(parameters: Any) -> None:
    """Check the parameters of the rotary embedding, which are the model's or given by kind of layer."""
    if not isinstance(parameters, dict):
        raise CheckpointError(f"rope_parameters is {shown(parameters)}; it must be an object.")
    for value in parameters.values():
        if isinstance(value, dict):
            _check_rope(value)
    for name in _ROPE_NUMBERS:
        if parameters.get(name) is not None:
            check(name, parameters[name], float, gt=0.0, le=1e30)
    kind = parameters.get("rope_type", "default")
    if kind in ROPE_TYPES:
        return
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    known = {"axial", *ROPE_TYPES, *ROPE_INIT_FUNCTIONS}
    if not isinstance(kind, str) or kind not in known:
        raise UnknownNameError("rope_type", str(kind), known)


def read_sampling_defaults(directory: Path) -> dict[str, Any]:
    """The sampling parameters that a checkpoint recommends, by name; {} if it recommends none.

    `do_sample: false` is temperature 0, whatever the others say.

    Raises:
        CheckpointError: if the file is not JSON, or for a value that is not allowed.
    """
    path = directory / GENERATION_CONFIG
    if not path.exists():
        return {}
    return sampling_defaults(read_object(path), str(path))


def sampling_defaults(values: dict[str, Any], where: str) -> dict[str, Any]:
    """The recommended sampling parameters in settings that use transformers' names.

    Args:
        values: the settings.
        where: source of the settings, for messages.

    Raises:
        CheckpointError: for a value that is not allowed.
    """
    sample = values.get("do_sample")
    if sample is not None and not isinstance(sample, bool):
        raise CheckpointError(
            f"{where}: do_sample is {shown(sample)}; it must be true, false or null."
        )
    chosen = {name: values[name] for name in RECOMMENDED if values.get(name) is not None}
    try:
        params = SamplingParams(**chosen)
    except ForerunError as error:
        raise CheckpointError(f"{where}: {error}") from None
    found: dict[str, Any] = {name: getattr(params, name) for name in chosen}
    if sample is False:
        # A penalty also changes what is most likely.
        found = {name: found[name] for name in found if name == "repetition_penalty"}
        found["temperature"] = 0.0
    return found
