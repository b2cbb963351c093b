"""Rules for every head with decoder layers: tensors, draft vocabulary, target, rotary embedding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
from forerun.export.head import PublishedHead
from forerun.export.readings import looks_absolute
from forerun.export.sizes import Shapes, Sizes, misshapen, rope_of, same_rope
from forerun.export.target import Target

_TYPES = {torch.float32, torch.bfloat16, torch.float16, torch.float64}
_SMALL = {torch.int64, torch.int32, torch.int16, torch.bool}


def tensor_rules(
    head: PublishedHead, required: Shapes, allowed: Mapping[str, tuple[int, ...]]
) -> Iterator[Finding]:
    """Find missing, unused and misshapen tensors; tensors in `allowed` are optional."""
    for name, problem in misshapen(head, {**required, **allowed}):
        yield error(EVERY, "shape", problem, f"correct the config, or save {name} again")
    for name in sorted(required.keys() - head.weights.keys()):
        yield from missing(name)
    known = required.keys() | allowed.keys() | {"d2t", "t2d"}
    for name in sorted(head.weights.keys() - known):
        yield from unused(name)


def missing(name: str) -> Iterator[Finding]:
    """Findings for a missing tensor that every engine needs."""
    for engine in (VLLM, LLAMA_CPP):
        yield error(engine, "missing_tensor", f"{name} is missing", "save it with the head")
    kept = f"{name} is missing, and SGLang keeps what memory held without a word"
    yield wrong(SGLANG, "missing_tensor", kept, "save it with the head")


def unused(name: str) -> Iterator[Finding]:
    """Findings for a tensor that the config does not call for."""
    for engine in (VLLM, LLAMA_CPP):
        problem = f"{name} belongs to no part that {TITLES[engine]} builds, which it refuses"
        yield error(
            engine, "unused_tensor", problem, "leave it out, or set the flag that it belongs to"
        )
    problem = f"{name} belongs to no part that SGLang builds, which skips it without a word"
    yield note(SGLANG, "unused_tensor", problem, "leave it out, or set the flag that it belongs to")


def value_rules(head: PublishedHead) -> Iterator[Finding]:
    """Check the types of tensors, and find files that engines do not read."""
    if head.in_few_bits:
        problem = "its matrices are stored in 8 or 4 bits with scales, as forerun alone reads them"
        for engine in TITLES:
            yield error(engine, "few bits", problem, "write a copy with `forerun export`")
    types = set()
    for name, tensor in head.weights.items():
        if tensor.dtype in _TYPES:
            types.add(tensor.dtype)
        elif name not in ("d2t", "t2d") or tensor.dtype not in _SMALL:
            problem = f"{name} is stored as {str(tensor.dtype).removeprefix('torch.')}"
            yield error(
                EVERY, "dtype", problem, "store weights as bfloat16 or float32, d2t as int64"
            )
    stated = head.layers.get("dtype") or head.layers.get("torch_dtype")
    kinds = sorted(str(kind).removeprefix("torch.") for kind in types)
    if stated and types and str(stated).removeprefix("torch.") not in kinds:
        problem = f"config.json says dtype {stated}, but the tensors are {', '.join(kinds)}"
        yield note(EVERY, "dtype", problem, "write the dtype of the tensors")
    if len(head.weight_files) > 1:
        others = ", ".join(head.weight_files[1:])
        problem = f"engines read {head.weight_files[0]} and leave {others} unread"
        yield note(EVERY, "weight_files", problem, "remove the others")


def vocabulary_rules(head: PublishedHead, sizes: Sizes) -> Iterator[Finding]:
    """Check d2t and t2d: presence, type, length, offsets, range, uniqueness, and agreement."""
    d2t, draft = head.weights.get("d2t"), sizes.draft_vocab_size
    if d2t is None:
        if draft < sizes.vocab_size:
            yield from _without_mapping(sizes)
        return
    if d2t.dtype.is_floating_point:
        yield wrong(
            EVERY, "d2t", f"d2t is stored as {d2t.dtype}, which rounds ids", "store it as int64"
        )
    if tuple(d2t.shape) != (draft,):
        yield error(
            EVERY,
            "d2t",
            f"d2t has the shape {list(d2t.shape)}, but draft_vocab_size is {draft}",
            "write one offset for each token of the draft vocabulary",
        )
        return
    if looks_absolute(head, sizes):
        problem = "d2t holds target ids, where every engine reads offsets"
        remedy = "write int64 offsets d2t[i] = target id - i"
        yield error(LLAMA_CPP, "d2t", f"{problem}, and llama.cpp refuses ids out of range", remedy)
        return
    yield from _mapping_rules(head, d2t, sizes)


def _without_mapping(sizes: Sizes) -> Iterator[Finding]:
    problem = (
        f"the draft vocabulary has {sizes.draft_vocab_size} of {sizes.vocab_size} tokens, but there is "
        "no d2t"
    )
    remedy = "save d2t: int64 offsets, target id - draft id"
    for engine in (VLLM, SGLANG):
        told = f"{problem}, so {TITLES[engine]} takes draft ids for target ids"
        yield wrong(engine, "d2t", told, remedy)
    yield error(LLAMA_CPP, "d2t", problem, remedy)


def _mapping_rules(head: PublishedHead, d2t: torch.Tensor, sizes: Sizes) -> Iterator[Finding]:
    target_ids = d2t.long() + torch.arange(len(d2t))
    if target_ids.min() < 0 or target_ids.max() >= sizes.vocab_size:
        problem = f"d2t leads to ids outside the target's {sizes.vocab_size} tokens"
        yield error(EVERY, "d2t", problem, "write offsets: target id - draft id")
        return
    if len(set(target_ids.tolist())) < len(target_ids):
        problem = "d2t leads to the same target token twice"
        for engine in (VLLM, SGLANG):
            yield wrong(engine, "d2t", problem, "give each draft token a target token of its own")
        yield error(LLAMA_CPP, "d2t", problem, "give each draft token a target token of its own")
    t2d = head.weights.get("t2d")
    if t2d is None:
        problem = "there is no t2d, which speculators and SpecForge need to train on"
        yield note(EVERY, "t2d", problem, "save which target tokens the draft vocabulary has")
    elif tuple(t2d.shape) != (sizes.vocab_size,):
        problem = (
            f"t2d has the shape {list(t2d.shape)}, but the target has {sizes.vocab_size} tokens"
        )
        yield error(EVERY, "t2d", problem, "write one boolean for each token of the target")
    elif not torch.equal(t2d.bool().nonzero().flatten(), target_ids.sort().values):
        problem = "t2d and d2t disagree about which target tokens can be drafted"
        yield wrong(EVERY, "t2d", problem, "write both from the same list of tokens")


def target_rules(head: PublishedHead, sizes: Sizes, target: Target) -> Iterator[Finding]:
    """Check that the head was made for a target of these sizes."""
    own = "embed_tokens.weight" in head.weights
    for what, ours, theirs in (
        ("hidden_size", sizes.target_hidden_size, target.hidden_size),
        ("vocab_size", sizes.vocab_size, target.vocab_size),
    ):
        if ours != theirs:
            problem = f"the head is for a target with {what} {ours}, but {target.name} has {theirs}"
            yield error(EVERY, what, problem, "take a head of this target")
    if sizes.hidden_size != sizes.target_hidden_size and not own:
        problem = (
            "the head's hidden size is not the target's, so it cannot read the target's embedding"
        )
        yield error(EVERY, "hidden_size", problem, "save embed_tokens.weight with the head")
    if sizes.draft_vocab_size > sizes.vocab_size:
        problem = f"draft_vocab_size {sizes.draft_vocab_size} exceeds vocab_size {sizes.vocab_size}"
        yield error(EVERY, "draft_vocab_size", problem, "write the rows of lm_head.weight")
    recorded = head.record.get("target")
    trained_for = recorded.get("chat_template") if isinstance(recorded, Mapping) else None
    if trained_for and target.template_hash and trained_for != target.template_hash:
        problem = "the head was trained with another chat template than the target now has"
        yield note(EVERY, "chat_template", problem, "measure it, and train again if it drafts less")


def rope_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    """Check the rotary embedding: both dialects of the config, and agreement with the target's."""
    layers, rope = head.layers, rope_of(head)
    newer, older = layers.get("rope_parameters"), layers.get("rope_scaling")
    theta = layers.get("rope_theta")
    if isinstance(newer, Mapping):
        both = {**(older if isinstance(older, Mapping) else {}), "rope_theta": theta}
        both["rope_type"] = both.pop("type", None) or both.get("rope_type")
        stated = theta is not None or older is not None
        if stated and not same_rope(
            {**rope, **{k: v for k, v in both.items() if v is not None}}, rope
        ):
            problem = (
                "rope_parameters and the older rope_theta and rope_scaling contradict each other"
            )
            yield wrong(EVERY, "rope", problem, "write the same in both")
    if theta is None and not isinstance(older, Mapping) and not isinstance(newer, Mapping):
        return  # Then the readings differ, unless the target's theta is the default.
    if target.rope and not same_rope(rope, target.rope):
        problem = f"the rotary embedding is {_short(rope)}, the target's {_short(target.rope)}"
        yield note(EVERY, "rope", problem, "check that the head was trained with its own")


def context_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    """Check that the head's positions cover the target's context."""
    most = head.layers.get("max_position_embeddings")
    if type(most) is int and most < target.max_context:
        problem = (
            f"max_position_embeddings is {most}, but the target's texts go to {target.max_context}; vLLM "
            "raises it, SGLang does not"
        )
        yield note(SGLANG, "max_position_embeddings", problem, "write the target's")


def architecture_rules(
    head: PublishedHead, names: Mapping[str, frozenset[str]]
) -> Iterator[Finding]:
    """Check that each engine has a class for the head's architecture.

    Args:
        names: architectures that each engine knows.
    """
    for engine, known in names.items():
        if not known & set(head.architectures):
            named = ", ".join(head.architectures) or "none"
            problem = f"{TITLES[engine]} has no class for architectures {named}"
            yield error(engine, "architectures", problem, "write " + " or ".join(sorted(known)))


def _short(rope: Mapping[str, object]) -> str:
    kind, theta = rope.get("rope_type", "default"), rope.get("rope_theta")
    return f"{kind} with theta {theta:g}" if isinstance(theta, (int, float)) else str(kind)
