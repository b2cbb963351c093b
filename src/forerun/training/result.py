"""The result of a training: what forerun.json reports, the summary for people, and the model card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from forerun.report.markdown import document
from forerun.report.result import Result
from forerun.report.table import Table
from forerun.training.loop import Spent
from forerun.training.objective import mean_of
from forerun.training.settings import named

FEW_STEPS = 500
"""Number of steps below which a drafter has hardly begun to learn."""


@dataclass(frozen=True)
class Validation:
    """A drafter at one point of its training.

    Args:
        progress: progress of the training.
        loss: loss of the last step.
        lengths: expected acceptance length on held-out text by category.
        positions: acceptance of each token of the draft by category.
        by_rank: acceptance of siblings by depth and rank.
    """

    progress: Spent = field(default_factory=Spent)
    loss: float = 0.0
    lengths: Mapping[str, float] = field(default_factory=dict)
    positions: Mapping[str, Sequence[float]] = field(default_factory=dict)
    by_rank: Sequence[Sequence[float]] = ()

    @property
    def mean_length(self) -> float:
        """Mean acceptance length over the categories."""
        return mean_of(self.lengths)


@dataclass
class TrainingReport:
    """Figures of a training run.

    Args:
        conversations: number of conversations read, by use (trained on, held out, left out).
        weight_bytes: bytes of all tensors as written.
        trained_bytes: bytes of the trained tensors; the others are the target's.
        untrained: acceptance lengths before training.
        curve: the validations, in order.
    """

    conversations: Mapping[str, int]
    weight_bytes: int
    trained_bytes: int
    untrained: Mapping[str, float] = field(default_factory=dict)
    curve: list[Validation] = field(default_factory=list)

    @property
    def best(self) -> Validation:
        """The first of the best validations, whose weights are kept."""
        return max(self.curve, key=lambda point: point.mean_length, default=Validation())

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
        content = {"untrained": self.untrained, "curve": [asdict(point) for point in self.curve]}
        return dict(json.loads(json.dumps(content)))

    def resume(self, notes: Mapping[str, Any]) -> None:
        """Take over what an earlier run has noted, if anything."""
        self.untrained = notes.get("untrained", {})
        self.curve = [
            Validation(**{**point, "progress": Spent(**point["progress"])})
            for point in notes.get("curve", ())
        ]

    def as_dict(self) -> dict[str, Any]:
        """The report in forerun.json."""
        best = self.best
        return {
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
            **vars(best.progress),
        }


def result_of(kind: str, out: str, own: Mapping[str, Any]) -> Result:
    """The result of a training for all writers.

    Args:
        kind: kind of the drafter, which is the name of the method that drafts with it.
        out: its directory.
        own: content of its forerun.json.
    """
    report, target = own["report"], own["target"]["name"]
    steps = report["steps"]
    few = f"{steps} steps are too few to judge {named(kind)} by; give more --minutes, or more data"
    others = {
        name: value for name, value in report.items() if name not in ("positions", "untrained")
    }
    return Result(
        content={
            "output": out,
            "acceptance_length": mean_of(report["lengths"]),
            "untrained_lengths": report["untrained"],
            **others,
        },
        answers=[f"{out}: {named(kind)} after {_effort(report)}"],
        tables=[_table(report)],
        notes=[few] if steps < FEW_STEPS else [],
        described=_described(own),
        title=f"{named(kind).capitalize()} for {target}",
        command=f"forerun bench --model {target} --draft-model {out}",
    )


def card_of(kind: str, own: Mapping[str, Any]) -> str:
    """The text of README.md; see `result_of` for the arguments."""
    target, command = own["target"], "draft" if kind == "draft_model" else kind
    about = (
        f"it drafts for {target['name']} ({target['num_layers']} layers of {target['hidden_size']}, "
        f"{target['vocab_size']} tokens), whose own answers it was trained on by `forerun train {command}`"
    )
    return document(replace(result_of(kind, "THIS_DIRECTORY", own), answers=[about]))


def _effort(report: Mapping[str, Any]) -> str:
    whole, trained = (report[name] / 1e6 for name in ("weight_bytes", "trained_bytes"))
    return (
        f"{report['steps']} steps, {report['tokens']} tokens and {report['seconds'] / 60:.0f} minutes; "
        f"{whole:.1f} MB, of which {trained:.1f} MB were trained"
    )


def _table(report: Mapping[str, Any]) -> Table:
    rows = []
    for category, length in report["lengths"].items():
        before = report["untrained"].get(category)
        positions = " ".join(f"{share:.2f}" for share in report["positions"][category])
        rows.append(
            (category, f"{length:.2f}", "" if before is None else f"{before:.2f}", positions)
        )
    header = ("", "length", "untrained", "acceptance by position")
    return Table.of("Acceptance length on held-out conversations", header, rows)


def _described(own: Mapping[str, Any]) -> dict[str, str]:
    """Data and figures of a training, in words."""
    counts = own["report"]["conversations"].items()
    vocabulary = own["recipe"]["settings"].get("draft_vocab_size")
    limit = f"; it can draft {vocabulary} tokens" if vocabulary else ""
    return {
        "data": ", ".join(f"{count} conversations {use}" for use, count in counts),
        "recipe": f"{_effort(own['report'])}{limit}; settings are in `forerun.json`",
        "acceptance length": "expected tokens of a round, the bonus token included, computed from the "
        "target's and the drafter's own probabilities; greedy where the answer was (T=0).",
    }
