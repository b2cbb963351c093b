"""`forerun export`: writes a copy of a head for other engines, or says why that is impossible."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.errors import ConfigError, UnknownNameError, UnsupportedModelError
from forerun.export.check import check_head
from forerun.export.findings import LLAMA_CPP, SGLANG, TITLES, VERSIONS, VLLM, defects
from forerun.export.head import DSPARK, EAGLE3, MEDUSA, PublishedHead
from forerun.export.profiles import (
    SPECULATORS,
    Verifier,
    dspark_profile,
    eagle3_profile,
    speculators_profile,
)
from forerun.export.target import Target
from forerun.heads.files import CARD, OWN, write_head

LAYOUTS = {
    EAGLE3: (VLLM, SGLANG, LLAMA_CPP),
    DSPARK: (VLLM, SGLANG, LLAMA_CPP),
    SPECULATORS: (VLLM, LLAMA_CPP),
}
"""Engines that load each layout."""

# Number of rows or columns of the target's matrices that are compared with a head's, to find copies.
_PROBES = 64
_COPY = 1e-2
_LENT = {"embed_tokens.weight", "lm_head.weight"}


def export_head(
    head: PublishedHead,
    target: Target,
    layout: str,
    verifier: Verifier,
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
    if layout == SPECULATORS:
        config, tensors = speculators_profile(head, target, verifier)
    else:
        profile = eagle3_profile if layout == EAGLE3 else dspark_profile
        config, tensors = profile(head, target, verifier)
    result = replace(head, config=config, tensors=tensors, weight_files=())
    found = defects(check_head(result, target, engines or LAYOUTS[layout]))
    if found:
        reasons = "; ".join(dict.fromkeys(finding.problem for finding in found))
        raise UnsupportedModelError(
            f"{head.name} cannot be exported faithfully: {reasons}. Name with --for the engines that "
            "need to load it, or train without what they lack."
        )
    return result


def without_copies(head: PublishedHead, model: CausalLM) -> tuple[PublishedHead, list[str]]:
    """A head without copies of the target's embedding and output head, and the names of the copies.

    Other tools save such copies with the head; engines use the target's either way.
    """
    copied = []
    embedding = head.weights.get("embed_tokens.weight")
    if embedding is not None and _copies_embedding(embedding.float(), model):
        copied.append("embed_tokens.weight")
    rows = head.weights.get("lm_head.weight")
    if head.kind == DSPARK and rows is not None and _copies_lm_head(head, rows.float(), model):
        copied.append("lm_head.weight")
    kept = {name: tensor for name, tensor in head.weights.items() if name not in copied}
    return (replace(head, tensors=kept) if copied else head), copied


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


def bytes_by_engine(head: PublishedHead) -> dict[str, int]:
    """Bytes of a head's tensors that each engine reads; it skips the rest, or uses the target's."""
    unread = {engine: {"t2d"} for engine in VERSIONS}
    if head.kind == DSPARK:
        unread[SGLANG] |= _LENT
    return {engine: head.bytes_of(head.weights.keys() - unread[engine]) for engine in VERSIONS}


def _copies_embedding(stored: Tensor, model: CausalLM) -> bool:
    if tuple(stored.shape) != (model.vocab_size, model.hidden_size):
        return False
    ids = torch.linspace(0, model.vocab_size - 1, min(_PROBES, model.vocab_size)).long()
    return _near(stored[ids], model.embed(ids[None].to(model.device))[0].float().cpu())


def _copies_lm_head(head: PublishedHead, stored: Tensor, model: CausalLM) -> bool:
    columns = torch.linspace(0, model.hidden_size - 1, min(_PROBES, model.hidden_size)).long()
    probes = torch.eye(model.hidden_size)[columns].to(model.device, model.dtype)
    theirs = model.lm_head(probes[None])[0].float().cpu().mT
    d2t = head.weights.get("d2t")
    if d2t is not None:
        ids = (d2t.long() + torch.arange(len(d2t))).clamp(0, model.vocab_size - 1)
        theirs = theirs[ids]
    if stored.shape != (len(theirs), model.hidden_size):
        return False
    return _near(stored[:, columns], theirs)


def _near(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).norm() <= _COPY * other.norm())


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


def describe(head: PublishedHead, layout: str) -> dict[str, Any]:
    """Bytes of an exported head, and the bytes that each engine reads."""
    read = bytes_by_engine(head)
    return {
        "weight_bytes": head.bytes_of(set(head.weights)),
        "bytes_read": {engine: read[engine] for engine in LAYOUTS[layout]},
    }
