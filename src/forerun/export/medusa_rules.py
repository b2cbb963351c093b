"""Rules for Medusa's heads (arXiv 2401.10774), which only vLLM loads, in its own layout."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from forerun.export.findings import EVERY, LLAMA_CPP, SGLANG, VLLM, Finding, error, note
from forerun.export.head import CONFIG, PublishedHead, Target
from forerun.export.rules import value_rules
from forerun.heads.layers import Shapes
from forerun.heads.medusa import MedusaConfig, tensor_name


def medusa_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    """Find everything that is wrong with Medusa's heads.

    Raises:
        CheckpointError, UnsupportedModelError: for a config that forerun does not read.
    """
    problem, remedy = "{engine} has no Medusa heads", "train EAGLE-3 or DSpark for it"
    yield from error((SGLANG, LLAMA_CPP), "method", problem, remedy)
    weights = {tensor_name(name): tensor for name, tensor in head.tensors.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    config = MedusaConfig.read(head.config, shapes, target.vocab_size, CONFIG)
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
            yield from error(EVERY, what, problem, "take heads of this target")


def _shape_rules(config: MedusaConfig, shapes: Shapes) -> Iterator[Finding]:
    rows = config.vocab_size if (config.vocab_size, config.hidden_size) in shapes.values() else None
    required, optional = config.shapes(rows), config.optional(rows)
    for name, shape in {**required, **optional}.items():
        if name in shapes and shapes[name] != shape:
            problem = f"{name} has the shape {list(shapes[name])}, but {list(shape)} is asked for"
            yield from error(EVERY, "shape", problem, "correct the config, or save it again")
    for name in sorted(required.keys() - shapes.keys()):
        yield from error(EVERY, "missing_tensor", f"{name} is missing", "save it with the heads")
    for name in sorted(shapes.keys() - required.keys() - optional.keys()):
        problem = (
            f"{name} belongs to none of {config.num_heads} heads of {config.num_layers} layers"
        )
        remedy = "correct the numbers of heads and layers, or leave it out"
        yield from error(EVERY, "unused_tensor", problem, remedy)


def _layout_rules(head: PublishedHead) -> Iterator[Finding]:
    named = set(head.tensors) == {tensor_name(name) for name in head.tensors}
    if not named or "MedusaModel" not in head.architectures:
        problem = "the heads are not in vLLM's layout (MedusaModel, blocks.0.layers.0.weight)"
        yield from error(VLLM, "layout", problem, "rename the tensors and write its config")


def _alias_rules(weights: dict[str, torch.Tensor], config: MedusaConfig) -> Iterator[Finding]:
    """Find heads whose layers are one layer repeated, as made by `[ResBlock] * n`."""
    for index, names in enumerate(config.block_names()):
        stored = [weights[name] for name in names if name in weights]
        if len(stored) > 1 and all(torch.equal(stored[0], block) for block in stored[1:]):
            problem = f"the {len(stored)} layers of head {index} are one layer that runs as often"
            yield from note(
                EVERY, "aliased_layers", problem, "train with layers of their own, or with one"
            )
            return
