"""Measurements of a trained drafter on held-out text, written beside its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forerun.heads.files import BY_RANK, CALIBRATION, HeadFiles
from forerun.training.calibration import calibrate
from forerun.training.drafter_run import WORK, DrafterRun
from forerun.training.real_run import real_runs
from forerun.training.result import CERTIFICATE, read_curve
from forerun.training.settings import FinishSettings
from forerun.training.untrained import take_weights

# Number of siblings whose acceptance is measured; trees rarely have more.
RANKS = 8


def finish(run: DrafterRun, settings: FinishSettings | None = None) -> Mapping[str, Any]:
    """Measure the drafter that a run has written, and add the results to its forerun.json and card.

    Args:
        run: a run that has ended; its module is set to the best weights, which need not be the last.
        settings: measurements to make.

    Returns:
        The content of forerun.json.

    Raises:
        CheckpointError: if it cannot be written; the earlier files then stay.
        TrainingError: if another run works in the directory.
    """
    settings, report = settings or FinishSettings(), run.report
    with run.locked():
        take_weights(run.head, HeadFiles.open(run.out))
        # The curve includes validations after the best one.
        report.curve_by_category = read_curve(run.out / WORK / "state.jsonl", report.untrained)
        table = run.evaluate(RANKS)
        report.contexts = table.contexts
        calibration = calibrate(table.chains)
        report.confidence_errors = {}
        for name in (BY_RANK, CALIBRATION):
            run.measured.pop(name, None)
        if table.by_rank:
            run.measured[BY_RANK] = table.by_rank
        if calibration is not None:
            report.confidence_errors = {"before": calibration.before, "after": calibration.after}
            if calibration.helps:
                run.measured[CALIBRATION] = calibration.lines
        own = run.write()
        if settings.real_run:
            report.real_run = real_runs(run, settings.real_run_prompts, settings.real_run_tokens)
            own = run.write()
        run.remember()
        return own


def add_proofs(
    run: DrafterRun, proofs: Sequence[Mapping[str, Any]], certificate: str
) -> Mapping[str, Any]:
    """Write the proofs of a drafter beside its weights, and into its card.

    Args:
        run: a run that `finish` has measured.
        proofs: objects as printed by `forerun prove --json`.
        certificate: document with all certificates.

    Returns:
        The content of forerun.json, with the settings and the outcome of each proof.

    Raises:
        CheckpointError: if it cannot be written; the earlier files then stay.
        TrainingError: if another run works in the directory.
    """
    with run.locked():
        run.measured["proofs"] = [
            {
                "sampling": proof["settings"]["sampling"],
                **{
                    name: proof[name] for name in ("passed", "level", "rule", "settings", "seconds")
                },
            }
            for proof in proofs
        ]
        own = run.write({CERTIFICATE: certificate})
        run.remember()
        return own
