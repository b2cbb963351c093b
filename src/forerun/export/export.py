"""`forerun export`: writes a copy of a head for other engines, or says why that is impossible."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from forerun.errors import ConfigError, UnknownNameError, UnsupportedModelError
from forerun.export.check import check_head
from forerun.export.findings import LLAMA_CPP, SGLANG, TITLES, VERSIONS, VLLM, defects
from forerun.export.head import DSPARK, EAGLE3, MEDUSA, PublishedHead, Target
from forerun.export.layouts import (
    SPECULATORS,
    VerifierModel,
    dspark_layout,
    eagle3_layout,
    speculators_layout,
)
from forerun.heads.files import CARD, OWN, write_head

LAYOUTS = {
    EAGLE3: (VLLM, SGLANG, LLAMA_CPP),
    DSPARK: (VLLM, SGLANG, LLAMA_CPP),
    SPECULATORS: (VLLM, LLAMA_CPP),
}
"""Engines that load each layout."""

_MAKERS = {EAGLE3: eagle3_layout, DSPARK: dspark_layout, SPECULATORS: speculators_layout}
_LENT = {"embed_tokens.weight", "lm_head.weight"}


def export_head(
    head: PublishedHead,
    target: Target,
    layout: str,
    verifier: VerifierModel,
    engines: Sequence[str] = (),
) -> PublishedHead:
    """A head in another layout, checked for the engines that are to load it; nothing is written.

    Args:
        layout: a key of `LAYOUTS`.
        engines: engines that are to load it; empty for all engines of the layout.

    Raises:
        UnknownNameError: for an unknown layout.
        UnsupportedModelError: for a head that one of the engines would not load, or would misread.
    """
    if layout not in LAYOUTS:
        raise UnknownNameError("layout", layout, LAYOUTS)
    if head.kind == MEDUSA:
        raise UnsupportedModelError(
            f"{head.name} holds Medusa's heads, which have one layout, their own; copy the directory."
        )
    if layout not in (head.kind, SPECULATORS):
        raise UnsupportedModelError(
            f"{head.name} is of kind {head.kind}, which cannot become {layout}; give --to {head.kind}."
        )
    config, tensors = _MAKERS[layout](head, target, verifier)
    # Matrices in few bits are written in the type that they were read in.
    result = replace(head, config=config, tensors=tensors, weight_files=(), in_few_bits=False)
    found = defects(check_head(result, target, engines or LAYOUTS[layout]))
    if found:
        reasons = "; ".join(dict.fromkeys(finding.problem for finding in found))
        raise UnsupportedModelError(
            f"{head.name} cannot be exported faithfully: {reasons}. Name with --engines the engines that "
            "need to load it, or train without what they lack."
        )
    return result


def write_export(head: PublishedHead, directory: Path, layout: str, source: str) -> None:
    """Write an exported head with its card, completely or not at all.

    Args:
        source: card of the original head; empty if it has none.

    Raises:
        ConfigError: for a directory that is not empty.
        CheckpointError: if it cannot be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(
            f"{directory} exists already; give a directory that does not, or is empty."
        )
    record = {**head.record, "layout": layout}
    texts = {OWN: json.dumps(record, indent=2) + "\n", CARD: _card(head, layout, source)}
    write_head(directory, head.config, head.tensors, texts)


def describe(head: PublishedHead, layout: str) -> dict[str, Any]:
    """Bytes of an exported head, and of the part that each engine reads; the target lends it the rest."""
    names = set(head.weights)
    lent = _LENT if head.kind == DSPARK else set[str]()
    unread = {engine: {"t2d"} | (lent if engine == SGLANG else set()) for engine in LAYOUTS[layout]}
    read = {engine: head.bytes_of(names - own) for engine, own in unread.items()}
    return {"weight_bytes": head.bytes_of(names), "bytes_read": read}


def _card(head: PublishedHead, layout: str, source: str) -> str:
    engines = ", ".join(f"{TITLES[engine]} {VERSIONS[engine]}" for engine in LAYOUTS[layout])
    lines = [
        source.rstrip() or f"# Head of kind {head.kind}",
        "",
        f"## Exported as {layout}",
        "",
        f"Written by `forerun export --to {layout}` for {engines}, and checked against the sources of "
        "these versions.",
    ]
    if layout == DSPARK:
        lines += [
            "",
            "These engines draft from the target's whole vocabulary. Where the head was trained on a part "
            "of it, the Markov head has no bias for the other tokens: its rows are zero.",
        ]
    return "\n".join(lines) + "\n"
