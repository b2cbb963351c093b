"""Rules for every head with decoder layers: tensors, draft vocabulary, target, rotary embedding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch

from forerun.export.findings import (
    EVERY,
    LLAMA_CPP,
    SGLANG,
    TITLES,
    VLLM,
    Finding,
    error,
    note,
    wrong,
)
from forerun.export.head import PublishedHead, Target
from forerun.export.readings import draft_vocab_sizes, looks_absolute, rope_of, same_rope
from forerun.heads.files import flaws
from forerun.heads.layers import Shapes

_TYPES = {torch.float32, torch.bfloat16, torch.float16, torch.float64}
_SMALL = {torch.int64, torch.int32, torch.int16, torch.bool}
_SPECULATORS = {"Eagle3Speculator", "Eagle3DraftModel", "DSparkSpeculator"}


def common_rules(
    head: PublishedHead, target: Target, required: Shapes, allowed: Shapes
) -> Iterator[Finding]:
    """Find what is wrong with the tensors, target and rotary embedding of a head.

    Args:
        required: shapes of the tensors that the config calls for.
        allowed: shapes of the tensors that the head may have besides.
    """
    yield from _target_rules(head, target)
    yield from _tensor_rules(head, required, allowed)
    yield from value_rules(head)
    yield from _vocabulary_rules(head)
    yield from _rope_rules(head)


def _tensor_rules(head: PublishedHead, required: Shapes, allowed: Shapes) -> Iterator[Finding]:
    stored = {name: tuple(tensor.shape) for name, tensor in head.weights.items()}
    needed = {name: shape for name, shape in required.items() if name != "d2t"}
    for trap, flaw in flaws(stored, needed, allowed, ("d2t", "t2d")):
        problem, remedy = f"the head {flaw}", "save it again, or correct the config"
        if trap == "shape":
            yield from error(EVERY, trap, problem, remedy)
            continue
        yield from error((VLLM, LLAMA_CPP), trap, problem, remedy)
        if trap == "missing_tensor":
            silently = f"{problem}, and SGLang keeps what memory held without a word"
            yield from wrong(SGLANG, trap, silently, remedy)
        else:
            yield from note(SGLANG, trap, f"{problem}, and SGLang skips it without a word", remedy)


def value_rules(head: PublishedHead) -> Iterator[Finding]:
    """Check the types of tensors."""
    if head.in_few_bits:
        problem = "its matrices are stored in 8 or 4 bits with scales, as forerun alone reads them"
        yield from error(tuple(TITLES), "few bits", problem, "write a copy with `forerun export`")
    for name, tensor in head.weights.items():
        allowed = _TYPES | (_SMALL if name in ("d2t", "t2d") else set())
        if tensor.dtype not in allowed:
            problem = f"{name} is stored as {str(tensor.dtype).removeprefix('torch.')}"
            remedy = "store weights as bfloat16 or float32, d2t as int64"
            yield from error(EVERY, "dtype", problem, remedy)


def _vocabulary_rules(head: PublishedHead) -> Iterator[Finding]:
    """Check d2t and t2d: presence, type, length, offsets, range, uniqueness, and agreement."""
    d2t, (draft, vocab_size) = head.weights.get("d2t"), draft_vocab_sizes(head)
    if d2t is None:
        if draft < vocab_size:
            lacks = f"the draft vocabulary has {draft} of {vocab_size} tokens, but there is no d2t"
            remedy = "save d2t: int64 offsets, target id - draft id"
            problem = f"{lacks}, so {{engine}} takes draft ids for target ids"
            yield from wrong((VLLM, SGLANG), "d2t", problem, remedy)
            yield from error(LLAMA_CPP, "d2t", lacks, remedy)
        return
    if d2t.dtype.is_floating_point:
        problem = f"d2t is stored as {d2t.dtype}, which rounds ids"
        yield from wrong(EVERY, "d2t", problem, "store it as int64")
    if tuple(d2t.shape) != (draft,):
        problem = f"d2t has the shape {list(d2t.shape)}, but draft_vocab_size is {draft}"
        remedy = "write one offset for each token of the draft vocabulary"
        yield from error(EVERY, "d2t", problem, remedy)
    elif looks_absolute(head):
        problem = "d2t holds target ids, where every engine reads offsets, and llama.cpp refuses ids out of"
        remedy = "write int64 offsets d2t[i] = target id - i"
        yield from error(LLAMA_CPP, "d2t", f"{problem} range", remedy)
    else:
        yield from _mapping_rules(head, d2t, vocab_size)


def _mapping_rules(head: PublishedHead, d2t: torch.Tensor, vocab_size: int) -> Iterator[Finding]:
    target_ids = d2t.long() + torch.arange(len(d2t))
    if target_ids.min() < 0 or target_ids.max() >= vocab_size:
        problem = f"d2t leads to ids outside the target's {vocab_size} tokens"
        yield from error(EVERY, "d2t", problem, "write offsets: target id - draft id")
        return
    if len(set(target_ids.tolist())) < len(target_ids):
        problem = "d2t leads to the same target token twice"
        remedy = "give each draft token a target token of its own"
        yield from wrong((VLLM, SGLANG), "d2t", problem, remedy)
        yield from error(LLAMA_CPP, "d2t", problem, remedy)
    t2d = head.weights.get("t2d")
    if t2d is None:
        return
    if tuple(t2d.shape) != (vocab_size,):
        problem = f"t2d has the shape {list(t2d.shape)}, but the target has {vocab_size} tokens"
        yield from error(EVERY, "t2d", problem, "write one boolean for each token of the target")
    elif not torch.equal(t2d.bool().nonzero().flatten(), target_ids.sort().values):
        problem = "t2d and d2t disagree about which target tokens can be drafted"
        yield from wrong(EVERY, "t2d", problem, "write both from the same list of tokens")


def _target_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    """Check that the head was made for this target."""
    hidden = head.layers.get("hidden_size")
    reads = head.config.get("target_hidden_size") or hidden
    sizes = {
        "hidden_size": (reads, target.hidden_size),
        "vocab_size": (draft_vocab_sizes(head)[1], target.vocab_size),
    }
    for name, (ours, theirs) in sizes.items():
        if ours != theirs:
            problem = f"the head is for a target with {name} {ours}, but {target.name} has {theirs}"
            yield from error(EVERY, name, problem, "take a head of this target")
    if hidden != reads and "embed_tokens.weight" not in head.weights:
        problem = (
            "the head's hidden size is not the target's, so it cannot read the target's embedding"
        )
        yield from error(EVERY, "hidden_size", problem, "save embed_tokens.weight with the head")


def _rope_rules(head: PublishedHead) -> Iterator[Finding]:
    """Check that both dialects of the rotary embedding agree."""
    layers, rope = head.layers, rope_of(head)
    newer, older = layers.get("rope_parameters"), layers.get("rope_scaling")
    theta = layers.get("rope_theta")
    if isinstance(newer, Mapping) and (theta is not None or older is not None):
        both = {**(older if isinstance(older, Mapping) else {}), "rope_theta": theta}
        both["rope_type"] = both.pop("type", None) or both.get("rope_type")
        stated = {key: value for key, value in both.items() if value is not None}
        if not same_rope({**rope, **stated}, rope):
            problem = (
                "rope_parameters and the older rope_theta and rope_scaling contradict each other"
            )
            yield from wrong(EVERY, "rope", problem, "write the same in both")


def format_rules(
    head: PublishedHead, architectures: Mapping[str, frozenset[str]]
) -> Iterator[Finding]:
    """Check that each engine reads the format of the config, and has a class for the architecture.

    Args:
        head: the head.
        architectures: architectures that each engine knows.
    """
    for engine, known in architectures.items():
        if head.wrapped and engine != LLAMA_CPP:
            continue
        names = known if head.wrapped else known - _SPECULATORS
        if not names & set(head.architectures):
            named = ", ".join(head.architectures) or "none"
            problem = f"{{engine}} has no class for architectures {named}"
            yield from error(
                engine, "architectures", problem, f"write {' or '.join(sorted(names))}"
            )
    if head.wrapped:
        problem = "the config is in the format of speculators, which SGLang does not read"
        remedy = "write a copy with `forerun export`"
        yield from error(SGLANG, "speculators_format", problem, remedy)
        yield from _wrapper_rules(head)
    elif not head.config.get("model_type"):
        problem = "config.json has no model_type, by which {engine} finds the config's class"
        remedy = "write llama (EAGLE-3) or qwen3 (DSpark)"
        yield from error((VLLM, SGLANG), "model_type", problem, remedy)


def _wrapper_rules(head: PublishedHead) -> Iterator[Finding]:
    if not isinstance(head.config.get("transformer_layer_config"), dict):
        problem = "the config has no transformer_layer_config"
        yield from error(
            EVERY, "speculators_format", problem, "write the config of the layers there"
        )
    outer = head.nested("speculators_config")
    verifier: Any = outer.get("verifier")
    if not isinstance(verifier, dict) or not isinstance(outer.get("proposal_methods"), list):
        problem = "speculators_config names no verifier or no proposal_methods"
        yield from error(VLLM, "speculators_format", problem, "write both")


def layer_id_rules(where: str, named: Any, bounds: tuple[int, int]) -> Iterator[Finding]:
    """Check that layer ids ascend and lie within bounds; None names none.

    Engines collect hidden layers in the order in which they run them.
    """
    if named is None:
        return
    ids = list(named)
    if any(later <= earlier for earlier, later in pairwise(ids)):
        problem = f"{where} {ids} does not ascend, but engines collect layers in ascending order"
        yield from wrong(EVERY, "layer_ids", problem, "train on ascending layers")
    if not bounds[0] <= min(ids) <= max(ids) <= bounds[1]:
        problem = f"{where} {ids} leaves [{bounds[0]}, {bounds[1]}], the target's layers"
        yield from error(EVERY, "layer_ids", problem, "take a head of this target")
