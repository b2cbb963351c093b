"""Drawer of a page's charts as inline SVG, in the colours of the page, readable without colour too.

Charts are narrow, so that their text can be read on a page 360 pixels wide: names stand above what they name.
"""

from __future__ import annotations

import math
from html import escape
from importlib import resources

from forerun.report.chart import Spans

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
