"""Results as one page with charts, which loads nothing: readable in the dark and on paper."""

from __future__ import annotations

import math
import re
from html import escape
from importlib import resources

from forerun.report.chart import Spans
from forerun.report.result import Figure, Result, Sentence, as_sentence
from forerun.report.table import Cell, Table

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
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


def page(result: Result) -> str:
    """A whole page: answers, figures, tables, and how it was measured."""
    heading = f"{escape(result.title)} <span>{escape(result.subject)}</span>"
    answers = "".join(_answer(as_sentence(answer)) for answer in result.answers)
    parts = [f"<h1>{heading}</h1>", f'<section class="verdict">{answers}</section>']
    parts += map(_figure, result.figures)
    parts += ["<h2>All figures</h2>", *map(_table, result.tables), "<h2>How it was measured</h2>"]
    said = [*(as_sentence(ending).text for ending in result.endings), *result.notes]
    said += result.legend
    items = [f"<li>{escape(text)}</li>" for text in said]
    items += [
        f"<li><b>{escape(name)}</b> {escape(text)}</li>" for name, text in result.described.items()
    ]
    parts.append(f"<ul>{''.join(items)}</ul><pre>{escape(result.command)}</pre>")
    return _PAGE.format(
        title=escape(f"{result.title}: {result.subject}"),
        style=style() + (resources.files("forerun.report") / "page.css").read_text("utf-8"),
        body="\n".join(parts),
    )


def _answer(sentence: Sentence) -> str:
    kind = "defect" if "red" in sentence.style else "advice"
    details = "".join(f"<li>{_words(text)}</li>" for text in sentence.details)
    return f'<p class="{kind}">{_words(sentence.text)}</p><ul>{details}</ul>'


def _words(text: str) -> str:
    """A sentence whose numbers keep their `x`."""
    return re.sub(r"(\d) x\b", r"\1&nbsp;x", escape(text))


def _figure(figure: Figure) -> str:
    title, text = escape(figure.title), escape(figure.text)
    return f"<figure><h2>{title}</h2><p>{text}</p>{svg(figure.chart)}</figure>"


def _table(table: Table) -> str:
    """A table; cells with heat are coloured by it."""
    heat = (
        ' class="heat"' if any(cell.heat is not None for row in table.rows for cell in row) else ""
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in table.header)
    lines = "".join(
        f"<tr><th>{escape(first.text)}</th>{''.join(map(_cell, others))}</tr>"
        for first, *others in table.rows
    )
    shown = f"<table{heat}><tr>{head}</tr>{lines}</table>"
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    return f"<h3>{escape(table.title)}</h3><div class='wide'>{shown}</div>{notes}"


def _cell(cell: Cell) -> str:
    text = escape(f"{cell.text}{cell.mark} {cell.tail}".strip())
    text = f"<b>{text}</b>" if cell.style == "bold" else text
    if cell.heat is None:
        return f"<td>{text}</td>"
    kind = "win" if cell.heat >= 1 else "lose"
    strength = min(70, round(120 * abs(cell.heat - 1)))
    return f'<td class="{kind}" style="--strength:{strength}%">{text}</td>'


WIDTH = 420
# Room at both sides, and for a row, the axis, and above all.
_SIDE, _ROW, _AXIS, _TOP = 20, 44, 36, 8
# Letters of a name that fit into half a chart.
_LETTERS = 27


def style() -> str:
    """Style sheet of charts, with the colours that it names."""
    return (resources.files("forerun.report") / "chart.css").read_text("utf-8")


def svg(chart: Spans) -> str:
    """An SVG element."""
    rows, mark = chart.rows, chart.mark
    ends = [end for row in rows for end in (row.low, row.high)] + [mark]
    low, high = max(0.0, min(ends)), max(ends)
    room = 0.04 * ((high - low) or 1.0)
    low, high = max(0.0, low - room), high + room

    def scale(value: float) -> float:
        return _SIDE + (value - low) / (high - low) * (WIDTH - 2 * _SIDE)

    bottom = _TOP + _ROW * len(rows)
    parts = [_text(WIDTH / 2, bottom + 29, chart.x_label, "label", "middle")]
    for tick in _ticks(low, high):
        parts.append(_line(scale(tick), _TOP, scale(tick), bottom, "grid"))
        parts.append(_text(scale(tick), bottom + 14, f"{tick:g}", "tick", "middle"))
    parts.append(_line(scale(mark), _TOP, scale(mark), bottom, "one"))
    for number, row in enumerate(rows):
        y, kind = _TOP + _ROW * number + 29, f"span {row.kind}"
        left, right = scale(row.low), scale(row.high)
        parts += [_name(row.name, y - 13), _text(WIDTH, y - 13, row.words, "words", "end")]
        parts.append(_line(left, y, right, y, kind))
        parts += [_line(end, y - 4, end, y + 4, kind) for end in (left, right)]
        parts.append(
            f'<circle class="dot {row.kind}" cx="{scale(row.value):.1f}" cy="{y:.1f}" r="4.5"/>'
        )
    return (
        f'<svg viewBox="0 0 {WIDTH} {bottom + _AXIS}" role="img" aria-label="{escape(chart.title)}">'
        f"{''.join(parts)}</svg>"
    )


def _ticks(low: float, high: float) -> list[float]:
    """Up to seven round numbers of a range."""
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (factor * step) <= 6)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * number, 10) for number in range(first, last + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _name(name: str, y: float) -> str:
    """A name; of a long one the middle is left out, and shown in full where one points at it."""
    if len(name) <= _LETTERS:
        return _text(0, y, name, "name")
    text = _text(0, y, f"{name[: _LETTERS // 2]}…{name[-(_LETTERS // 2) :]}", "name")
    return text.replace("</text>", f"<title>{escape(name)}</title></text>")


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
