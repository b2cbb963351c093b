"""Charts of a report, for its page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from forerun.bench.report import BenchReport
from forerun.bench.rows import MeasuredPair, Side
from forerun.bench.settings import method_of
from forerun.bench.summary import SettingFigures, burst_sizes, gaps, stages
from forerun.bench.verdict import Recommendation, shown
from forerun.report.chart import Bar, Bars, Curves, Line, Span, Spans
from forerun.report.result import Figure

# Methods that charts show, each at its best setting.
_METHODS = 6
_STAGES = ("prefill", "draft", "target", "verify", "host")
_BURSTS = ("1 token", "2", "3", "4", "5 to 8", "more")
_EDGES = (1, 2, 3, 4, 8)


def figures(report: BenchReport) -> dict[str, list[Figure]]:
    """Charts by temperature and batch size."""
    return {verdict.where.capitalize(): _place(report, verdict) for verdict in report.verdicts}


def _place(report: BenchReport, verdict: Recommendation) -> list[Figure]:
    """Charts of one temperature and batch size."""
    here = (verdict.temperature, verdict.batch)
    whole = [cell for cell in report.whole if (cell.temperature, cell.batch) == here]
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
        made += [_acceptance(chosen), _stage_shares(chosen), _over_time(chosen)]
        made += [_bursts(chosen), _pauses(chosen)]
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


def _over_time(chosen: Sequence[SettingFigures]) -> Figure:
    """One prompt: that on which the best setting gained what it usually gains."""
    best = chosen[0]
    usual = min(best.rows, key=lambda row: abs(row.speedup - best.speedup.value))
    lines, place = {}, (usual.key.category, usual.key.prompts)
    for cell in chosen[:4]:
        row = next((r for r in cell.rows if (r.key.category, r.key.prompts) == place), None)
        if row is not None and row.side is not None:
            lines[cell.setting] = _arrivals(row.side, row)
    assert usual.plain is not None
    lines["plain decoding"] = _arrivals(usual.plain, usual)._replace(plain=True)
    text = (
        f"One request ({usual.key.category}, {usual.key.prompts[0]}), on which {best.setting} gained what it "
        "usually gains. Steps are rounds: several tokens come at once."
    )
    chart = Curves("tokens", "seconds", {"": lines}, y_label="tokens")
    return Figure("Tokens over time", text, chart)


def _arrivals(side: Side, row: MeasuredPair) -> Line:
    """The steps of the first request of a row."""
    requests = len(row.key.prompts)
    bursts = side.bursts if requests == 1 else side.bursts[: len(side.bursts) // requests]
    pauses = side.gaps[: max(0, len(bursts) - 1)]
    times = list(
        accumulate(pauses, lambda now, pause: now + pause / 1e3, initial=side.first or 0.0)
    )
    x, y = [0.0], [0.0]
    for time, total in zip(times, accumulate(bursts), strict=False):
        x += [time, time]
        y += [y[-1], float(total)]
    return Line(x, y)


def _bursts(chosen: Sequence[SettingFigures]) -> Figure:
    rows = []
    for cell in chosen:
        counts = [0.0] * len(_BURSTS)
        sizes = burst_sizes(cell.sides)
        for size, times in sizes.items():
            counts[sum(size > edge for edge in _EDGES)] += size * times
        total = sum(counts) or 1.0
        mean = total / (sizes.total() or 1)
        rows.append(
            Bar(cell.setting, [100 * count / total for count in counts], f"{mean:.2f} on average")
        )
    text = "How tokens arrive in a stream: shares of all tokens by how many came at once."
    return Figure("Burst sizes", text, Bars("bursts", "% of tokens", rows, _BURSTS))


def _pauses(chosen: Sequence[SettingFigures]) -> Figure | None:
    plain = gaps([side for cell in chosen for side in cell.plain])
    every = [("plain decoding", plain), *((cell.setting, gaps(cell.sides)) for cell in chosen)]
    rows = [
        Span(
            name,
            at["p50"],
            at["p90"],
            at["p99"],
            f"{at['p50']:.1f} / {at['p90']:.1f} / {at['p99']:.1f}",
            "even",
        )
        for name, at in every
        if at
    ]
    if not rows:
        return None
    text = (
        "Between two arrivals of tokens in a stream: from the median to the 99th percentile, the mark "
        "at the 90th."
    )
    return Figure("Inter-token latency", text, Spans("inter-token latency", "ms", rows))
