"""Measurements of a trained head on held-out text, written beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from forerun.heads.files import BY_RANK, CALIBRATION, CARD, OWN, HeadFiles, write_head
from forerun.training.acceptance import AcceptanceTable
from forerun.training.calibration import calibrate
from forerun.training.card import CERTIFICATE, PICTURE, card_of
from forerun.training.curve import draw, read_curve
from forerun.training.drafter_run import WORK, DrafterRun
from forerun.training.drafter_settings import FinishSettings
from forerun.training.earlier import take_weights
from forerun.training.real_run import real_runs

# Number of siblings whose acceptance is measured; trees rarely have more.
RANKS = 8
NO_TEXTS: Mapping[str, str] = MappingProxyType({})


def finish(run: DrafterRun, settings: FinishSettings | None = None) -> Mapping[str, Any]:
    """Measure the head that a run has written, and add the results to its forerun.json and card.

    Args:
        run: a run that has ended; its module is set to the best weights, which need not be the last.
        settings: measurements to make.

    Returns:
        The content of forerun.json.

    Raises:
        CheckpointError: if it cannot be written; the earlier files then stay.
        TrainingError: if another run works in the directory.
    """
    with run.locked():
        return _finish(run, settings or FinishSettings())


def _finish(run: DrafterRun, settings: FinishSettings) -> Mapping[str, Any]:
    files = HeadFiles.open(run.out)
    take_weights(run.head, files)
    own = dict(files.own)
    # The curve includes validations after the best one.
    report = own["report"] = {**own["report"], **run.report.as_dict()}
    log = run.out / WORK / "state.jsonl"
    report["curve_by_category"] = read_curve(log, run.report.untrained)
    _add_table(own, report, run.evaluate(RANKS))
    _write(run, files, own)
    if settings.real_run:
        report["real_run"] = real_runs(run, settings.real_run_prompts, settings.real_run_tokens)
        _write(run, files, own)
    return HeadFiles.open(run.out).own


def add_proofs(
    run: DrafterRun, proofs: Sequence[Mapping[str, Any]], certificate: str
) -> Mapping[str, Any]:
    """Write the proofs of a drafter beside its weights, and into its card.

    Args:
        run: a finished run.
        proofs: objects as printed by `forerun prove --json`.
        certificate: document with all certificates.

    Returns:
        The content of forerun.json, with the settings and the outcome of each proof.

    Raises:
        CheckpointError: if it cannot be written; the earlier files then stay.
        TrainingError: if another run works in the directory.
    """
    with run.locked():
        return _add_proofs(run, proofs, certificate)


def _add_proofs(
    run: DrafterRun, proofs: Sequence[Mapping[str, Any]], certificate: str
) -> Mapping[str, Any]:
    files = HeadFiles.open(run.out)
    summaries = [
        {
            "sampling": proof["settings"]["sampling"],
            **{name: proof[name] for name in ("passed", "level", "rule", "settings", "seconds")},
        }
        for proof in proofs
    ]
    own = {**files.own, "proofs": summaries}
    _write(run, files, own, {CERTIFICATE: certificate})
    return own


def _add_table(own: dict[str, Any], report: dict[str, Any], table: AcceptanceTable) -> None:
    report["contexts"] = table.contexts
    for part, key in ((own, BY_RANK), (own, CALIBRATION), (report, "confidence_errors")):
        part.pop(key, None)
    if table.by_rank:
        own[BY_RANK] = table.by_rank
    calibration = calibrate(table.chains)
    if calibration is not None:
        report["confidence_errors"] = {"before": calibration.before, "after": calibration.after}
        if calibration.helps:
            own[CALIBRATION] = calibration.lines


def _write(
    run: DrafterRun, files: HeadFiles, own: Mapping[str, Any], others: Mapping[str, str] = NO_TEXTS
) -> None:
    texts = {**others, OWN: json.dumps(own, indent=2) + "\n", CARD: card_of(run.kind, own)}
    title = f"{run.kind} for {own['target']['name']}: acceptance length on held-out text"
    texts[PICTURE] = draw(own["report"]["curve_by_category"], title)
    write_head(run.out, files.config, files.tensors, texts)
