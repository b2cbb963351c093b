"""`forerun export`: writes a copy of a head for other engines, or says why that is impossible."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from forerun.contracts import CausalLM
from forerun.errors import ConfigError, UnsupportedModelError
from forerun.export.check import check_head
from forerun.export.findings import VERSIONS, defects
from forerun.export.head import DSPARK, EAGLE3, PublishedHead, Target
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
    config, tensors = LAYOUTS[head.kind](head, target, model)
    # Matrices in few bits are written in the type that they were read in.
    result = replace(head, config=config, tensors=tensors, in_few_bits=False)
    flaws = defects(check_head(result, target, engines or tuple(VERSIONS)))
    if flaws:
        reasons = "; ".join(dict.fromkeys(finding.problem for finding in flaws))
        raise UnsupportedModelError(
            f"{head.name} cannot be exported faithfully: {reasons}. Name with --engines the engines that "
            "need to load it, or train without what they lack."
        )
    return result


def write_export(head: PublishedHead, directory: Path, card: str) -> None:
    """Write an exported head and the card of the original, completely or not at all.

    Raises:
        ConfigError: for a directory that is not empty.
        CheckpointError: if it cannot be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(
            f"{directory} exists already; give a directory that does not, or is empty."
        )
    texts = {OWN: json.dumps(head.record, indent=2) + "\n", **({CARD: card} if card else {})}
    write_head(directory, head.config, head.tensors, texts)
