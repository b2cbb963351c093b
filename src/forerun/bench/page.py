"""A report as one page with charts, which loads nothing: readable in the dark and on paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from itertools import accumulate

from forerun.bench.report import Report
from forerun.bench.rows import Row, Side
from forerun.bench.settings import method_of
from forerun.bench.summary import ALL, Cell, burst_sizes, gaps, stages
from forerun.bench.tables import tables
from forerun.bench.verdict import Verdict, shown
from forerun.report.chart import Bar, Bars, Curves, Line, Span, Spans
from forerun.report.html import table_html
from forerun.report.svg import style, svg
from forerun.report.table import Cell as TableCell
from forerun.report.table import Table

# Methods that charts show, each at its best setting.
_METHODS = 6
_STAGES = ("prefill", "draft", "target", "verify", "host")
_BURSTS = ("1 token", "2", "3", "4", "5 to 8", "more")
_EDGES = (1, 2, 3, 4, 8)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>forerun bench: {title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def page(report: Report) -> str:
    """The whole page."""
    sheet = style() + (resources.files("forerun.bench") / "page.css").read_text("utf-8")
    parts = [f"<h1>forerun bench <span>{escape(report.model)}</span></h1>", _verdict(report)]
    for verdict in report.verdicts:
        parts.append(_place(report, verdict))
    parts.append(_how(report))
    return _PAGE.format(title=escape(report.model), style=sheet, body="\n".join(parts))


def _verdict(report: Report) -> str:
    blocks = [f'<p class="defect">{_words(text)}.</p>' for text in report.defects]
    for verdict in report.verdicts:
        details = "".join(f"<li>{_words(text)}</li>" for text in verdict.details)
        blocks.append(
            f'<p class="where">{escape(verdict.where)}</p><p class="advice">{_words(verdict.advice)}</p>'
            f"<ul>{details}</ul>"
        )
    blocks += [f"<p>{_words(text)}.</p>" for text in report.beside_peers]
    return f'<section class="verdict">{"".join(blocks)}</section>'


def _words(text: str) -> str:
    """A sentence whose numbers keep their `x`."""
    return re.sub(r"(\d) x\b", r"\1&nbsp;x", escape(text))


def _place(report: Report, verdict: Verdict) -> str:
    """Everything about one temperature and batch size."""
    here = (verdict.temperature, verdict.batch)
    cells = [cell for cell in report.cells if (cell.temperature, cell.batch) == here]
    whole = sorted((cell for cell in cells if cell.category == ALL), key=lambda c: -c.speedup.value)
    chosen = _chosen([cell for cell in whole if cell.by_row])
    figures = [
        _figure(
            "Speed-up over plain decoding",
            "Median over prompts of the ratio of tokens a second, with its 95 % interval. Right of the "
            "line is faster.",
            svg(Spans("speed-up by setting", "times plain decoding", list(map(_span, whole)), 1.0)),
        ),
        _by_category(cells, whole),
    ]
    if chosen:
        figures += [_acceptance(chosen), _stage_shares(chosen), _over_time(chosen)]
        figures += [_bursts(chosen), _pauses(chosen)]
    return f"<h2>{escape(verdict.where.capitalize())}</h2>\n" + "\n".join(filter(None, figures))


def _chosen(whole: Sequence[Cell]) -> list[Cell]:
    """The best setting of each method."""
    best: dict[str, Cell] = {}
    for cell in whole:
        best.setdefault(method_of(cell.setting), cell)
    return list(best.values())[:_METHODS]


def _span(cell: Cell) -> Span:
    kind = "win" if cell.speedup.low > 1 else "lose" if cell.speedup.high < 1 else "even"
    interval = cell.speedup
    return Span(cell.setting, interval.low, interval.value, interval.high, shown(interval), kind)


def _by_category(cells: Sequence[Cell], whole: Sequence[Cell]) -> str:
    categories = list(dict.fromkeys(cell.category for cell in cells if cell.category != ALL))
    if not categories:
        return ""
    parts = {(cell.setting, cell.category): cell for cell in cells}
    names = (*categories, ALL)
    lines: list[list[TableCell | str]] = [
        [cell.setting, *(_heat(parts.get((cell.setting, name))) for name in names)]
        for cell in whole
    ]
    table = Table.of("", ["", *(name.replace("_", " ") for name in names)], lines)
    text = "The same by category. Bold: the whole interval is above 1; in brackets: it is below."
    return _figure("Speed-up by category", text, table_html(table))


def _heat(cell: Cell | None) -> TableCell:
    if cell is None:
        return TableCell("–")
    text, several = f"{cell.speedup.value:.2f}", len(cell.rows) > 1
    text = f"({text})" if several and cell.speedup.high < 1 else text
    style = "bold" if several and cell.speedup.low > 1 else ""
    return TableCell(text, style=style, heat=cell.speedup.value)


def _acceptance(chosen: Sequence[Cell]) -> str:
    lines = {
        cell.setting: Line(range(1, len(shares) + 1), shares)
        for cell in chosen
        if (shares := cell.acceptance_by_position)
    }
    if not lines:
        return ""
    text = "Share of drafting rounds in which at least so many drafted tokens were accepted."
    chart = Curves(
        "acceptance by position",
        "position in the draft",
        {"": lines},
        y_label="accepted",
        percent=True,
    )
    return _figure("Acceptance by position", text, svg(chart))


def _stage_shares(chosen: Sequence[Cell]) -> str:
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
    return _figure("Where the time goes", text, svg(Bars("stages", "ms a token", made, _STAGES)))


def _over_time(chosen: Sequence[Cell]) -> str:
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
    return _figure("Tokens over time", text, svg(chart))


def _arrivals(side: Side, row: Row) -> Line:
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


def _bursts(chosen: Sequence[Cell]) -> str:
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
    return _figure("Burst sizes", text, svg(Bars("bursts", "% of tokens", rows, _BURSTS)))


def _pauses(chosen: Sequence[Cell]) -> str:
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
        return ""
    text = (
        "Between two arrivals of tokens in a stream: from the median to the 99th percentile, the mark "
        "at the 90th."
    )
    return _figure("Inter-token latency", text, svg(Spans("inter-token latency", "ms", rows)))


def _how(report: Report) -> str:
    said = (report.closeness, *report.remarks)
    items = [f"<li>{escape(text)}</li>" for text in said if text]
    items += [
        f"<li><b>{escape(name)}</b> {escape(text)}</li>"
        for name, text in [*report.facts.items(), *report.engines.items()]
    ]
    made = "".join(map(_table, tables(report, by_category=False)))
    return (
        f"<h2>All figures</h2>{made}<h2>How it was measured</h2><p>Every run of a setting follows a run of "
        "plain decoding of the same prompt, which it is compared with; caches are emptied between runs.</p>"
        f"<ul>{''.join(items)}</ul><pre>{escape(report.command)}</pre>"
    )


def _table(table: Table) -> str:
    return f"<h3>{escape(table.title)}</h3><div class='wide'>{table_html(table)}</div>"


def _figure(title: str, text: str, content: str) -> str:
    return f"<figure><h3>{escape(title)}</h3><p>{escape(text)}</p><div class='wide'>{content}</div></figure>"
