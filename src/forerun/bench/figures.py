"""Charts of a report, for its page."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.bench.settings import method_of
from forerun.bench.summary import SettingFigures, stages
from forerun.bench.verdict import Recommendation, shown
from forerun.report.chart import Bar, Bars, Curves, Line, Span, Spans
from forerun.report.result import Figure

# Methods that charts show, each at its best setting.
_METHODS = 6
_STAGES = ("prefill", "draft", "target", "verify", "host")


def figures(
    cells: Sequence[SettingFigures], verdicts: Sequence[Recommendation]
) -> dict[str, list[Figure]]:
    """Charts by temperature and batch size, of figures over all categories."""
    return {verdict.where.capitalize(): _place(cells, verdict) for verdict in verdicts}


def _place(cells: Sequence[SettingFigures], verdict: Recommendation) -> list[Figure]:
    """Charts of one temperature and batch size."""
    here = (verdict.temperature, verdict.batch)
    whole = [cell for cell in cells if (cell.temperature, cell.batch) == here]
    whole.sort(key=lambda cell: -cell.speedup.value)
    chosen = _chosen([cell for cell in whole if cell.by_row])
    made: list[Figure | None] = [
        Figure(
            "Speed-up over plain decoding",
            "Median over prompts of the ratio of tokens a second, with its 95 % interval. Right of the "
            "line is faster. Every run follows a run of plain decoding of the same prompt, which it is "
            "compared with; caches are emptied between runs.",
            Spans("speed-up by setting", "times plain decoding", list(map(_span, whole)), 1.0),
        )
    ]
    if chosen:
        made += [_acceptance(chosen), _stage_shares(chosen)]
    return [figure for figure in made if figure is not None]


def _chosen(whole: Sequence[SettingFigures]) -> list[SettingFigures]:
    """The best setting of each method."""
    best: dict[str, SettingFigures] = {}
    for cell in whole:
        best.setdefault(method_of(cell.setting), cell)
    return list(best.values())[:_METHODS]


def _span(cell: SettingFigures) -> Span:
    kind = "win" if cell.speedup.low > 1 else "lose" if cell.speedup.high < 1 else "even"
    interval = cell.speedup
    return Span(cell.setting, interval.low, interval.value, interval.high, shown(interval), kind)


def _acceptance(chosen: Sequence[SettingFigures]) -> Figure | None:
    lines = {
        cell.setting: Line(range(1, len(shares) + 1), shares)
        for cell in chosen
        if (shares := cell.acceptance_by_position)
    }
    if not lines:
        return None
    text = "Share of drafting rounds in which at least so many drafted tokens were accepted."
    chart = Curves(
        "acceptance by position",
        "position in the draft",
        {"": lines},
        y_label="accepted",
        percent=True,
    )
    return Figure("Acceptance by position", text, chart)


def _stage_shares(chosen: Sequence[SettingFigures]) -> Figure:
    plain = stages([side for cell in chosen for side in cell.plain])
    rows = [("plain decoding", plain), *((cell.setting, stages(cell.sides)) for cell in chosen)]
    made = [
        Bar(
            name,
            [parts.get(stage, 0.0) for stage in _STAGES],
            f"{sum(parts.values()):.2f} ms a token",
        )
        for name, parts in rows
    ]
    text = (
        "Milliseconds for each token that was emitted: running the prompt, drafting, the model's forwards, "
        "verifying, and the rest of the host's work."
    )
    return Figure("Where the time goes", text, Bars("stages", "ms a token", made, _STAGES))
