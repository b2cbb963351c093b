"""EAGLE heads as others publish them, written from the description of their layouts, and what they draft
by straight-line code that knows neither caches nor kernels."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from forerun.contracts import CausalLM
from forerun.core import Batch


@dataclass(frozen=True)
class Made:
    """How a head is made; sizes other than the target's fit no block or line."""

    hidden: int = 24
    target_hidden: int = 24
    vocab: int = 61
    draft_vocab: int = 37
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 10
    inner: int = 34
    layers: int = 1
    ids: tuple[int, ...] = (0, 2, 3)
    theta: float = 500.0
    eps: float = 1e-5
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    own_embedding: bool = True
    own_head: bool = True
    regression: bool = False
    bias: bool = False
    qwen3: bool = False
    seed: int = 0


def tensors_of(made: Made) -> dict[str, Tensor]:
    """Random tensors by the names that vLLM reads."""
    generator = torch.Generator().manual_seed(made.seed)
    hidden, fused = made.hidden, len(made.ids) * made.target_hidden

    def matrix(rows: int, cols: int) -> Tensor:
        return 1.5 * torch.randn(rows, cols, generator=generator) / cols**0.5

    def gain(size: int) -> Tensor:
        return 1 + 0.3 * torch.randn(size, generator=generator)

    tensors = {"fc.weight": matrix(hidden, fused)}
    if made.regression:
        tensors = {"fc.weight": matrix(hidden, hidden + made.target_hidden)}
    if made.bias:
        tensors["fc.bias"] = 0.3 * torch.randn(hidden, generator=generator)
    for index in range(made.layers):
        width = hidden if index or made.regression else 2 * hidden
        layer = f"layers.{index}"
        tensors |= {
            f"{layer}.self_attn.q_proj.weight": matrix(made.heads * made.head_dim, width),
            f"{layer}.self_attn.k_proj.weight": matrix(made.kv_heads * made.head_dim, width),
            f"{layer}.self_attn.v_proj.weight": matrix(made.kv_heads * made.head_dim, width),
            f"{layer}.self_attn.o_proj.weight": matrix(hidden, made.heads * made.head_dim),
            f"{layer}.mlp.gate_proj.weight": matrix(made.inner, hidden),
            f"{layer}.mlp.up_proj.weight": matrix(made.inner, hidden),
            f"{layer}.mlp.down_proj.weight": matrix(hidden, made.inner),
            f"{layer}.post_attention_layernorm.weight": gain(hidden),
        }
        if index or not made.regression:
            tensors[f"{layer}.input_layernorm.weight"] = gain(hidden)
        if made.qwen3:
            tensors[f"{layer}.self_attn.q_norm.weight"] = gain(made.head_dim)
            tensors[f"{layer}.self_attn.k_norm.weight"] = gain(made.head_dim)
    if made.own_embedding:
        tensors["embed_tokens.weight"] = torch.randn(made.vocab, hidden, generator=generator)
    if made.regression:
        return tensors
    tensors |= {"layers.0.hidden_norm.weight": gain(hidden), "norm.weight": gain(hidden)}
    if made.own_head:
        tensors["lm_head.weight"] = 2 * matrix(made.draft_vocab, hidden)
    if made.norm_before_fc:
        tensors["input_norm.weight"] = gain(fused)
    if made.fc_norm:
        tensors |= {f"fc_norm.{i}.weight": gain(made.target_hidden) for i in range(len(made.ids))}
    if made.draft_vocab < made.vocab:
        ids = torch.randperm(made.vocab, generator=generator)[: made.draft_vocab].sort().values
        tensors["d2t"] = ids - torch.arange(made.draft_vocab)
        tensors["t2d"] = torch.zeros(made.vocab, dtype=torch.bool)
        tensors["t2d"][ids] = True
    return tensors


def _layer_config(made: Made) -> dict[str, Any]:
    return {
        "model_type": "qwen3" if made.qwen3 else "llama",
        "hidden_size": made.hidden,
        "intermediate_size": made.inner,
        "num_hidden_layers": made.layers,
        "num_attention_heads": made.heads,
        "num_key_value_heads": made.kv_heads,
        "head_dim": made.head_dim,
        "rms_norm_eps": made.eps,
        "rope_theta": made.theta,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "vocab_size": made.vocab,
    }


