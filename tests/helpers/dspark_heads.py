"""DSpark and DFlash heads as others publish them, written from the description of their layouts, and what
they draft by straight-line code that knows neither caches nor kernels."""

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
    """How a head is made; sizes other than the target's fit no block or line.

    Args:
        ids: the target's hidden layers that are read, the embedding being 0.
        block: positions that run at once.
        from_anchor: whether the first of them predicts the next token; else it predicts none.
        confidence: what that head reads: `markov`, `hidden`, or none.
        ordered: whether the draft's tokens are in the target's order.
    """

    hidden: int = 24
    vocab: int = 61
    draft_vocab: int = 61
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 10
    inner: int = 34
    layers: int = 2
    ids: tuple[int, ...] = (1, 2, 3)
    block: int = 4
    mask: int = 7
    rank: int = 5
    from_anchor: bool = True
    confidence: str = "markov"
    causal: bool = False
    ordered: bool = True
    own_head: bool = False
    own_embedding: bool = False
    theta: float = 500.0
    eps: float = 1e-5
    seed: int = 0

    @property
    def drafted(self) -> int:
        """Tokens of a draft."""
        return self.block if self.from_anchor else self.block - 1


def tensors_of(made: Made) -> dict[str, Tensor]:
    """Random tensors by the names that DeepSpec writes."""
    generator = torch.Generator().manual_seed(made.seed)
    hidden = made.hidden

    def matrix(rows: int, cols: int, scale: float = 1.5) -> Tensor:
        return scale * torch.randn(rows, cols, generator=generator) / cols**0.5

    def gain(size: int) -> Tensor:
        return 1 + 0.3 * torch.randn(size, generator=generator)

    tensors = {
        "fc.weight": matrix(hidden, len(made.ids) * hidden),
        "hidden_norm.weight": gain(hidden),
        "norm.weight": gain(hidden),
    }
    for index in range(made.layers):
        layer, width = f"layers.{index}", made.heads * made.head_dim
        tensors |= {
            f"{layer}.self_attn.q_proj.weight": matrix(width, hidden),
            f"{layer}.self_attn.k_proj.weight": matrix(made.kv_heads * made.head_dim, hidden),
            f"{layer}.self_attn.v_proj.weight": matrix(made.kv_heads * made.head_dim, hidden),
            f"{layer}.self_attn.o_proj.weight": matrix(hidden, width),
            f"{layer}.self_attn.q_norm.weight": gain(made.head_dim),
            f"{layer}.self_attn.k_norm.weight": gain(made.head_dim),
            f"{layer}.mlp.gate_proj.weight": matrix(made.inner, hidden),
            f"{layer}.mlp.up_proj.weight": matrix(made.inner, hidden),
            f"{layer}.mlp.down_proj.weight": matrix(hidden, made.inner),
            f"{layer}.input_layernorm.weight": gain(hidden),
            f"{layer}.post_attention_layernorm.weight": gain(hidden),
        }
    if made.rank:
        tensors["markov_head.markov_w1.weight"] = matrix(made.vocab, made.rank, 3.0)
        tensors["markov_head.markov_w2.weight"] = matrix(made.draft_vocab, made.rank, 3.0)
    if made.confidence:
        width = hidden + (made.rank if made.confidence == "markov" else 0)
        tensors["confidence_head.proj.weight"] = matrix(1, width)
        tensors["confidence_head.proj.bias"] = torch.tensor([1.0])
    if made.own_head:
        tensors["lm_head.weight"] = matrix(made.draft_vocab, hidden)
    if made.own_embedding:
        tensors["embed_tokens.weight"] = torch.randn(made.vocab, hidden, generator=generator)
    if made.draft_vocab < made.vocab:
        ids = torch.randperm(made.vocab, generator=generator)[: made.draft_vocab]
        ids = ids.sort().values if made.ordered else ids
        tensors["d2t"] = ids - torch.arange(made.draft_vocab)
        tensors["t2d"] = torch.zeros(made.vocab, dtype=torch.bool).index_fill_(0, ids, True)
    return tensors


