"""Checkpoints converted to GGUF, the format of llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoConfig

from forerun.bench.peers.contract import converted, import_package
from forerun.errors import UnsupportedModelError
from forerun.files import atomic_path
from forerun.models.architecture import Architecture, read_architecture
from forerun.models.layouts import layout_of
from forerun.models.sources import SafetensorsSource

INTERLEAVED = {"llama": True, "qwen3": False}
"""By family, whether llama.cpp rotates neighbours (0, 1), (2, 3) rather than halves of a head."""

QUANTIZED = {"int8": "Q8_0", "int4": "Q4_0"}


def interleave(weight: Tensor, num_heads: int) -> Tensor:
    """Rows of a query or key projection, [heads x head_dim, hidden], in llama.cpp's order.

    transformers rotates element i of a head with element i + head_dim / 2; llama.cpp, in the
    family Llama, with its neighbour. Queries and keys in the same new order have the same products.
    """
    half = weight.shape[0] // num_heads // 2
    split = weight.reshape(num_heads, 2, half, *weight.shape[1:])
    return split.transpose(1, 2).reshape(weight.shape)


def read_shape(checkpoint_dir: Path) -> Architecture:
    """The architecture of a checkpoint that can be written as GGUF.

    Raises:
        UnsupportedModelError: for another family, or scaled rotary embeddings.
    """
    config = AutoConfig.from_pretrained(checkpoint_dir)
    if config.model_type not in INTERLEAVED:
        raise UnsupportedModelError(
            f"cannot write {config.model_type!r} as GGUF; known are {', '.join(INTERLEAVED)}."
        )
    kind = config.rope_parameters["rope_type"]
    if kind != "default":
        raise UnsupportedModelError(f"cannot write rope_type {kind!r} as GGUF; use 'default'.")
    return read_architecture(config)


def export(checkpoint_dir: Path, precision: str, cache_dir: Path) -> Path:
    """The GGUF file of a checkpoint, converted unless it exists.

    Args:
        precision: `fp32` and `bf16` keep norms in fp32; `int8` and `int4` are llama.cpp's own
            recipes Q8_0 and Q4_0, which keep the head of the latter in 6 bits.

    Raises:
        UnsupportedModelError: for an architecture that cannot be written as GGUF.
    """
    path = converted(cache_dir, checkpoint_dir, f"{precision}.gguf")
    if path.exists():
        return path
    if precision in QUANTIZED:
        source = export(checkpoint_dir, "bf16", cache_dir)
        with atomic_path(path) as temporary:
            _quantize(source, temporary, QUANTIZED[precision])
    else:
        with atomic_path(path) as temporary:
            _write(checkpoint_dir, precision, temporary)
    return path


def _quantize(source: Path, target: Path, kind: str) -> None:
    library = import_package("llama_cpp").llama_cpp
    params = library.llama_model_quantize_default_params()
    params.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{kind}")
    if library.llama_model_quantize(str(source).encode(), str(target).encode(), params):
        raise UnsupportedModelError(f"llama.cpp could not quantize {source} to {kind}.")


def _write(checkpoint_dir: Path, precision: str, path: Path) -> None:
    gguf = import_package("gguf")
    shape = read_shape(checkpoint_dir)
    writer = gguf.GGUFWriter(path, shape.family)
    _describe(writer, shape)
    architecture = getattr(gguf.MODEL_ARCH, shape.family.upper())
    names = gguf.get_tensor_name_map(architecture, shape.num_layers)
    source = SafetensorsSource(checkpoint_dir)
    for key in layout_of(shape).published:
        tensor = _arranged(source.read(key), key, shape).float()
        wide = precision == "fp32" or tensor.dim() == 1
        kind = gguf.GGMLQuantizationType.F32 if wide else gguf.GGMLQuantizationType.BF16
        stem, _, ending = key.rpartition(".")
        data = gguf.quants.quantize(tensor.contiguous().numpy(), kind)
        writer.add_tensor(f"{names.get_name(stem)}.{ending}", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _arranged(tensor: Tensor, key: str, shape: Architecture) -> Tensor:
    if INTERLEAVED[shape.family]:
        for name, heads in (("q_proj", shape.num_heads), ("k_proj", shape.num_kv_heads)):
            if f".{name}." in key:
                return interleave(tensor, heads)
    return tensor


def _describe(writer: Any, shape: Architecture) -> None:
    writer.add_context_length(shape.max_context)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    # Prompts are token ids, so llama.cpp needs only the size of the vocabulary.
    writer.add_vocab_size(shape.vocab_size)
    writer.add_tokenizer_model("no_vocab")
