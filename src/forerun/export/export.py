"""`forerun export`: writes a copy of a head for other engines, or says why that is impossible."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from forerun.contracts import CausalLM
from forerun.errors import ConfigError, UnsupportedModelError
from forerun.export.check import check_head
from forerun.export.findings import TITLES, VERSIONS, defects
from forerun.export.head import DSPARK, EAGLE3, MEDUSA, PublishedHead, Target
from forerun.export.layouts import dspark_layout, eagle3_layout
from forerun.heads.files import CARD, OWN, write_head

LAYOUTS = {EAGLE3: eagle3_layout, DSPARK: dspark_layout}
"""Maker of the layout of each kind of head."""


def export_head(
    head: PublishedHead, target: Target, model: CausalLM, engines: Sequence[str] = ()
) -> PublishedHead:
    """A head in the layout of its kind, checked for the engines that are to load it; nothing is written.

    Args:
        model: the target, whose output rows are copied.
        engines: engines that are to load it; empty for all.

    Raises:
        UnsupportedModelError: for a head that one of the engines would not load, or would misread.
    """
    if head.kind == MEDUSA:
        raise UnsupportedModelError(
            f"{head.name} holds Medusa's heads, which have one layout, their own; copy the directory."
        )
    config, tensors = LAYOUTS[head.kind](head, target, model)
    # Matrices in few bits are written in the type that they were read in.
    result = replace(head, config=config, tensors=tensors, in_few_bits=False)
    found = defects(check_head(result, target, engines or tuple(VERSIONS)))
    if found:
        reasons = "; ".join(dict.fromkeys(finding.problem for finding in found))
        raise UnsupportedModelError(
            f"{head.name} cannot be exported faithfully: {reasons}. Name with --engines the engines that "
            "need to load it, or train without what they lack."
        )
    return result


def write_export(head: PublishedHead, directory: Path, source: str) -> None:
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
    texts = {OWN: json.dumps(head.record, indent=2) + "\n", CARD: _card(head, source)}
    write_head(directory, head.config, head.tensors, texts)


def _card(head: PublishedHead, source: str) -> str:
    engines = ", ".join(f"{TITLES[engine]} {version}" for engine, version in VERSIONS.items())
    text = (
        f"{source.rstrip() or f'# Head of kind {head.kind}'}\n\n## Exported\n\nWritten by `forerun export` "
        f"for {engines}, and checked against the sources of these versions.\n"
    )
    if head.kind == DSPARK:
        text += (
            "\nThese engines draft from the target's whole vocabulary. Where the head was trained on a part "
            "of it, the Markov head has no bias for the other tokens: its rows are zero.\n"
        )
    return text
