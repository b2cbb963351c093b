"""Forwards of models below the limits of a machine, and the result of `forerun roofline` that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from forerun.costs.forwards import Limits, Traffic
from forerun.costs.hardware import GB
from forerun.costs.shapes import ModelShape
from forerun.files import size_text
from forerun.report.chart import Dots, Roof
from forerun.report.result import Result
from forerun.report.table import Cell, Mark, Table, long_table

if TYPE_CHECKING:
    import torch

FREE_UP_TO = 1.2
"""Checking is as good as free while it takes at most this many times a plain forward: a round that checks
one token or more for that pays if the first is accepted one time in five, and two runs on a shared
machine may differ by half of it."""
TARGET, DRAFT = "target", "draft"


@dataclass(frozen=True)
class Forward:
    """A forward of `n` tokens of one request.

    Args:
        role: target or draft.
        model, precision, n, context: of the forward.
        bytes, flops: that it reads and computes.
        intensity: FLOP a byte.
        bandwidth, peak: of the roof above it, in bytes and FLOP a second.
        bound: memory or arithmetic: what takes longer.
        predicted_seconds, predicted_ratio: by the roofline: the time, and that over one token's.
        seconds: measured: the median over turns.
        ratio: the median over turns of the time over that of one token just before.
        share_of_bandwidth: of the rate at which the same turn read as many bytes; the median.
        share_of_peak: of the multiply-adds of the same turn; the median.
    """

    role: str
    model: str
    precision: str
    n: int
    context: int
    bytes: float
    flops: float
    intensity: float
    bandwidth: float
    peak: float
    bound: str
    predicted_seconds: float
    predicted_ratio: float
    seconds: float
    ratio: float
    share_of_bandwidth: float
    share_of_peak: float


@dataclass(frozen=True)
class Turn:
    """Times of forwards by their tokens, as they are and over that of one token just before, and the
    limits of the same moment."""

    seconds: dict[int, float]
    ratios: dict[int, float]
    limits: Limits


@dataclass(frozen=True)
class PlacedModel:
    """A model whose forwards are placed below the roof.

    Args:
        role: target or draft.
        name, precision: of the model.
        traffic: of its forwards.
    """

    role: str
    name: str
    precision: str
    traffic: Traffic

    def row(self, n: int, context: int, limits: Limits, turns: Sequence[Turn]) -> Forward:
        """A forward of `n` tokens after `context` others."""
        work = self.traffic.alone(n, context)
        total = work[0] + work[1]
        read, flops = float(total.bytes_moved), float(total.flops)
        predicted = float(limits.seconds(*work))
        alone = float(limits.seconds(*self.traffic.alone(1, context)))
        seconds = [turn.seconds[n] for turn in turns]
        rates = [(turn.limits, time) for turn, time in zip(turns, seconds, strict=True)]
        return Forward(
            role=self.role,
            model=self.name,
            precision=self.precision,
            n=n,
            context=context,
            bytes=read,
            flops=flops,
            intensity=flops / read,
            bandwidth=limits.bandwidth,
            peak=limits.peak,
            bound="memory" if flops / read < limits.ridge_point else "arithmetic",
            predicted_seconds=predicted,
            predicted_ratio=predicted / alone,
            seconds=median(seconds),
            ratio=median(turn.ratios[n] for turn in turns),
            share_of_bandwidth=median(read / time / now.bandwidth for now, time in rates),
            share_of_peak=median(flops / time / now.peak for now, time in rates),
        )


def free_tokens(rows: Sequence[Forward], *, predicted: bool = False) -> int:
    """The most tokens that are checked for at most FREE_UP_TO times the time of one, with all fewer ones.

    Args:
        rows: of one model and context, by rising tokens.
        predicted: by the roofline, not as measured.
    """
    most = 1
    for row in rows:
        if (row.predicted_ratio if predicted else row.ratio) > FREE_UP_TO:
            break
        most = row.n
    return most


def experts_note(shape: ModelShape, counts: Sequence[int]) -> list[str]:
    """A sentence on how many experts forwards of several tokens read; none for a dense model."""
    if not shape.num_experts:
        return []
    read = ", ".join(f"{float(shape.experts_read(n)):.0f}" for n in counts)
    return [
        f"A token calls {shape.experts_per_token} of the {shape.num_experts} experts of a layer: "
        f"forwards of {', '.join(map(str, counts))} tokens read up to {read} of them."
    ]


@dataclass(frozen=True)
class Roofline:
    """Forwards and the limits above them.

    Args:
        hardware: name of the machine.
        rows: of the target, then of the draft, by context and tokens.
        facts: what else applies to all rows, ready for JSON.
        draft_in_round: measured seconds of a token of the draft right after the target has run.
        notes: sentences for people.
    """

    hardware: str
    rows: Sequence[Forward]
    facts: Mapping[str, Any] = field(default_factory=dict)
    draft_in_round: float | None = None
    notes: Sequence[str] = ()

    @property
    def limits(self) -> Limits:
        """Limits of the target's forwards."""
        return Limits(self.rows[0].bandwidth, self.rows[0].peak)

    @property
    def peaks(self) -> dict[str, float]:
        """FLOP a second by precision, the target's first."""
        return {row.precision: row.peak for row in reversed(self.rows)}

    def of(self, role: str) -> dict[int, list[Forward]]:
        """Rows of target or draft by context."""
        rows = [row for row in self.rows if row.role == role]
        return {
            at: [row for row in rows if row.context == at] for at in {r.context: 0 for r in rows}
        }

    @property
    def free(self) -> list[dict[str, int]]:
        """By context, the most tokens that are checked for free."""
        return [
            {
                "context": context,
                "tokens": free_tokens(rows),
                "predicted_tokens": free_tokens(rows, predicted=True),
            }
            for context, rows in self.of(TARGET).items()
        ]

    def seconds(self, row: Forward) -> float:
        """Seconds of a forward: one token's seconds times the paired ratio."""
        return self.of(row.role)[row.context][0].seconds * row.ratio

    def as_facts(self) -> dict[str, Any]:
        """All fields but the rows, as JSON values."""
        return {
            "machine": self.hardware,
            "limits": {
                "bandwidth_bytes_per_second": self.limits.bandwidth,
                "peak_flops": self.limits.peak,
                "ridge_point": self.limits.ridge_point,
            },
            "peaks_flops": self.peaks,
            **self.facts,
            "free": self.free,
            "draft_seconds_in_round": self.draft_in_round,
        }


