"""Medusa heads as others publish them, written from the description of their layouts, and what they draft
by straight-line code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.core import Batch
from forerun.heads.medusa import MedusaConfig


@dataclass(frozen=True)
class Made:
    """How heads are made; sizes other than the target's fit no block or line.

    Args:
        output: `own` for an output matrix a head, `one` for one of all, `target` for the target's.
        aliased: whether all layers of a head are one block, as Medusa's own code has them.
    """

    hidden: int = 24
    vocab: int = 61
    heads: int = 4
    layers: int = 1
    draft_vocab: int = 61
    bias: bool = True
    output: str = "own"
    aliased: bool = False
    seed: int = 0

    @cached_property
    def ids(self) -> Tensor:
        """The target's tokens of the drafts'."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randperm(self.vocab, generator=generator)[: self.draft_vocab]

    @cached_property
    def blocks(self) -> list[list[tuple[Tensor, Tensor]]]:
        """Weight and bias of each layer of each head."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        size = self.hidden
        heads = []
        for _ in range(self.heads):
            weights = torch.randn(self.layers, size, size, generator=generator) * 1.5 / size**0.5
            biases = torch.randn(self.layers, size, generator=generator) * 0.3 * self.bias
            layers = list(zip(weights, biases, strict=True))
            heads.append([layers[0]] * self.layers if self.aliased else layers)
        return heads

    @cached_property
    def outputs(self) -> Tensor:
        """Output matrices over the whole vocabulary, [count, vocab, hidden]."""
        generator = torch.Generator().manual_seed(self.seed + 2)
        count = {"own": self.heads, "one": 1, "target": 0}[self.output]
        return (
            torch.randn(count, self.vocab, self.hidden, generator=generator) * 3 / self.hidden**0.5
        )


def published(made: Made, layout: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors of heads as `medusa`, `tensorrt`, `vllm`, `vllm-cut` (with no more output
    rows than are drafted) or `speculators` write them."""
    numbered = layout in ("medusa", "tensorrt")
    tensors: dict[str, Tensor] = {}
    for head, layers in enumerate(made.blocks):
        for layer, (weight, bias) in enumerate(layers):
            name = f"{head}.{layer}.linear" if numbered else f"blocks.{head}.layers.{layer}"
            tensors[f"{name}.weight"] = weight
            if made.bias:
                tensors[f"{name}.bias"] = bias
    reduced = made.draft_vocab < made.vocab
    rows = made.ids if reduced and layout in ("vllm-cut", "speculators") else slice(None)
    for head, output in enumerate(made.outputs):
        own = f"{head}.{made.layers}.weight" if numbered else f"lm_heads.{head}.weight"
        tensors["lm_head.weight" if made.output == "one" else own] = output[rows]
    if reduced and layout == "speculators":
        order = made.ids.argsort()
        tensors = {
            key: value[order] if key.startswith("lm_head") else value
            for key, value in tensors.items()
        }
        tensors["d2t"] = made.ids[order] - torch.arange(made.draft_vocab)
        tensors["t2d"] = torch.zeros(made.vocab, dtype=torch.bool)
        tensors["t2d"][made.ids] = True
    elif reduced:
        tensors["token_map"] = made.ids
    return _config(made, layout), tensors


def _config(made: Made, layout: str) -> dict[str, Any]:
    if layout == "medusa":
        return {
            "base_model_name_or_path": "someone/target",
            "medusa_num_heads": made.heads,
            "medusa_num_layers": made.layers,
        }
    if layout == "tensorrt":
        return {
            "architectures": ["MedusaForCausalLM"],
            "num_medusa_heads": made.heads,
            "num_medusa_layers": made.layers,
            "hidden_size": made.hidden,
            "vocab_size": made.vocab,
        }
    prefix = "medusa_" if layout == "speculators" else ""
    reduced = made.draft_vocab < made.vocab
    config = {
        "architectures": ["MedusaModel"],
        f"{prefix}hidden_size": made.hidden,
        f"{prefix}vocab_size": made.vocab,
        "num_heads": made.heads,
        "num_hidden_layers": made.layers,
        "truncated_vocab_size": made.draft_vocab if reduced or not prefix else 0,
        "medusa_fc_bias": made.bias,
        "original_lm_head": made.output != "own",
    }
    return config | ({"speculators_model_type": "medusa"} if prefix else {"model_type": "medusa"})


def write(folder: Path, made: Made, layout: str, form: str = "model.safetensors") -> Path:
    """The same as a directory.

    Args:
        form: the name of the file of weights.
    """
    config, tensors = published(made, layout)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if form.endswith(".pt"):
        torch.save({f"medusa_head.{key}": tensor for key, tensor in tensors.items()}, folder / form)
    else:
        save_file({key: tensor.clone() for key, tensor in tensors.items()}, folder / form)
    return folder


@dataclass
class Reference:
    """What heads draft, in one dtype.

    Args:
        made: the heads.
        target: that lends what they do not bring.
    """

    made: Made
    target: CausalLM

    def rows(self, token_ids: list[int]) -> Tensor:
        """Logits [heads, vocab] after a text of which the target has run all but the last token; -inf for
        tokens that are not drafted."""
        dtype, made = self.target.dtype, self.made
        cache = self.target.new_cache(1, len(token_ids))
        last = self.target.num_layers
        batch = Batch.after(cache, [0], [token_ids[:-1]], hidden_layers=(last,))
        newest = self.target.forward(batch, cache).hidden[last][:, -1:]
        normed = self.target.final_norm(newest)[0, 0]
        rows = torch.full((made.heads, made.vocab), -torch.inf, dtype=dtype)
        for head, layers in enumerate(made.blocks):
            state = normed
            for weight, bias in layers:
                product = weight.to(dtype) @ state + bias.to(dtype)
                state = state + product * product.sigmoid()
            if made.output == "target":
                logits = self.target.lm_head(state[None, None])[0, 0]
            else:
                own = made.outputs[head if made.output == "own" else 0]
                logits = own.to(dtype) @ state
            rows[head, made.ids] = logits[made.ids]
        return rows


VARIANTS: dict[str, Made] = {
    "plain": Made(),
    "layers": Made(layers=3, seed=10),
    "aliased": Made(layers=2, aliased=True, seed=20),
    "no-bias": Made(bias=False, seed=30),
    "one-output": Made(output="one", seed=40),
    "lent": Made(output="target", layers=2, seed=50),
    "few-tokens": Made(draft_vocab=37, seed=60),
    "few-tokens-lent": Made(draft_vocab=37, output="target", heads=2, seed=70),
}


def random_tensors(config: MedusaConfig, spread: float = 0.0) -> dict[str, Tensor]:
    """Tensors by name; with a spread of 0 each head gives the logits of the output matrix for the state."""
    generator = torch.Generator().manual_seed(0)
    deviation = config.hidden_size**-0.5
    tensors = {}
    for name, shape in config.shapes().items():
        scale = deviation if name.startswith("lm_heads") else spread * deviation
        tensors[name] = torch.randn(shape, generator=generator) * scale
        if name.endswith("bias"):
            tensors[name].zero_()
    return tensors
