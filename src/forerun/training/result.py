"""The result of a training: what forerun.json reports, the summary for people, and the model card."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forerun.report.chart import Curves, Line
from forerun.report.markdown import document
from forerun.report.result import Result
from forerun.report.svg import image
from forerun.report.table import Table
from forerun.training.loop import Spent
from forerun.training.settings import named

PICTURE = "curve.svg"
"""File beside the card with the plot of acceptance length over the training."""
CERTIFICATE = "certificate.md"
"""File beside the card with the certificates of the proofs."""
FEW_STEPS = 500
"""Number of steps below which a drafter has hardly begun to learn."""
MEAN = "mean"
_DEFECT_FOUND = 1

Curve = Sequence[tuple[int, Mapping[str, float]]]
"""Points of a curve: tokens trained on, and the acceptance length by category at that point."""


@dataclass
class TrainingReport:
    """Figures of a training run, as in `forerun.json`.

    Args:
        lengths: expected acceptance length on held-out text by category, at the best validation.
        positions: acceptance of each token of the draft by category.
        untrained: acceptance lengths before training.
        progress: progress of the training.
        conversations: number of conversations read, by use (trained on, held out, left out).
        weight_bytes: bytes of all tensors as written.
        trained_bytes: bytes of the trained tensors; the others are the target's.
        curve: points of the mean acceptance length: minutes of training, tokens, length.
        curve_by_category: points of the plot; empty before the end.
        contexts: acceptance lengths by tokens before the draft, by temperature; empty before the end.
        confidence_errors: errors of the confidence `before` and `after` its calibration, by position;
            empty for a head without confidence.
        real_run: result of `real_run.real_runs`; empty without one.
    """

    lengths: Mapping[str, float] = field(default_factory=dict)
    positions: Mapping[str, Sequence[float]] = field(default_factory=dict)
    untrained: Mapping[str, float] = field(default_factory=dict)
    progress: Spent = field(default_factory=Spent)
    conversations: Mapping[str, int] = field(default_factory=dict)
    weight_bytes: int = 0
    trained_bytes: int = 0
    curve: list[tuple[float, int, float]] = field(default_factory=list)
    curve_by_category: Curve = ()
    contexts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    confidence_errors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    real_run: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The report as a flat dictionary, ready for JSON, without what was not measured."""
        later = ("curve_by_category", "contexts", "confidence_errors", "real_run")
        kept = {name: own for name, own in vars(self).items() if own or name not in later}
        del kept["progress"]
        return {**kept, **vars(self.progress)}

    def forget_measurements(self) -> None:
        """Forget what was measured of the weights before."""
        self.curve_by_category, self.contexts = (), {}
        self.confidence_errors, self.real_run = {}, {}

    @property
    def mean_length(self) -> float:
        return sum(self.lengths.values()) / len(self.lengths) if self.lengths else 1.0


def result_of(kind: str, out: str, own: Mapping[str, Any]) -> Result:
    """The result of a training for all writers.

    Args:
        kind: kind of the drafter, which is the name of the method that drafts with it.
        out: its directory.
        own: content of its forerun.json.
    """
    report, target, proofs = own["report"], own["target"], own.get("proofs", [])
    lengths, steps = report["lengths"], report["steps"]
    few = f"{steps} steps are too few to judge {named(kind)} by; give more --minutes, or more data"
    names = ("lengths", "conversations", "weight_bytes", "trained_bytes", "curve")
    content = {
        "output": out,
        "acceptance_length": sum(lengths.values()) / len(lengths) if lengths else 1.0,
        "lengths": lengths,
        "untrained_lengths": report["untrained"],
        "contexts": report.get("contexts", {}),
        "real_run": report.get("real_run", {}),
        "proofs": proofs,
        **{name: report[name] for name in names[1:]},
        **{name: report[name] for name in ("tokens", "seconds", "steps")},
    }
    return Result(
        content=content,
        answers=[f"{out}: {named(kind)} after {_effort(report)}; {_size(report)}", *_runs(own)],
        tables=[*_tables(own)],
        notes=[few] if steps < FEW_STEPS else [],
        described=_described(own),
        title=f"{named(kind).capitalize()} for {target['name']}",
        exit_code=0 if all(proof["passed"] for proof in proofs) else _DEFECT_FOUND,
        command=f"forerun generate --model {target['name']} --draft-model {out} --prompt ...",
    )