_LABELLED = (2, 4, 8, 16, 32, 64)
_TOLD = (4, 8, 16, 64)


def report_of(roofline: Roofline, device: torch.device | None = None) -> Result:
    """The result of the command.

    Args:
        device: of the model that was run, if any.
    """
    return Result(
        mode="measured",
        rows=[asdict(row) for row in roofline.rows],
        tables=list(_tables(roofline)),
        charts=[roof(roofline)],
        facts=roofline.as_facts(),
        notes=roofline.notes,
        answers=list(_answers(roofline)),
        device=device,
    )


def _answers(roofline: Roofline) -> Iterator[str]:
    first = roofline.rows[0]
    ridge = roofline.limits.ridge_point
    reads = f"reading its {size_text(first.bytes)} at {_rate(first.bandwidth)}"
    what = reads if first.bound == "memory" else "its arithmetic at the instruction's peak"
    side = "below" if first.bound == "memory" else "above"
    yield (
        f"Decoding {first.model} ({first.precision}) on {roofline.hardware} computes "
        f"{_short(first.intensity)} FLOP a byte, {side} the ridge at {_short(ridge)}: {first.bound} "
        f"bounds it. A token takes {_time(first.seconds)}; {what} takes "
        f"{_time(first.predicted_seconds)}."
    )
    yield _free(roofline)
    if roofline.draft_in_round is not None:
        draft = next(iter(roofline.of(DRAFT).values()))[0]
        yield (
            f"A token of the draft {draft.model} takes {_time(roofline.draft_in_round)} right after the "
            f"target has run, {_short(roofline.draft_in_round / first.seconds)} of a plain one."
        )