def _flags(made: Made) -> dict[str, bool]:
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    return {name: getattr(made, name) for name in names}


def published(made: Made, layout: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors of a head as `specforge`, `vllm`, `speculators`, `modelopt` or `eagle1`
    write them."""
    tensors, config = tensors_of(made), _layer_config(made)
    native = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": made.draft_vocab}
    sizes = {"target_hidden_size": made.target_hidden, "tie_word_embeddings": False}
    ids = "eagle_aux_hidden_state_layer_ids"
    set_flags = {name: True for name, is_set in _flags(made).items() if is_set}
    if layout == "specforge":
        tensors = {key.replace("layers.0.", "midlayer."): value for key, value in tensors.items()}
        config |= {**native, **sizes, **set_flags, ids: list(made.ids)}
    elif layout == "vllm":
        config |= {**native, **sizes, **set_flags, ids: list(made.ids)}
    elif layout == "modelopt":
        # The output of each layer, not its input.
        own = {ids: [layer - 1 for layer in made.ids], "use_aux_hidden_state": True, **set_flags}
        config |= {**native, **sizes, "eagle_config": own}
    elif layout == "speculators":
        if not made.norm_before_residual:
            set_flags["norm_before_residual"] = False
        else:
            # What it leaves out is true there.
            del set_flags["norm_before_residual"]
        config = {
            "speculators_model_type": "eagle3",
            "speculators_version": "0.9.0",
            "architectures": ["Eagle3Speculator"],
            "draft_vocab_size": made.draft_vocab,
            "target_hidden_size": made.target_hidden,
            "transformer_layer_config": config,
            "speculators_config": {"algorithm": "eagle3"},
            ids: list(made.ids),
            **set_flags,
        }
    else:
        config |= {"architectures": ["LlamaForCausalLM"], "bias": made.bias}
    return config, tensors


def write(folder: Path, made: Made, layout: str) -> Path:
    """The same as a directory."""
    config, tensors = published(made, layout)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


@dataclass
class Reference:
    """What a head drafts, in one dtype, everything computed anew for each token.

    Args:
        made: the head.
        target: that lends what the head does not bring.
    """

    made: Made
    target: CausalLM

    def __post_init__(self) -> None:
        self.tensors = {
            key: tensor.to(self.target.dtype) if tensor.is_floating_point() else tensor
            for key, tensor in tensors_of(self.made).items()
        }

    def states(self, token_ids: list[int]) -> Tensor:
        """The target's states that the head reads, [n, W]."""
        made, cache = self.made, self.target.new_cache(1, len(token_ids))
        layers = (self.target.num_layers,) if made.regression else made.ids
        batch = Batch.after(cache, [0], [token_ids], hidden_layers=tuple(sorted(set(layers))))
        hidden = self.target.forward(batch, cache).hidden
        joined = torch.cat([hidden[layer][0] for layer in layers], dim=-1)
        return self.target.final_norm(joined[None])[0] if made.regression else joined

    def chain(self, token_ids: list[int], drafted: list[int]) -> Tensor:
        """Logits [len(drafted) + 1, Vd] after a text of which the target has run all but the last
        token, and after each drafted token."""
        made = self.made
        hidden = self.fuse(self.states(token_ids[:-1]))
        tokens, rows = token_ids[1:], []
        for step in range(len(drafted) + 1):
            out = self.layers(self.embed(tokens), hidden)
            carried, logits = self.read(out[-1])
            rows.append(logits)
            if step < len(drafted):
                hidden = torch.cat((hidden, carried[None]))
                tokens = [*tokens, drafted[step]]
        assert len(rows) == len(drafted) + 1
        assert made.draft_vocab >= rows[0].shape[-1] or made.regression or not made.own_head
        return torch.stack(rows)

    def ids(self) -> list[int]:
        """The target's tokens of the drafts'."""
        if "d2t" not in self.tensors:
            return list(range(self.made.vocab))
        return [index + offset for index, offset in enumerate(self.tensors["d2t"].tolist())]

    def greedy(self, token_ids: list[int], length: int) -> list[int]:
        """The most likely chain."""
        drafted: list[int] = []
        while len(drafted) < length:
            drafted.append(self.ids()[int(self.chain(token_ids, drafted)[-1].argmax())])
        return drafted

    def fuse(self, states: Tensor) -> Tensor:
        made, tensors = self.made, self.tensors
        if made.regression:
            return states
        if made.norm_before_fc:
            states = self.norm(states, "input_norm")
        if made.fc_norm:
            size = made.target_hidden
            parts = [states[:, i * size : (i + 1) * size] for i in range(len(made.ids))]
            states = torch.cat([self.norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)], 1)
        return functional.linear(states, tensors["fc.weight"], tensors.get("fc.bias"))

    def embed(self, token_ids: list[int]) -> Tensor:
        if self.made.own_embedding:
            return self.tensors["embed_tokens.weight"][token_ids]
        return self.target.embed(torch.tensor([token_ids]))[0]

    def read(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """What the next step reads, and logits."""
        if self.made.regression:
            return out, self.target.lm_head(out[None, None])[0, 0]
        normed = self.norm(out, "norm")
        carried = normed if self.made.norm_output else out
        if self.made.own_head:
            return carried, self.tensors["lm_head.weight"] @ normed
        return carried, self.target.lm_head(normed[None, None])[0, 0][self.ids()]

    def norm(self, hidden: Tensor, name: str) -> Tensor:
        weight = self.tensors[f"{name}.weight"]
        return hidden / (hidden.square().mean(-1, keepdim=True) + self.made.eps).sqrt() * weight

    def layers(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        made, tensors = self.made, self.tensors
        if made.regression:
            joined = torch.cat((embeddings, hidden), 1)
            normed = residual = functional.linear(
                joined, tensors["fc.weight"], tensors.get("fc.bias")
            )
        else:
            own = self.norm(hidden, "layers.0.hidden_norm")
            residual = own if made.norm_before_residual else hidden
            normed = torch.cat((self.norm(embeddings, "layers.0.input_layernorm"), own), 1)
        for index in range(made.layers):
            if index:
                normed = self.norm(residual, f"layers.{index}.input_layernorm")
            residual = residual + self.attention(normed, f"layers.{index}.self_attn")
            inner = self.norm(residual, f"layers.{index}.post_attention_layernorm")
            gate, up, down = (
                tensors[f"layers.{index}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")
            )
            residual = residual + (functional.silu(inner @ gate.T) * (inner @ up.T)) @ down.T
        return residual

    def attention(self, normed: Tensor, name: str) -> Tensor:
        made, count = self.made, len(normed)

        def heads(kind: str) -> Tensor:
            weight = self.tensors[f"{name}.{kind}_proj.weight"]
            return (normed @ weight.T).view(count, -1, made.head_dim).transpose(0, 1)

        query, key = heads("q"), heads("k")
        if made.qwen3:
            query, key = self.norm(query, f"{name}.q_norm"), self.norm(key, f"{name}.k_norm")
        query, key = self.rotated(query), self.rotated(key)
        groups = made.heads // made.kv_heads
        key, value = (each.repeat_interleave(groups, 0) for each in (key, heads("v")))
        scores = query @ key.transpose(1, 2) / math.sqrt(made.head_dim)
        later = torch.ones(count, count, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ value
        return mixed.transpose(0, 1).reshape(count, -1) @ self.tensors[f"{name}.o_proj.weight"].T

    def rotated(self, vectors: Tensor) -> Tensor:
        half = self.made.head_dim // 2
        exponents = torch.arange(half, dtype=torch.float32) / half
        angles = torch.arange(vectors.shape[1])[:, None] / self.made.theta**exponents
        cos, sin = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
        low, high = vectors[..., :half], vectors[..., half:]
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


VARIANTS: dict[str, Made] = {
    "plain": Made(),
    "norm_before_residual": Made(norm_before_residual=True, seed=1),
    "norm_before_fc": Made(norm_before_fc=True, seed=2),
    "fc_norm": Made(fc_norm=True, ids=(1, 3), seed=3),
    "norm_output": Made(norm_output=True, seed=4),
    "eagle3.1": Made(fc_norm=True, norm_output=True, norm_before_residual=True, seed=5),
    "layers": Made(layers=3, seed=6),
    "lent": Made(own_embedding=False, own_head=False, seed=7),
    "wider": Made(hidden=28, head_dim=14, bias=True, seed=8),
    "all-tokens": Made(draft_vocab=61, seed=9),
    "qwen3": Made(qwen3=True, seed=11),
    "regression": Made(regression=True, draft_vocab=61, own_embedding=False, bias=True, seed=10),
}