def card_of(kind: str, own: Mapping[str, Any]) -> str:
    """The text of README.md; see `result_of` for the arguments."""
    target, command = own["target"], "draft" if kind == "draft_model" else kind
    about = (
        f"it drafts for {target['name']} ({target['num_layers']} layers of {target['hidden_size']}, "
        f"{target['vocab_size']} tokens), whose own answers it was trained on by `forerun train {command}`"
    )
    text = document(replace(result_of(kind, "THIS_DIRECTORY", own), answers=[about]))
    if own["report"].get("curve_by_category"):
        text += f"\n![Acceptance length over the tokens of the training]({PICTURE})\n"
    return text


def _effort(report: Mapping[str, Any]) -> str:
    minutes = report["seconds"] / 60
    return f"{report['steps']} steps, {report['tokens']} tokens and {minutes:.0f} minutes"


def _size(report: Mapping[str, Any]) -> str:
    whole, trained = (report[name] / 1e6 for name in ("weight_bytes", "trained_bytes"))
    return f"{whole:.1f} MB, of which {trained:.1f} MB were trained"


def _runs(own: Mapping[str, Any]) -> Iterator[str]:
    """Sentences about the real run and the proofs."""
    for run in own["report"].get("real_run", {}).get("runs", ()):
        equal = f", {run['identical']} of {run['prompts']} answers equal to it"
        yield (
            f"a real run at temperature {run['temperature']:g}: acceptance length "
            f"{_length(run['mean_acceptance_length']) or '-'}, {run['speedup']:.2f} x plain decoding"
            f"{'' if run['identical'] is None else equal}"
        )
    for proof in own.get("proofs", ()):
        found = "no defect found" if proof["passed"] else "not exact"
        yield f"proof at {_drawn(proof)}: {found}"


def _tables(own: Mapping[str, Any]) -> Iterator[Table]:
    report = own["report"]
    untrained, positions = report["untrained"], report["positions"]
    rows = [
        (
            category,
            f"{length:.2f}",
            _length(untrained.get(category)),
            " ".join(f"{share:.2f}" for share in positions[category]),
        )
        for category, length in report["lengths"].items()
    ]
    header = ("", "length", "untrained", "acceptance by position")
    yield Table.of("Acceptance length on held-out conversations", header, rows)
    contexts: Mapping[str, Mapping[str, float]] = report.get("contexts", {})
    if contexts:
        labels = list(dict.fromkeys(label for own in contexts.values() for label in own))
        lines = [
            [kind, *(_length(own.get(label)) for label in labels)] for kind, own in contexts.items()
        ]
        yield Table.of("Acceptance length by the tokens before the draft", ["", *labels], lines)
    if report.get("real_run"):
        yield _real_run(report["real_run"], report["lengths"])
    if own.get("proofs"):
        yield _proofs(own["proofs"])


def _real_run(report: Mapping[str, Any], lengths: Mapping[str, float]) -> Table:
    """Table that compares the engine's measurements with expectations."""
    rows = []
    for run in report["runs"]:
        kind = f"T={run['temperature']:g}"
        own = [length for name, length in lengths.items() if name.endswith(f", {kind}")]
        least, most = run["spread"]
        others = "".join(f", {count} {why}" for why, count in sorted(run["differences"].items()))
        equal = f"{run['identical']} of {run['prompts']}{others}"
        rows.append(
            (
                kind,
                _length(run["mean_acceptance_length"]),
                _length(sum(own) / len(own) if own else None),
                f"{run['speedup']:.2f} ({least:.2f} to {most:.2f})",
                "drawn" if run["identical"] is None else equal,
            )
        )
    about = (
        f"{report['runs'][0]['prompts']} held-out prompts, answered by the target "
        f"{_precision(report['precision'])} with at most {report['max_tokens']} tokens, with chains of "
        f"{report['num_speculative_tokens']} and plainly in turn; speed-ups are medians, with the least and "
        "the largest."
    )
    header = ("", "acceptance length", "expected", "speed-up", "equal to plain decoding")
    return Table.of("A real run", header, rows, notes=[about])


