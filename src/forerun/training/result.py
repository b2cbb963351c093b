"""The result of a training: what forerun.json reports, the summary for people, and the model card."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from forerun.heads.files import BY_RANK, CALIBRATION
from forerun.report.chart import Curves, Line
from forerun.report.markdown import document
from forerun.report.result import Result
from forerun.report.svg import image
from forerun.report.table import Table
from forerun.training.loop import Spent
from forerun.training.settings import named

PICTURE = "curve.svg"
"""File beside the card with the plot of acceptance length over the training."""
FEW_STEPS = 500
"""Number of steps below which a drafter has hardly begun to learn."""
MEAN = "mean"
_BESIDE = (BY_RANK, CALIBRATION)

Curve = Sequence[tuple[int, Mapping[str, float]]]
"""Points of a curve: tokens trained on, and the acceptance length by category at that point."""


@dataclass(frozen=True)
class Validation:
    """A drafter at one point of its training.

    Args:
        progress: progress of the training.
        loss: loss of the last step.
        lengths: expected acceptance length on held-out text by category.
        positions: acceptance of each token of the draft by category.
    """

    progress: Spent
    loss: float
    lengths: Mapping[str, float]
    positions: Mapping[str, Sequence[float]]

    @property
    def mean_length(self) -> float:
        """Mean acceptance length over the categories."""
        return sum(self.lengths.values()) / len(self.lengths) if self.lengths else 1.0


@dataclass
class TrainingReport:
    """Figures of a training run.

    Args:
        conversations: number of conversations read, by use (trained on, held out, left out).
        weight_bytes: bytes of all tensors as written.
        trained_bytes: bytes of the trained tensors; the others are the target's.
        untrained: acceptance lengths before training.
        curve: the validations, in order.
        measured: what was measured of the best weights in the end, by its name in forerun.json.
    """

    conversations: Mapping[str, int] = field(default_factory=dict)
    weight_bytes: int = 0
    trained_bytes: int = 0
    untrained: Mapping[str, float] = field(default_factory=dict)
    curve: list[Validation] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> Validation:
        """The first of the best validations, whose weights are kept."""
        none = Validation(Spent(), 0.0, {}, {})
        return max(self.curve, key=lambda point: point.mean_length, default=none)

    @property
    def stale(self) -> int:
        """Number of validations since the best."""
        return len(self.curve) - 1 - self.curve.index(self.best) if self.curve else 0

    @property
    def tokens_per_second(self) -> float:
        """Speed between the last two validations."""
        before, now = ([Spent(), *(point.progress for point in self.curve)])[-2:]
        return (now.tokens - before.tokens) / max(now.seconds - before.seconds, 1e-9)

    def notes(self) -> dict[str, Any]:
        """The part of the report that a resumed run needs, in JSON's types."""
        curve = [asdict(point) for point in self.curve]
        kept = {"untrained": self.untrained, "curve": curve, "measured": self.measured}
        return dict(json.loads(json.dumps(kept)))

    def resume(self, notes: Mapping[str, Any]) -> None:
        """Take over what an earlier run has noted, if anything."""
        self.untrained = notes.get("untrained", {})
        self.measured = dict(notes.get("measured", {}))
        self.curve = [
            Validation(**{**point, "progress": Spent(**point["progress"])})
            for point in notes.get("curve", ())
        ]

    def as_dict(self) -> dict[str, Any]:
        """The content of forerun.json that was measured."""
        best, start = self.best, [(0, self.untrained)] if self.untrained else []
        curve = [(point.progress.tokens, point.lengths) for point in self.curve]
        report = {
            "lengths": best.lengths,
            "positions": best.positions,
            "untrained": self.untrained,
            "conversations": self.conversations,
            "weight_bytes": self.weight_bytes,
            "trained_bytes": self.trained_bytes,
            "curve": [
                (point.progress.seconds / 60, point.progress.tokens, point.mean_length)
                for point in self.curve
            ],
            "curve_by_category": [*start, *curve],
            **{name: own for name, own in self.measured.items() if name not in _BESIDE},
            **vars(best.progress),
        }
        beside = {name: self.measured[name] for name in _BESIDE if name in self.measured}
        return {"report": report, **beside}


def result_of(kind: str, out: str, own: Mapping[str, Any]) -> Result:
    """The result of a training for all writers.

    Args:
        kind: kind of the drafter, which is the name of the method that drafts with it.
        out: its directory.
        own: content of its forerun.json.
    """
    report, target = own["report"], own["target"]
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
    return f"{text}\n![Acceptance length over the tokens of the training]({PICTURE})\n"


def _effort(report: Mapping[str, Any]) -> str:
    minutes = report["seconds"] / 60
    return f"{report['steps']} steps, {report['tokens']} tokens and {minutes:.0f} minutes"


def _size(report: Mapping[str, Any]) -> str:
    whole, trained = (report[name] / 1e6 for name in ("weight_bytes", "trained_bytes"))
    return f"{whole:.1f} MB, of which {trained:.1f} MB were trained"


def _runs(own: Mapping[str, Any]) -> Iterator[str]:
    """Sentences about the real run."""
    for run in own["report"].get("real_run", {}).get("runs", ()):
        equal = f", {run['identical']} of {run['prompts']} answers equal to it"
        yield (
            f"a real run at temperature {run['temperature']:g}: acceptance length "
            f"{_length(run['mean_acceptance_length']) or '-'}, {run['speedup']:.2f} x plain decoding"
            f"{'' if run['identical'] is None else equal}"
        )


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


def _precision(name: str) -> str:
    return "as stored" if name == "stored" else f"in {name}"


def _length(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


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
