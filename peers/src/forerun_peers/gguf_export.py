"""Checkpoints converted to GGUF, the format of llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoConfig

from forerun.errors import UnsupportedModelError
from forerun.files import atomic_path
from forerun.models.architecture import Architecture, read_architecture
from forerun.models.layouts import layout_of
from forerun.models.sources import SafetensorsSource
from forerun_peers.conversion import converted, import_package

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
        wide = precision == "fp32"
        with atomic_path(path) as temporary:
            write_gguf(
                checkpoint_dir,
                temporary,
                lambda _, tensor: "F32" if wide or tensor.dim() == 1 else "BF16",
            )
    return path


def _quantize(source: Path, target: Path, kind: str) -> None:
    library = import_package("llama_cpp").llama_cpp
    params = library.llama_model_quantize_default_params()
    params.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{kind}")
    if library.llama_model_quantize(str(source).encode(), str(target).encode(), params):
        raise UnsupportedModelError(f"llama.cpp could not quantize {source} to {kind}.")


def write_gguf(
    checkpoint_dir: Path,
    path: Path,
    kind_of: Callable[[str, Tensor], str],
    with_tokenizer: bool = False,
) -> None:
    """Write a checkpoint as a GGUF file.

    Args:
        checkpoint_dir: as transformers saves it.
        path: of the file.
        kind_of: the name of the format of each tensor, by its published name.
        with_tokenizer: a byte-level BPE that splits words as Qwen2 does.

    Raises:
        UnsupportedModelError: for an architecture that cannot be written.
    """
    gguf = import_package("gguf")
    shape = read_shape(checkpoint_dir)
    writer = gguf.GGUFWriter(path, shape.family)
    _describe(writer, shape)
    if with_tokenizer:
        _add_tokenizer(writer, checkpoint_dir)
    else:
        # Prompts are token ids, so llama.cpp needs only the size of the vocabulary.
        writer.add_tokenizer_model("no_vocab")
    architecture = getattr(gguf.MODEL_ARCH, shape.family.upper())
    names = gguf.get_tensor_name_map(architecture, shape.num_layers)
    source = SafetensorsSource(checkpoint_dir)
    for key in layout_of(shape).published:
        tensor = _arranged(source.read(key), key, shape).float().contiguous()
        kind = gguf.GGMLQuantizationType[kind_of(key, tensor)]
        stem, _, ending = key.rpartition(".")
        data = gguf.quants.quantize(tensor.numpy(), kind)
        writer.add_tensor(f"{names.get_name(stem)}.{ending}", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, checkpoint_dir: Path) -> None:
    content = json.loads((checkpoint_dir / "tokenizer.json").read_text("utf-8"))
    ids = content["model"]["vocab"]
    special = {token["id"] for token in content["added_tokens"] if token["special"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(sorted(ids, key=ids.get))
    # 3 is a control token, 1 any other.
    writer.add_token_types([3 if place in special else 1 for place in range(len(ids))])
    writer.add_token_merges([" ".join(pair) for pair in content["model"]["merges"]])
    writer.add_add_bos_token(False)
    settings = json.loads((checkpoint_dir / "generation_config.json").read_text("utf-8"))
    writer.add_eos_token_id(settings["eos_token_id"])
    writer.add_pad_token_id(settings["pad_token_id"])


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
    writer.add_vocab_size(shape.vocab_size)
