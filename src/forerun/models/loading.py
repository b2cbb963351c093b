"""Loading a model, its config and its tokenizer, from a directory or from the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.errors import CheckpointError, UnsupportedModelError
from forerun.models.architecture import native, read_architecture
from forerun.models.checkpoint import SafetensorsSource, Source, TensorSource, read_weights
from forerun.models.cpu import CpuModel
from forerun.models.decoder import Decoder
from forerun.models.gpt2 import GPT2
from forerun.models.hf import load_adapter
from forerun.models.hub import read_json, resolve
from forerun.models.layouts import layout_of
from forerun.models.placement import Storage, resolve_device, resolve_storage

# What tokenizers are made of: fast ones, BPE and WordPiece, SentencePiece, tiktoken.
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")


def load_model(
    path_or_hub_id: str | Path,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    backend: str = "auto",
    name: str | None = None,
) -> CausalLM:
    """Load a language model: Llama, Mistral, Qwen2, Qwen3 and GPT-2 on our own decoders, on a CPU with
    compiled kernels; any other that transformers knows and whose cache can be cropped on the adapter.

    Args:
        path_or_hub_id: a checkpoint's directory, or an id such as `Qwen/Qwen3-0.6B`.
        revision: branch, tag or commit on the hub.
        dtype: `fp32`, `bf16`, `fp16`, `fp64`, `int8` and `int4` (on the kernels), or `auto`: the
            checkpoint's (for float16 on a CPU: float32).
        device: `cpu`, `cuda`, `mps`, or `auto`: the fastest that is there.
        backend: `kernels`, `torch`, or `auto`: the kernels where they can run the model.
        name: how messages call the model; by default what it was loaded from.

    Raises:
        CheckpointError: for missing, corrupt or inconsistent files.
        UnsupportedModelError: for an architecture that cannot be run speculatively.
        ConfigError: for a dtype or device that does not exist or is not there.
    """
    place = resolve_device(device)
    directory = resolve(path_or_hub_id, revision, weights=True)
    config = _read_config(directory)
    name = name or _default_name(path_or_hub_id)
    if not native(config):
        storage = resolve_storage(dtype, config.dtype, place, ours=False, backend=backend)
        return load_adapter(directory, config, storage.dtype, place, name)
    _refuse_quantized(config, name)
    source = SafetensorsSource(directory)
    stored = config.dtype or source.slice(source.keys()[0], 0, 0, 1).dtype
    storage = resolve_storage(dtype, stored, place, backend=backend)
    return build(config, source, storage, place, name)


def model_from_tensors(
    config: Any,
    tensors: Mapping[str, Tensor],
    *,
    dtype: str = "auto",
    device: str = "cpu",
    backend: str = "torch",
    name: str = "model",
) -> CausalLM:
    """A model on our own decoders from published tensors in memory, such as a `state_dict`.

    The arguments are those of `load_model`.

    Raises:
        CheckpointError: for missing, unexpected or misshapen tensors.
        UnsupportedModelError: for a config that none of our decoders runs.
    """
    if not native(config):
        raise UnsupportedModelError(
            f"{config.model_type} has no decoder of its own here; "
            "save the model and load it with load_model."
        )
    place = resolve_device(device)
    stored = next(iter(tensors.values())).dtype if tensors else None
    source = TensorSource(tensors, name)
    storage = resolve_storage(dtype, stored, place, backend=backend)
    return build(config, source, storage, place, name)


def build(
    config: Any,
    source: Source,
    storage: Storage,
    device: torch.device,
    name: str,
) -> CausalLM:
    """One of our decoders from a config and its published tensors.

    Raises:
        CheckpointError: for missing, unexpected or misshapen tensors.
    """
    shape = read_architecture(config)
    if storage.backend == "kernels":
        return CpuModel(shape, source, storage.precision, name)
    weights = read_weights(source, layout_of(shape), storage.dtype, device)
    family = GPT2 if shape.family == "gpt2" else Decoder
    return family(shape, weights, name)


def load_config(path_or_hub_id: str | Path, *, revision: str | None = None) -> Any:
    """The config of a checkpoint, as transformers reads it.

    Raises:
        CheckpointError: when it is missing, no JSON, or wrong.
        UnsupportedModelError: for a model type that transformers does not know.
    """
    return _read_config(resolve(path_or_hub_id, revision, weights=False))


def load_tokenizer(path_or_hub_id: str | Path, *, revision: str | None = None) -> Any:
    """The tokenizer of a checkpoint, as transformers makes it.

    Raises:
        CheckpointError: when its files are missing or broken.
    """
    from transformers import AutoTokenizer

    directory = resolve(path_or_hub_id, revision, weights=False)
    # Without any, transformers makes an empty tokenizer of some model types.
    if not any(path for pattern in TOKENIZER_FILES for path in directory.glob(pattern)):
        raise CheckpointError(
            f"{directory} has no tokenizer ({', '.join(TOKENIZER_FILES)}); "
            "save the model's tokenizer there."
        )
    try:
        return AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    except Exception as error:
        # The tokenizers library raises bare Exceptions for broken files.
        raise CheckpointError(
            f"{directory} has no tokenizer that transformers can read ({_first_line(error)}); "
            "it needs tokenizer.json or the files of a slow tokenizer."
        ) from error


def eos_token_ids(path_or_hub_id: str | Path, *, revision: str | None = None) -> frozenset[int]:
    """The tokens that end a text: those of generation_config.json, else those of config.json.

    Raises:
        CheckpointError: when config.json is missing, a file is no JSON, or an id is none.
    """
    directory = resolve(path_or_hub_id, revision, weights=False)
    config = _read_config(directory).get_text_config()
    path = directory / "generation_config.json"
    value = read_json(path).get("eos_token_id") if path.is_file() else None
    if value is None or value == []:
        path, value = directory / "config.json", getattr(config, "eos_token_id", None)
    return _as_ids(value, config.vocab_size, path)


def _read_config(directory: Path) -> Any:
    from transformers import AutoConfig

    content = read_json(directory / "config.json")
    kind = content.get("model_type")
    if kind is None:
        raise CheckpointError(f"{directory / 'config.json'} names no model_type; add it.")
    try:
        return AutoConfig.from_pretrained(directory, trust_remote_code=False)
    except Exception as error:
        # Configs of transformers check themselves and raise whatever their checks raise.
        if "does not recognize this architecture" in str(error):
            raise UnsupportedModelError(
                f"transformers does not know the model type {kind!r} of {directory}; "
                "update transformers."
            ) from error
        raise CheckpointError(
            f"{directory / 'config.json'} is wrong ({_first_line(error)}); download it again."
        ) from error


def _as_ids(value: Any, vocab_size: int, path: Path) -> frozenset[int]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise CheckpointError(
                f"{path}: eos_token_id is {value!r}; it must be a token id from 0 to "
                f"{vocab_size - 1}, or a list of them."
            )
    return frozenset(ids)


def _refuse_quantized(config: Any, name: str) -> None:
    settings = getattr(config, "quantization_config", None)
    if settings is not None:
        method = settings.get("quant_method") if isinstance(settings, dict) else settings
        raise UnsupportedModelError(
            f"{name} is quantized ({method}), which is not read; load the original checkpoint."
        )


def _default_name(path_or_hub_id: str | Path) -> str:
    path = Path(path_or_hub_id).expanduser()
    return path.resolve().name if path.is_dir() else str(path_or_hub_id)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