def _free(roofline: Roofline) -> str:
    """Up to how many tokens checking is free, by context."""
    targets = roofline.of(TARGET)
    context, rows = next(iter(targets.items()))
    said: dict[str, list[str]] = {}
    for fact in roofline.free:
        said.setdefault(_up_to(fact["tokens"]), []).append(str(fact["context"]))
    texts = [f"{text} at a context of {' and '.join(where)}" for text, where in said.items()]
    text = f"Checking is as good as free (at most {FREE_UP_TO:g} x one token's time) {' and '.join(texts)}"
    text += f"; by the roofline {_up_to(roofline.free[0]['predicted_tokens'])}"
    dear = [row for row in rows if row.n in _TOLD and row.ratio > FREE_UP_TO]
    if dear:
        costs = ", ".join(f"{row.n} tokens cost {row.ratio:.1f} x" for row in dear)
        text += f". At {context}, {costs}"
    return text + "."


def _up_to(tokens: int) -> str:
    return "for no second token" if tokens == 1 else f"up to {tokens} tokens"


def _tables(roofline: Roofline) -> Iterator[Table]:
    columns: dict[str, Callable[[Mapping[str, Any]], Cell | str]] = {
        "forward": lambda row: _forward(row["role"], row["n"]),
        "FLOP/byte": lambda row: _short(row["intensity"]),
        "bound by": lambda row: str(row["bound"]),
        "roofline ms": lambda row: f"{1e3 * row['predicted_seconds']:.3f}",
        "measured ms": lambda row: f"{1e3 * row['seconds']:.3f}",
        "of reads": lambda row: f"{row['share_of_bandwidth']:.0%}",
        "of peak": lambda row: f"{row['share_of_peak']:.0%}",
        "roofline x": lambda row: f"{row['predicted_ratio']:.2f}",
    }
    free = {fact["context"]: fact["tokens"] for fact in roofline.free}

    def rise(row: Mapping[str, Any]) -> Cell:
        held = row["role"] == TARGET and 1 < row["n"] <= free[row["context"]]
        return Cell(f"{row['ratio']:.2f}", Mark.FREE if held else Mark.NONE)

    columns["x one token"] = rise
    for context in free:
        rows = [asdict(row) for row in roofline.rows if row.context == context]
        yield long_table(f"Forwards at a context of {context}", columns, rows, ("role",))


def roof(roofline: Roofline) -> Roof:
    """Decoding, checking and drafting at the smallest context, under the machine's limits."""
    least = min(row.context for row in roofline.rows)
    rows = [row for row in roofline.rows if row.context == least]
    free = roofline.free[0]["tokens"]
    targets = [row for row in rows if row.role == TARGET]
    dots = {
        "decode": [row for row in targets if row.n == 1],
        f"verify n tokens, at most {FREE_UP_TO:g} x": [row for row in targets if 1 < row.n <= free],
        f"verify n tokens, more than {FREE_UP_TO:g} x": [row for row in targets if row.n > free],
        "draft": [row for row in rows if row.role == DRAFT],
    }
    first = roofline.rows[0]
    return Roof(
        title=f"{first.model} ({first.precision}) on {roofline.hardware}",
        slopes={"memory": roofline.limits.bandwidth},
        ceilings=roofline.peaks,
        ridge=(roofline.limits.ridge_point, roofline.limits.peak),
        dots={name: _dots(roofline, forwards) for name, forwards in dots.items()},
    )


def _dots(roofline: Roofline, rows: Sequence[Forward]) -> Dots:
    labels = [str(row.n) if row.n in _LABELLED else "" for row in rows]
    rates = [row.flops / roofline.seconds(row) for row in rows]
    return Dots([row.intensity for row in rows], rates, labels)


def _forward(role: str, n: int) -> str:
    if role == DRAFT:
        return "draft"
    return "decode" if n == 1 else f"verify {n}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _rate(bandwidth: float) -> str:
    return f"{bandwidth / GB:.3g} GB/s"
