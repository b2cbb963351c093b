"""A model stored as a GGUF file: its config by transformers' names, and its other parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType

from forerun.errors import CheckpointError, UnsupportedModelError, shown
from forerun.files import printable
from forerun.interrupts import never_lost
from forerun.models.architecture import Architecture, native, read_architecture
from forerun.models.checkpoint import Checkpoint
from forerun.models.config import (
    DecoderConfig,
    check_config,
    check_layers,
    one_line,
    sampling_defaults,
)
from forerun.models.gguf.families import FAMILIES, head_dim
from forerun.models.gguf.header import GgufHeader
from forerun.models.gguf.source import (
    LONG_FREQUENCIES,
    GgufSource,
    Rounding,
    frequency_factors,
    long_rope_factors,
    roundings,
)
from forerun.models.gguf.tokenizer import read_gguf_end_tokens, read_gguf_tokenizer, tokenizer_notes
from forerun.models.hub import Location
from forerun.models.layouts import layout_of
from forerun.models.sources import match_keys
from forerun.models.zoo import PACKAGED, is_packaged

# llama.cpp has no defaults for these.
_REQUIRED = (
    *("context_length", "embedding_length", "block_count", "feed_forward_length"),
    *("attention.head_count", "attention.layer_norm_rms_epsilon"),
)
# The names of transformers' configs for llama.cpp's keys.
_NAMES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
}
_SCALING = "rope.scaling."
_ROPE_KINDS = {"none": "default", "linear": "linear", "yarn": "yarn"}
_YARN = {"beta_fast": f"{_SCALING}yarn_beta_fast", "beta_slow": f"{_SCALING}yarn_beta_slow"}
# Keys that need not be read: tensors show the same, no family that is read goes by them, or they belong to
# another scaling.
_HARMLESS = (
    *("vocab_size", "tensor_data_layout", "rope.scale_linear", "attention.layer_norm_epsilon"),
    *("attention.sliding_window", "expert_weights_norm", "expert_feed_forward_length"),
    *(_SCALING + key for key in ("type", "factor", "original_context_length", "finetuned")),
    *_YARN.values(),
)
# Values with which a number that is not read changes nothing, where they are not 0 or 1.
_NEUTRAL = {"attention.causal": (True,)}


def read_gguf_config(header: GgufHeader) -> Any:
    """Read the config of the model in a GGUF file and check its values.

    Raises:
        CheckpointError: for metadata that is missing or wrong.
        UnsupportedModelError: for an architecture or a rotary embedding that forerun does not read.
    """
    path, metadata = header.path, header.metadata
    own = _Keys(_family(path, metadata), metadata)
    known, values = FAMILIES[own.family], _by_name(path, own)
    theta = values.pop("rope_theta", 10000.0)
    values |= {
        "vocab_size": _vocabulary(header),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }
    if own.family != "qwen2":
        values["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
        values["mlp_bias"] = "blk.0.ffn_up.bias" in header.tensors
    check_layers(path, values["num_hidden_layers"])
    try:
        rope = _long_rope(header, own, values) or _rope(path, own)
        values["rope_parameters"] = rope | {"rope_theta": theta}
        values |= known.values(own, values)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError(
            f"{path} lacks a number of {own.family} models, or holds a wrong one ({one_line(error)}); "
            "download it again."
        ) from None
    kind = known.experts if values.get("num_experts") else known.model_type
    config = DecoderConfig.of(path, kind, values)
    check_config(config, path)
    if not native(config):
        raise UnsupportedModelError(
            f"{path} holds a model of architecture {own.family} whose layers or rotary embedding are not "
            "those of its family. Take the original checkpoint in safetensors."
        )
    shape = read_architecture(config)
    share = config.rope_parameters.get("partial_rotary_factor", 1)
    _check_heads(path, own, shape.head_dim, round(share * shape.head_dim))
    _refuse_unread(path, own)
    return config


class _Keys(dict[str, Any]):
    """Numbers of an architecture by their keys without its name, and those that have been asked for."""

    def __init__(self, family: str, metadata: Mapping[str, Any]) -> None:
        self.family, prefix = family, f"{family}."
        super().__init__(
            (k.removeprefix(prefix), v) for k, v in metadata.items() if k.startswith(prefix)
        )
        self.read = {*_NAMES, *_HARMLESS}

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def _refuse_unread(path: Path, own: _Keys) -> None:
    """Refuse a number that may change a forward and that nothing here has read.

    Raises:
        UnsupportedModelError: naming the key.
    """
    for key, value in own.items():
        # 0 leaves no part of a scaling away.
        usual: tuple[Any, ...] = (1,) if key.startswith(_SCALING) else (0, 1, "", [])
        if key not in own.read and value not in _NEUTRAL.get(key, usual):
            raise UnsupportedModelError(
                f"{path} sets {printable(own.family)}.{printable(key)} to {shown(value)}, which is not "
                "read. Take the original checkpoint in safetensors."
            )


def _by_name(path: Path, own: _Keys) -> dict[str, Any]:
    """Values of the config by transformers' names."""
    needed = (*_REQUIRED, *(["expert_used_count"] if own.get("expert_count") else []))
    if missing := [key for key in needed if key not in own]:
        raise CheckpointError(f"{path} lacks {own.family}.{missing[0]}; download it again.")
    return {name: own[key] for key, name in _NAMES.items() if key in own}


