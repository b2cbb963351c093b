"""Rules for Medusa's heads (arXiv 2401.10774), which only vLLM loads, in its own layout."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from forerun.errors import ForerunError
from forerun.export.common_rules import value_rules
from forerun.export.findings import (
    EVERY,
    LLAMA_CPP,
    SGLANG,
    TITLES,
    VLLM,
    Finding,
    error,
    note,
)
from forerun.export.head import PublishedHead
from forerun.export.target import Target
from forerun.heads.medusa import MedusaConfig, tensor_name


def medusa_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    """Find everything that is wrong with Medusa's heads."""
    for engine in (SGLANG, LLAMA_CPP):
        problem = f"{TITLES[engine]} has no Medusa heads"
        yield error(engine, "method", problem, "train EAGLE-3 or DSpark for it")
    weights = {tensor_name(name): tensor for name, tensor in head.tensors.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    try:
        config = MedusaConfig.read(head.config, shapes, target.vocab_size, head.name)
    except ForerunError as failure:
        yield error(EVERY, "config", str(failure).removesuffix("."), "correct config.json")
        return
    yield from _target_rules(config, target)
    yield from _shape_rules(config, shapes)
    yield from _layout_rules(head)
    yield from _alias_rules(weights, config)
    yield from value_rules(head)


def _target_rules(config: MedusaConfig, target: Target) -> Iterator[Finding]:
    for what in ("hidden_size", "vocab_size"):
        ours, theirs = getattr(config, what), getattr(target, what)
        if ours != theirs:
            problem = (
                f"the heads are for a target with {what} {ours}, but {target.name} has {theirs}"
            )
            yield error(EVERY, what, problem, "take heads of this target")


def _shape_rules(config: MedusaConfig, shapes: dict[str, tuple[int, ...]]) -> Iterator[Finding]:
    rows = config.vocab_size if (config.vocab_size, config.hidden_size) in shapes.values() else None
    required, optional = config.shapes(rows), config.optional(rows)
    for name, shape in {**required, **optional}.items():
        if name in shapes and shapes[name] != shape:
            problem = f"{name} has the shape {list(shapes[name])}, but {list(shape)} is asked for"
            yield error(EVERY, "shape", problem, "correct the config, or save it again")
    for name in sorted(required.keys() - shapes.keys()):
        yield error(EVERY, "missing_tensor", f"{name} is missing", "save it with the heads")
    for name in sorted(shapes.keys() - required.keys() - optional.keys()):
        problem = (
            f"{name} belongs to none of {config.num_heads} heads of {config.num_layers} layers"
        )
        remedy = "correct the numbers of heads and layers, or leave it out"
        yield error(EVERY, "unused_tensor", problem, remedy)


def _layout_rules(head: PublishedHead) -> Iterator[Finding]:
    named = set(head.tensors) == {tensor_name(name) for name in head.tensors}
    if not named or "MedusaModel" not in head.architectures:
        problem = "the heads are not in vLLM's layout (MedusaModel, blocks.0.layers.0.weight)"
        yield error(VLLM, "layout", problem, "rename the tensors and write its config")


def _alias_rules(weights: dict[str, torch.Tensor], config: MedusaConfig) -> Iterator[Finding]:
    """Find heads whose layers are one layer repeated, as made by `[ResBlock] * n`."""
    for index, names in enumerate(config.block_names()):
        stored = [weights[name] for name in names if name in weights]
        if len(stored) > 1 and all(torch.equal(stored[0], block) for block in stored[1:]):
            problem = f"the {len(stored)} layers of head {index} are one layer that runs as often"
            yield note(
                EVERY, "aliased_layers", problem, "train with layers of their own, or with one"
            )
            return
