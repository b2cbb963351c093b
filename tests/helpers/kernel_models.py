"""Tiny random models of every family on the CPU kernels, in sizes that fit no block, line or group."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun import _native
from forerun.models.architecture import Architecture, read_architecture
from forerun.models.cpu import CpuModel, KernelChoice
from forerun.models.layouts import layout_of
from forerun.models.sources import TensorSource
from tests.helpers.forwards import run

needs_kernels = pytest.mark.skipif(not _native.AVAILABLE, reason=_native.REASON)
PRECISIONS = ("fp32", "bf16", "int8", "int4")
ORDER = ("portable", "avx2", "avx512", "amx")
LEVELS = ORDER[: ORDER.index(_native.kernels.level()) + 1] if _native.AVAILABLE else ORDER
CONTEXT = 256


def _sizes(hidden: int, inner: int, heads: int, shared: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "num_hidden_layers": 3,
        "max_position_embeddings": CONTEXT,
        **more,
    }


_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
# Groups of 1, 2 and 3 query heads to a key head.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _sizes(40, 72, 4, 4, vocab_size=61)),
    "llama-biases": (
        "llama",
        _sizes(
            36, 50, 6, 2, vocab_size=47, attention_bias=True, mlp_bias=True, rope_parameters=_LLAMA3
        ),
    ),
    "mistral": ("mistral", _sizes(50, 70, 4, 2, vocab_size=33, head_dim=18, sliding_window=5)),
    # A window that no block of places holds.
    "mistral-wide": (
        "mistral",
        _sizes(33, 31, 3, 1, vocab_size=50, head_dim=24, sliding_window=21),
    ),
    "qwen2": (
        "qwen2",
        _sizes(
            60, 90, 6, 2, vocab_size=64, use_sliding_window=True, sliding_window=3,
            max_window_layers=1,
        ),
    ),
    "qwen3": ("qwen3", _sizes(150, 200, 3, 1, vocab_size=77, head_dim=34, tie_word_embeddings=True)),
    # Norms on both sides, capped scores and logits, a scaled embedding, windows and rotations by layer.
    "gemma2": (
        "gemma2",
        _sizes(
            48, 80, 4, 2, vocab_size=53, head_dim=22, sliding_window=7, attn_logit_softcapping=3.0,
        ),
    ),
    "gemma3": (
        "gemma3_text",
        _sizes(
            44, 64, 4, 1, vocab_size=71, head_dim=26, sliding_window=9, query_pre_attn_scalar=30,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
    ),
    "mixtral": (
        "mixtral",
        _sizes(40, 48, 4, 2, vocab_size=59, num_local_experts=5, num_experts_per_tok=2),
    ),
    "gpt_oss": (
        "gpt_oss",
        _sizes(
            52, 44, 6, 2, vocab_size=57, head_dim=20, sliding_window=7, num_local_experts=6,
            num_experts_per_tok=3,
        ),
    ),
    "gpt2": (
        "gpt2",
        {"vocab_size": 41, "n_positions": CONTEXT, "n_embd": 33, "n_layer": 3, "n_head": 3},
    ),
}  # fmt: skip


@cache
def architecture(name: str) -> Architecture:
    from transformers import AutoConfig

    kind, values = SHAPES[name]
    return read_architecture(AutoConfig.for_model(kind, **values))


@cache
def weights(name: str, seed: int = 0) -> dict[str, Tensor]:
    """Published tensors of a model whose attention looks at many tokens, none of them alike."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for key, shape in sorted(layout_of(architecture(name)).published.items()):
        values = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            values = 0.3 * values + float("norm.weight" in key or "ln_" in key)
        else:
            values *= 1.5 / min(shape) ** 0.5
        tensors[key] = values
    return tensors


@cache
def model(
    name: str,
    precision: str = "fp32",
    level: str = "",
    threads: int = 1,
    seed: int = 0,
    group: int = 0,
) -> CpuModel:
    source = TensorSource(weights(name, seed), name)
    choice = KernelChoice(level, group, threads)
    return CpuModel(architecture(name), source, precision, name, choice)


@cache
def long_kernel_model() -> CpuModel:
    """The first of them with room for more tokens than are counted at once."""
    from transformers import AutoConfig

    kind, values = SHAPES["llama"]
    shape = read_architecture(
        AutoConfig.for_model(kind, **{**values, "max_position_embeddings": 4 * CONTEXT})
    )
    source = TensorSource(weights("llama"), "llama")
    return CpuModel(shape, source, "fp32", "long", KernelChoice(threads=2))


def plain(one: CpuModel, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Logits [n, V] and all hidden states [n, layers + 1, H] of a text, run token by token."""
    layers = tuple(range(one.num_layers + 1))
    cache, logits, hidden = one.new_cache(1, max(len(ids), 1)), [], []
    for token in ids:
        out = run(one, cache, [[token]], hidden_layers=layers)
        assert out.logits is not None
        logits.append(out.logits[0, 0])
        hidden.append(torch.stack([out.hidden[layer][0, 0] for layer in layers]))
    return torch.stack(logits), torch.stack(hidden)


def last_of(one: CpuModel, ids: list[int]) -> Tensor:
    """Logits [V] behind a text, run token by token."""
    return plain(one, ids)[0][-1]


def check_levels(precision: str, found: list[Tensor]) -> None:
    """What LEVELS give is the same, bit for bit. AMX adds bf16, of most caches too, in another order."""
    amx = LEVELS.index("amx") if "amx" in LEVELS and precision != "fp32" else len(LEVELS)
    assert all(torch.equal(one, found[0]) for one in found[:amx])
    for one in found[amx:]:
        assert (one - found[0]).norm() < 0.02 * found[0].norm()