def _check_heads(path: Path, own: _Keys, head_dim: int, turned: int) -> None:
    """Refuse a model that rotates another part of a head than its family, or has longer values than keys."""
    rotated, size = own.get("rope.dimension_count"), own.get("attention.value_length")
    if rotated not in (None, turned):
        raise UnsupportedModelError(
            f"{path} rotates {shown(rotated)} of the {head_dim} values of a head; {turned} are "
            "read of its family. Take the original checkpoint in safetensors."
        )
    if size not in (None, head_dim):
        raise UnsupportedModelError(
            f"{path} has heads of {head_dim} numbers a key and {shown(size)} a value, which is not read. "
            "Take the original checkpoint in safetensors."
        )


def _family(path: Path, metadata: Mapping[str, Any]) -> str:
    """The architecture by llama.cpp's name.

    Raises:
        UnsupportedModelError: for an architecture that is not read.
    """
    family = metadata.get("general.architecture")
    if not isinstance(family, str) or family not in FAMILIES:
        raise UnsupportedModelError(
            f"{path} holds a model of architecture {shown(family)}; GGUF is read of "
            f"{', '.join(FAMILIES)}. Take the original checkpoint in safetensors."
        )
    experts = metadata.get(f"{family}.expert_count")
    if not (FAMILIES[family].experts if experts else FAMILIES[family].model_type):
        raise UnsupportedModelError(
            f"{path} holds a model of architecture {family} with {shown(experts or 0)} experts, which "
            "is not read from GGUF; take the original checkpoint in safetensors."
        )
    return family


def _vocabulary(header: GgufHeader) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(
            f"{header.path} has no token_embd.weight; it holds no complete model. Download it again."
        )
    return embedding.shape[0]


def _rope(path: Path, own: _Keys) -> dict[str, Any]:
    """Kind and numbers of the rotary embedding, without theta, with llama.cpp's defaults.

    Raises:
        UnsupportedModelError: for a kind that is not read.
    """
    kind = own.get(f"{_SCALING}type", "linear")
    if not isinstance(kind, str) or kind not in _ROPE_KINDS:
        raise UnsupportedModelError(
            f"{path} scales its rotary embedding by {shown(kind)}; "
            f"{', '.join(_ROPE_KINDS)} are read. Take the original checkpoint in safetensors."
        )
    factor = own.get(f"{_SCALING}factor", own.get("rope.scale_linear", 0.0))
    if kind == "none" or factor in (0, 1):
        return {"rope_type": "default"}
    rope = {"rope_type": _ROPE_KINDS[kind], "factor": factor}
    if kind == "yarn":
        original = own.get(f"{_SCALING}original_context_length", own["context_length"])
        rope["original_max_position_embeddings"] = original
        rope |= {name: own[key] for name, key in _YARN.items() if key in own}
    return rope


def _long_rope(header: GgufHeader, own: _Keys, values: Mapping[str, Any]) -> dict[str, Any]:
    """Phi-3's rotary embedding for long texts; {} for files without its factors."""
    if header.tensors.keys().isdisjoint(LONG_FREQUENCIES.values()):
        return {}
    factors = long_rope_factors(header, own.get("rope.dimension_count", head_dim(values)))
    original = f"{_SCALING}original_context_length"
    if original not in own:
        raise CheckpointError(f"{header.path} lacks {own.family}.{original}; download it again.")
    return {
        "rope_type": "longrope",
        "original_max_position_embeddings": own[original],
        **factors,
    }


