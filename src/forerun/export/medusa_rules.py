"""What is wrong with Medusa's heads (arXiv 2401.10774), by their own layout; no engine's table is kept."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from forerun.errors import CheckpointError
from forerun.export.common_rules import value_rules
from forerun.export.findings import EVERY, Finding, error, note, wrong
from forerun.export.head import PublishedHead
from forerun.export.sizes import Shapes, whole
from forerun.export.target import Target

_LINEAR = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")


def medusa_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    """Everything that is wrong with Medusa's heads."""
    try:
        heads = whole(head.config, "medusa_num_heads")
        layers = whole(head.config, "medusa_num_layers")
    except CheckpointError as failure:
        yield error(EVERY, "config", str(failure).removesuffix("."), "correct config.json")
        return
    weights = {name.removeprefix("medusa_head."): tensor for name, tensor in head.weights.items()}
    yield from _shape_rules(weights, heads, layers, target)
    yield from _alias_rules(weights, heads, layers)
    yield from value_rules(head)
    named = head.config.get("base_model_name_or_path")
    if not named:
        problem = "base_model_name_or_path is missing"
        yield note(EVERY, "base_model", problem, "name the target")


def _shape_rules(
    weights: dict[str, torch.Tensor], heads: int, layers: int, target: Target
) -> Iterator[Finding]:
    hidden = target.hidden_size
    required: Shapes = {}
    for index in range(heads):
        for layer in range(layers):
            required[f"{index}.{layer}.linear.weight"] = (hidden, hidden)
            required[f"{index}.{layer}.linear.bias"] = (hidden,)
        required[f"{index}.{layers}.weight"] = (target.vocab_size, hidden)
    for name, shape in required.items():
        if name not in weights:
            yield error(EVERY, "missing_tensor", f"{name} is missing", "save it with the heads")
        elif tuple(weights[name].shape) != shape:
            problem = f"{name} has the shape {list(weights[name].shape)}, the target asks for {list(shape)}"
            yield error(EVERY, "shape", problem, "take heads of this target")
    for name in sorted(weights.keys() - required.keys()):
        problem = f"{name} belongs to none of {heads} heads of {layers} layers"
        remedy = "correct medusa_num_heads or medusa_num_layers, or leave it out"
        yield note(EVERY, "unused_tensor", problem, remedy)


def _alias_rules(weights: dict[str, torch.Tensor], heads: int, layers: int) -> Iterator[Finding]:
    """`[ResBlock] * n` makes n layers of one: all that are stored are then the same."""
    for index in range(heads):
        blocks = [weights.get(f"{index}.{layer}.linear.weight") for layer in range(layers)]
        stored = [block for block in blocks if block is not None]
        if len(stored) > 1 and all(torch.equal(stored[0], block) for block in stored[1:]):
            problem = f"the {layers} layers of head {index} are one layer, stored {layers} times"
            yield wrong(EVERY, "aliased_layers", problem, "train with layers of their own")
            return
