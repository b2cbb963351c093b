"""Differences, in words, between how an engine reads a head and how the head was trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from forerun.export.findings import LLAMA_CPP, SGLANG, TITLES, VERSIONS, Finding, wrong
from forerun.export.head import DSPARK, PublishedHead
from forerun.export.readings import AUX, Reading, reading_of
from forerun.export.target import Target

_SAY = "write {field} into config.json"


def differing(trained: Reading, read: Reading) -> tuple[str, ...]:
    """Names of the fields in which two readings of one head differ."""
    return tuple(
        field.name
        for field in fields(trained)
        if getattr(trained, field.name) != getattr(read, field.name)
    )


def reading_findings(head: PublishedHead, target: Target) -> Iterator[Finding]:
    """A finding for each engine and each field that the engine reads differently."""
    trained = reading_of(head, target)
    for engine in VERSIONS:
        read = reading_of(head, target, engine)
        for field in differing(trained, read):
            yield wrong(
                engine,
                _trap(field),
                because(field, engine, trained, read),
                _remedy(field, engine, head),
            )


def because(field: str, engine: str, trained: Reading, read: Reading) -> str:
    """Explain in a clause how a difference in one field changes an engine's drafts."""
    was, now = getattr(trained, field), getattr(read, field)
    values = {"engine": TITLES[engine], "field": field, "trained": _shown(was), "read": _shown(now)}
    ignored = was is True and now is False
    return _WORDS.get(field, _IGNORED if ignored else _PLAIN).format(**values)


_IGNORED = "{engine} ignores {field}={trained}"
_PLAIN = "{engine} reads {field} as {read}, but the head was trained with {trained}"
_WORDS = {
    "hidden_layers": "{engine} feeds it the hidden layers {read}, but it was trained on {trained}, where "
    "i is the output of the target's first i layers",
    "draft_ids": "{engine} reads the draft vocabulary as {read}, but d2t holds {trained}",
    "lm_head": "{engine} takes the output head of the {read}, but the head was trained with its {trained}",
    "embedding": "{engine} takes the embedding of the {read}, but the head was trained with its {trained}",
    "later_norm": "{engine} norms what enters later layers by {read}, not by {trained}",
    "qkv_bias": "{engine} leaves out the biases of queries, keys and values",
    "fc_bias": "{engine} leaves out fc.bias unless config.json has bias=true",
    "window": "{engine} attends to the whole text, but the head was trained with a window of {trained}",
    "activation": "{engine} always computes {read}, but the head was trained with {trained}",
    "theta": "config.json names no rope_theta, so {engine} takes {read}, not the target's {trained}",
    "sample_from_anchor": "{engine} reads sample_from_anchor as {read}, but the head was trained with "
    "{trained}: every draft stands one place off",
}


def _trap(field: str) -> str:
    return {"hidden_layers": "layer_ids", "draft_ids": "d2t", "theta": "rope"}.get(field, field)


def _remedy(field: str, engine: str, head: PublishedHead) -> str:
    if field == "hidden_layers":
        if head.kind == DSPARK:
            return "write the outputs that it was trained on, i - 1 each, into target_layer_ids"
        if engine == SGLANG:
            return f"write i - 1 for each into eagle_config.{AUX}"
        return f"write them into {AUX} at the top level"
    if field == "norm_before_residual" and engine == SGLANG:
        return "train with norm_before_residual=false; SGLang has no other residual"
    if engine == LLAMA_CPP and field in ("fc_norm", "norm_output"):
        return "train without it, or do not serve the head there"
    return _REMEDIES.get(field, _SAY).format(field=field)


_REMEDIES = {
    "draft_ids": "write int64 offsets d2t[i] = target id - i",
    "lm_head": "write tie_word_embeddings=false and draft_vocab_size, and leave out a copy of the target's",
    "embedding": "leave the embedding out of the file, so that the target's is used everywhere",
    "later_norm": "train one layer",
    "qkv_bias": "train without attention_bias",
    "fc_bias": "train fc without a bias",
    "window": "train with full attention",
    "activation": "train with silu",
    "theta": "write rope_theta and rope_parameters",
}


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    if isinstance(value, float):
        return f"{value:g}"
    return {
        "none": "the target's first ids",
        "absolute": "target ids",
        "t2d": "only what t2d says",
    }.get(str(value), str(value))