_FLOATS = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
_RECOMMENDED = "general.sampling."
_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


# A quantization in the name of a file: its bits, or a type that is none.
_NAMED = re.compile(r"(?<![a-z0-9])(?:i?q([2-8])_|(bf16|f16|f32)(?![a-z0-9]))", re.IGNORECASE)


def _other_types(name: str, types: set[str]) -> Iterator[str]:
    """A note on a file whose name says another quantization than its matrices have."""
    found = _NAMED.search(name)
    if found is None:
        return
    # llama.cpp stores matrices whose rows are no blocks of 256 with a bit more.
    bits = {found[1], str(int(found[1] or 0) + 1)}
    here = {re.sub(r"\D*(\d+).*", r"\1", kind) for kind in types}
    if not (bits & here if found[1] else found[2].upper() in types):
        stored = ", ".join(sorted(types))
        yield f"The name of {printable(name)} says {found[0].strip('_')}, its matrices are {stored}."


@dataclass(frozen=True, eq=False)
class GgufCheckpoint(Checkpoint):
    """A model in a GGUF file.

    Attributes:
        header: header of the file.
    """

    header: GgufHeader

    @classmethod
    def read(cls, name: str, location: Location, file: Path) -> GgufCheckpoint:
        """Read the header of a file, or of any part of a split one.

        Raises:
            CheckpointError, UnsupportedModelError: for a file that cannot be read.
        """
        header = GgufHeader.read(file)
        return cls(name, location, read_gguf_config(header), header)

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        return read_gguf_end_tokens(self.header, self.config.vocab_size)

    @cached_property
    def sampling_defaults(self) -> dict[str, Any]:
        # The authors' advice on a packaged model stands in no field of its file.
        packaged = PACKAGED[self.name].sampling if is_packaged(self.name) else {}
        values = {
            name: self.header.metadata.get(_RECOMMENDED + key) for name, key in _SAMPLING.items()
        }
        # Rounded, because they are stored in 32 bits: 0.8, not 0.800000012.
        short = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in values.items()}
        return {**packaged, **sampling_defaults(short, str(self.header.path))}

    @property
    def has_tokenizer(self) -> bool:
        return any(key.startswith("tokenizer.") for key in self.header.metadata)

    @cached_property
    @never_lost()
    def tokenizer(self) -> Any:
        return read_gguf_tokenizer(self.header)

    @cached_property
    def held(self) -> list[Rounding]:
        if not self.quantized:
            return []
        layout, source = layout_of(self.architecture), self.source()
        match_keys(source, layout)
        return roundings(source, layout)

    @property
    def notes(self) -> tuple[str, ...]:
        used = {_RECOMMENDED + key for key in _SAMPLING.values()}
        unused = [k for k in self.header.metadata if k.startswith(_RECOMMENDED) and k not in used]
        said = f"Recommended sampling that is not used: {printable(', '.join(unused))}."
        notes = (*tokenizer_notes(self.header), *([said] if unused else []))
        return (*notes, *_other_types(self.header.path.name, {kind.name for kind in self.kinds}))

    def _architecture(self) -> Architecture:
        shape = read_architecture(self.config)
        return replace(
            shape,
            # The weights of norms are stored as they are multiplied with.
            norm_offset=0.0,
            output_bias="blk.0.attn_output.bias" in self.header.tensors,
            frequency_factors=frequency_factors(self.header, shape.head_dim),
        )

    def source(self) -> GgufSource:
        return GgufSource(self.header, layout_of(self.architecture), self.architecture)

    @property
    def stored_dtype(self) -> torch.dtype | None:
        return _FLOATS.get(next(iter(kinds))) if len(kinds := self.kinds) == 1 else None

    @cached_property
    def kinds(self) -> frozenset[GGMLQuantizationType]:
        """Types of the matrices."""
        tensors = self.header.tensors.values()
        return frozenset(tensor.kind for tensor in tensors if len(tensor.shape) > 1)

    @property
    def quantized(self) -> bool:  # type: ignore[override]  # an attribute of the base class
        # Matrices in fp16 run in bf16.
        return not self.kinds <= {GGMLQuantizationType.F32, GGMLQuantizationType.BF16}