def _proofs(proofs: Sequence[Mapping[str, Any]]) -> Table:
    """Table of the results of `forerun prove`."""
    settings = proofs[0]["settings"]
    rows = [
        (_drawn(proof), proof["level"], "no defect found" if proof["passed"] else "**not exact**")
        for proof in proofs
    ]
    about = (
        f"What `forerun prove` found of these weights, with the target {_precision(settings['dtype'])}, on "
        f"{settings['num_prompts']} held-out prompts, with chains of "
        f"{settings['speculation']['num_speculative_tokens']} tokens and at least "
        f"{settings['effort']['num_tokens']} tokens for each of the statistics. [The certificate]"
        f"({CERTIFICATE}) has all settings and results."
    )
    return Table.of("Proof", ("sampling", "promise", "result"), rows, "lll", [about])


def _described(own: Mapping[str, Any]) -> dict[str, str]:
    """Data, recipe and figures of a training, in words."""
    report, recipe = own["report"], own["recipe"]
    begun, vocabulary = (
        recipe.get("begun_with_tokens"),
        recipe["settings"].get("draft_vocab_size"),
    )
    before = f" after those of a head of {begun} tokens that it began with" if begun else ""
    limit = f"; it can draft {vocabulary} tokens" if vocabulary else ""
    described = {
        "data": ", ".join(
            f"{count} conversations {use}" for use, count in report["conversations"].items()
        ),
        "recipe": f"{_effort(report)}{before}{limit}; it has {_size(report)}. All settings are in "
        "`forerun.json`.",
        "acceptance length": "expected tokens of a round, the bonus token included, computed from the "
        "target's and the drafter's own probabilities; greedy where the answer was (T=0).",
    }
    if report.get("confidence_errors"):
        before, after = (sum(own) / len(own) for own in report["confidence_errors"].values())
        use = "corrected by position, as in `forerun.json`" if after < before else "left as it is"
        described["confidence"] = (
            f"{before:.1%} off as published and {after:.1%} corrected (expected calibration error over the "
            f"positions); {use}."
        )
    return described


def _drawn(proof: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in proof["sampling"].items())


def _precision(name: str) -> str:
    return "as stored" if name == "stored" else f"in {name}"


def _length(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def read_curve(log: Path, untrained: Mapping[str, float]) -> list[tuple[int, dict[str, float]]]:
    """Read the validations of a training from its log, starting with the untrained drafter.

    Args:
        log: file written by `Trainer.log`; a missing file counts as empty.
        untrained: acceptance lengths before the first step.
    """
    points = [(0, dict(untrained))] if untrained else []
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    for line in lines:
        # Ignore a line that was cut off.
        with suppress(ValueError):
            row = json.loads(line)
            if "lengths" in row:
                points.append((row["tokens"], row["lengths"]))
    return points


def draw(curve: Curve, title: str) -> str:
    """Draw a line for each category, and one for their mean, as SVG."""
    points: dict[str, list[tuple[int, float]]] = {}
    for tokens, lengths in curve or [(0, {})]:
        mean = sum(lengths.values()) / len(lengths) if lengths else 1.0
        for name, length in {MEAN: mean, **lengths}.items():
            points.setdefault(name, []).append((tokens, length))
    lines = {
        f"{name} {own[-1][1]:.2f}": Line(
            [tokens for tokens, _ in own], [length for _, length in own], plain=name == MEAN
        )
        for name, own in points.items()
    }
    return image(Curves(title, "tokens", {"": lines}, y_label="acceptance length", lowest=1.0))