def published(made: Made, layout: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors of a head as `deepspec`, `speculators` or z-lab's `dflash` write them.

    Of these only DeepSpec's predicts at the anchor unless it says otherwise.
    """
    layers: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": made.hidden,
        "intermediate_size": made.inner,
        "num_hidden_layers": made.layers,
        "num_attention_heads": made.heads,
        "num_key_value_heads": made.kv_heads,
        "head_dim": made.head_dim,
        "rms_norm_eps": made.eps,
        "rope_theta": made.theta,
        "hidden_act": "silu",
        "layer_types": ["full_attention"] * made.layers,
        "max_position_embeddings": 2048,
        "vocab_size": made.vocab,
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
    outputs = [layer - 1 for layer in made.ids]
    markov = {"markov_rank": made.rank, "markov_head_type": "vanilla"}
    confidence = {
        "enable_confidence_head": bool(made.confidence),
        "confidence_head_with_markov": made.confidence == "markov",
    }
    reduced = {"draft_vocab_size": made.draft_vocab} if made.draft_vocab < made.vocab else {}
    own: dict[str, Any] = {"block_size": made.block, **reduced}
    if layout == "dflash":
        nested = {"mask_token_id": made.mask, "target_layer_ids": outputs}
        nested |= {"causal": True} if made.causal else {}
        names = {"architectures": ["DFlashDraftModel"], "dflash_config": nested}
        return {**layers, **own, **names}, tensors_of(made)
    own |= {"mask_token_id": made.mask, **markov, **confidence}
    if layout == "deepspec":
        own |= {} if made.from_anchor else {"sample_from_anchor": False}
        own |= {"architectures": ["Qwen3DSparkModel"], "target_layer_ids": outputs}
        own |= {"causal": True} if made.causal else {}
        return {**layers, **own}, tensors_of(made)
    own |= {"sample_from_anchor": True} if made.from_anchor else {}
    wrapper = {
        "speculators_model_type": "dspark",
        "architectures": ["DSparkSpeculator"],
        "transformer_layer_config": layers,
        "speculators_config": {"algorithm": "dspark"},
        "aux_hidden_state_layer_ids": list(made.ids),
    }
    return {**own, **wrapper}, tensors_of(made)


def write(folder: Path, made: Made, layout: str = "deepspec") -> Path:
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

    def ids(self) -> list[int]:
        """The target's tokens of the drafts'."""
        if "d2t" not in self.tensors:
            return list(range(self.made.vocab))
        return [index + offset for index, offset in enumerate(self.tensors["d2t"].tolist())]

    def states(self, token_ids: list[int]) -> Tensor:
        """The target's states that the head reads, [n, W]."""
        cache = self.target.new_cache(1, len(token_ids))
        layers = tuple(sorted(self.made.ids))
        batch = Batch.after(cache, [0], [token_ids], hidden_layers=layers)
        hidden = self.target.forward(batch, cache).hidden
        return torch.cat([hidden[layer][0] for layer in self.made.ids], dim=-1)

    def block(self, token_ids: list[int]) -> Tensor:
        """Hidden states [drafted, hidden] of the positions that predict, after a text of which the target
        has run all but the last token."""
        made = self.made
        text = functional.linear(self.states(token_ids[:-1]), self.tensors["fc.weight"])
        text = self.norm(text, "hidden_norm")
        hidden = self.embed([token_ids[-1]] + [made.mask] * (made.block - 1))
        for index in range(made.layers):
            layer = f"layers.{index}"
            normed = self.norm(hidden, f"{layer}.input_layernorm")
            hidden = hidden + self.attention(text, normed, f"{layer}.self_attn")
            inner = self.norm(hidden, f"{layer}.post_attention_layernorm")
            gate, up, down = (
                self.tensors[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")
            )
            hidden = hidden + (functional.silu(inner @ gate.T) * (inner @ up.T)) @ down.T
        return self.norm(hidden, "norm")[-made.drafted :]

    def row(self, hidden: Tensor, before: int) -> Tensor:
        """Logits [V] of the target's tokens, of the state that predicts, after a token; -inf for those
        that are not drafted."""
        ids = self.ids()
        if self.made.own_head:
            logits = self.tensors["lm_head.weight"] @ hidden
        else:
            logits = self.target.lm_head(hidden[None, None])[0, 0][ids]
        if self.made.rank:
            first, second = (self.tensors[f"markov_head.markov_w{i}.weight"] for i in (1, 2))
            logits = logits + second @ first[before]
        return logits.new_full((self.made.vocab,), -torch.inf).index_put(
            (torch.tensor(ids),), logits
        )

    def confidence(self, hidden: Tensor, before: int) -> float:
        """The probability that what is drafted after a token is accepted, as the head says."""
        inputs = hidden
        if self.made.confidence == "markov":
            first = self.tensors["markov_head.markov_w1.weight"]
            inputs = torch.cat((hidden, first[before]))
        weight, bias = (self.tensors[f"confidence_head.proj.{part}"] for part in ("weight", "bias"))
        return float((weight[0] @ inputs + bias[0]).sigmoid())

    def embed(self, token_ids: list[int]) -> Tensor:
        if self.made.own_embedding:
            return self.tensors["embed_tokens.weight"][token_ids]
        return self.target.embed(torch.tensor([token_ids]))[0]

    def norm(self, hidden: Tensor, name: str) -> Tensor:
        weight = self.tensors[f"{name}.weight"]
        return hidden / (hidden.square().mean(-1, keepdim=True) + self.made.eps).sqrt() * weight

    def attention(self, text: Tensor, block: Tensor, name: str) -> Tensor:
        """Of a block over the text before it and all of itself."""
        made, count = self.made, len(text)
        both = torch.cat((text, block))

        def heads(inputs: Tensor, kind: str) -> Tensor:
            weight = self.tensors[f"{name}.{kind}_proj.weight"]
            return (inputs @ weight.T).view(len(inputs), -1, made.head_dim).transpose(0, 1)

        query = self.rotated(self.norm(heads(block, "q"), f"{name}.q_norm"), count)
        key = self.rotated(self.norm(heads(both, "k"), f"{name}.k_norm"), 0)
        groups = made.heads // made.kv_heads
        key, value = (each.repeat_interleave(groups, 0) for each in (key, heads(both, "v")))
        scores = query @ key.transpose(1, 2) / math.sqrt(made.head_dim)
        if made.causal:
            later = torch.ones(len(block), len(both), dtype=torch.bool).triu(count + 1)
            scores = scores.masked_fill(later, -torch.inf)
        mixed = (scores.softmax(-1) @ value).transpose(0, 1).reshape(len(block), -1)
        return mixed @ self.tensors[f"{name}.o_proj.weight"].T

    def rotated(self, vectors: Tensor, first: int) -> Tensor:
        half = self.made.head_dim // 2
        exponents = torch.arange(half, dtype=torch.float32) / half
        places = first + torch.arange(vectors.shape[1])
        angles = places[:, None] / self.made.theta**exponents
        cos, sin = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
        low, high = vectors[..., :half], vectors[..., half:]
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


VARIANTS: dict[str, Made] = {
    "plain": Made(),
    "masks-predict": Made(from_anchor=False, block=5, seed=1),
    "no-confidence": Made(confidence="", layers=1, seed=2),
    "confidence-of-states": Made(confidence="hidden", seed=3),
    "no-markov": Made(rank=0, confidence="", seed=4),
    "causal": Made(causal=True, seed=5),
    "few-tokens": Made(draft_vocab=37, seed=6),
    "few-tokens-out-of-order": Made(draft_vocab=37, ordered=False, own_head=True, seed=7),
    "out-of-order-lent": Made(draft_vocab=37, ordered=False, seed=8),
    "own": Made(own_head=True, own_embedding=True, seed=9),
}
