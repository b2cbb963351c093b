"""Rows of the report: a figure, its goal, and whether it is reached."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.bench.peers.process import RemoteEngine
from forerun.errors import ConfigError
from forerun.report.markdown import heading, line


@dataclass(frozen=True)
class Figure:
    """One row.

    Args:
        group: 1 to 6.
        what: what was measured.
        value: the figure.
        goal: None for information only.
        at_most: whether the figure must not exceed the goal; otherwise it must reach it.
        unit: of both.
        detail: spread, settings, absolute figures.
    """

    group: int
    what: str
    value: float
    goal: float | None = None
    at_most: bool = False
    unit: str = "x"
    detail: str = ""

    @property
    def reached(self) -> bool | None:
        """None without a goal."""
        if self.goal is None:
            return None
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**vars(self), "reached": self.reached}

    def as_markdown(self) -> str:
        """One line of the table."""
        sign = "≤" if self.at_most else "≥"
        goal = "–" if self.goal is None else f"{sign} {_shown(self.goal)} {self.unit}"
        verdict = {True: "yes", False: "**no**", None: "–"}[self.reached]
        return line([self.what, f"{_shown(self.value)} {self.unit}", goal, verdict, self.detail])


ROOT = Path(__file__).parents[2]


def local(name: str, maker: str, **options: Any) -> RemoteEngine:
    """An engine of this folder in a process of its own; `maker` is `module:function`."""
    return RemoteEngine(name, maker=maker, paths=(str(ROOT),), **options)


TABLE_HEAD = heading(["what", "measured", "goal", "reached", ""], "lllll")


@dataclass
class Setting:
    """How to measure, and what is collected beside the figures.

    Args:
        threads: of every engine.
        quick: fewer rounds, prompts and models.
        work: where checkpoints and conversions are kept between runs.
        peers_python: the interpreter that has the peers; None: this one.
        progress: called with a line before each part.
        notes: what was left out, and why.
        curves: milliseconds over tokens by engine, for the plot.
    """

    threads: int
    quick: bool
    work: Path
    peers_python: str | None = None
    progress: Callable[[str], None] = lambda _: None
    notes: list[str] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)

    def pick(self, full: int, quick: int) -> int:
        """The number for a full or a quick run."""
        return quick if self.quick else full

    def ours(self, model: str, precision: str, draft: str | None = None) -> RemoteEngine:
        """Our own engine."""
        options = {"model": model, "precision": precision, "draft": draft}
        return local("forerun", "benchmarks.ours:Ours", threads=self.threads, **options)

    def peers(
        self, names: Iterable[str], model: str, precision: str, draft: str | None = None
    ) -> dict[str, RemoteEngine]:
        """The peers that can be loaded and decode; a note on each of the others."""
        peers = {}
        for name in names:
            self.progress(f"loading {name} {precision}")
            try:
                peers[name] = _tried(self.peer(name, model, precision, draft))
            except ConfigError as error:
                self.note(f"without {name} in {precision}: {error}")
        return peers

    def peer(self, name: str, model: str, precision: str, draft: str | None = None) -> RemoteEngine:
        """A peer as it is loaded.

        Raises:
            ConfigError: if it cannot be.
        """
        return RemoteEngine(
            name,
            name=name,
            python=self.peers_python,
            checkpoint_dir=model,
            precision=precision,
            threads=self.threads,
            draft_dir=draft,
            cache_dir=str(self.work / "peers"),
        )

    def note(self, text: str) -> None:
        """Record once what was left out."""
        if text not in self.notes:
            self.notes.append(text)


def _tried(peer: RemoteEngine) -> RemoteEngine:
    """A peer that decodes: some load a model and end with the first tokens."""
    try:
        peer.call("generate", prompt_ids=list(range(1, 33)), num_tokens=2)
    except ConfigError:
        peer.close()
        raise
    return peer


def spread(values: Sequence[float]) -> str:
    """The middle half of the values."""
    low, high = (_quantile(values, share) for share in (0.25, 0.75))
    return f"middle half {_shown(low)}–{_shown(high)} of {len(values)}"


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, str]:
    """The median over turns of their seconds over ours, and its spread."""
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    return statistics.median(ratios), spread(ratios)


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def _shown(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
