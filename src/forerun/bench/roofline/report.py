"""The result of `forerun roofline` for people: answers in words, tables, and the plot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from forerun.bench.roofline.rows import DRAFT, FREE_UP_TO, TARGET, Forward, Roofline
from forerun.costs.hardware import GB
from forerun.files import size_text
from forerun.report.chart import Dots, Roof
from forerun.report.result import Result
from forerun.report.table import Cell, Mark, Table, long_table

if TYPE_CHECKING:
    import torch

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
