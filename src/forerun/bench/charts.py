"""Charts as inline SVG, drawn in the colours of the page around them, readable without colour too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH = 760
# Room for names at the left and for numbers at the right.
LEFT, RIGHT = 210, 150
_ROW, _AXIS, _TOP = 24, 34, 8
_HEIGHT = 250
_BAR = 15
# Letters of a name that fit beside a chart.
_LETTERS = 27
# Line patterns and marks of series, so that colour is not the only sign.
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 3", "4 2 1 2")


class Span(NamedTuple):
    """A row of a chart of intervals: its ends, its mark, the words behind it, and what it is.

    `kind` is a class of the page's style: `win`, `lose` or `even`.
    """

    name: str
    low: float
    value: float
    high: float
    words: str
    kind: str


class Bar(NamedTuple):
    """A row of a chart of stacked bars: a value for each part, and the words behind it."""

    name: str
    parts: Sequence[float]
    words: str


class Curve(NamedTuple):
    """A line by its points; the first is drawn in the colour of plain decoding where `plain`."""

    name: str
    points: Sequence[tuple[float, float]]
    plain: bool = False


def spans(title: str, rows: Sequence[Span], axis: str, mark: float | None = None) -> str:
    """Intervals below each other, with a line where `mark` is."""
    ends = [end for row in rows for end in (row.low, row.high)] + (
        [mark] if mark is not None else []
    )
    scale = _Scale(min(ends), max(ends), LEFT, WIDTH - RIGHT)
    bottom = _TOP + _ROW * len(rows)
    parts = [_axis(scale, _TOP, bottom, axis)]
    if mark is not None:
        parts.append(_line(scale(mark), _TOP, scale(mark), bottom, "one"))
    for number, row in enumerate(rows):
        y = _TOP + _ROW * (number + 0.5)
        parts.append(_name(LEFT - 10, y + 4, row.name, "name", "end"))
        parts.append(_line(scale(row.low), y, scale(row.high), y, f"span {row.kind}"))
        for end in (row.low, row.high):
            parts.append(_line(scale(end), y - 4, scale(end), y + 4, f"span {row.kind}"))
        parts.append(
            f'<circle class="dot {row.kind}" cx="{scale(row.value):.1f}" cy="{y:.1f}" r="4.5"/>'
        )
        parts.append(_text(WIDTH - RIGHT + 10, y + 4, row.words, "words"))
    return _svg(title, bottom + _AXIS, parts)


def bars(title: str, rows: Sequence[Bar], names: Sequence[str], axis: str) -> str:
    """Stacked bars below each other; `names` are of their parts, explained above."""
    longest = max(sum(row.parts) for row in rows)
    scale = _Scale(0.0, longest, LEFT, WIDTH - RIGHT, exact=True)
    shown = [at for at in range(len(names)) if any(row.parts[at] > 0 for row in rows)]
    top = _TOP + 22
    bottom = top + _ROW * len(rows)
    parts = [_legend([(names[at], f"fill{at}") for at in shown]), _axis(scale, top, bottom, axis)]
    for number, row in enumerate(rows):
        y, start = top + _ROW * (number + 0.5), 0.0
        parts.append(_name(LEFT - 10, y + 4, row.name, "name", "end"))
        for at in shown:
            left, right = scale(start), scale(start + row.parts[at])
            start += row.parts[at]
            parts.append(
                f'<rect class="fill{at}" x="{left:.1f}" y="{y - _BAR / 2:.1f}" '
                f'width="{max(right - left, 0):.1f}" height="{_BAR}">'
                f"<title>{escape(names[at])}: {row.parts[at]:.2f}</title></rect>"
            )
        parts.append(_text(WIDTH - RIGHT + 10, y + 4, row.words, "words"))
    return _svg(title, bottom + _AXIS, parts)


def curves(
    title: str, lines: Sequence[Curve], x_axis: str, y_axis: str, percent: bool = False
) -> str:
    """Lines with their names at their ends."""
    points = [point for line in lines for point in line.points]
    left, right = 60, WIDTH - 210
    xs = _Scale(min(x for x, _ in points), max(x for x, _ in points), left, right, exact=True)
    top = _TOP + 18
    ys = _Scale(0.0, 1.0 if percent else max(y for _, y in points), _HEIGHT, top, exact=percent)
    parts = [_axis(xs, top, _HEIGHT, x_axis, whole=percent)]
    parts.append(_text(left, _TOP + 4, y_axis, "label"))
    for tick in ys.ticks:
        parts.append(_line(left, ys(tick), right, ys(tick), "grid"))
        label = f"{tick:.0%}" if percent else f"{tick:g}"
        parts.append(_text(left - 8, ys(tick) + 4, label, "tick", "end"))
    ends = [(ys(line.points[-1][1]), xs(line.points[-1][0])) for line in lines]
    places = _apart(ends)
    number = 0
    for line, place in zip(lines, places, strict=True):
        kind = "plain" if line.plain else f"line{number}"
        dashes = "" if line.plain else _DASHES[number % len(_DASHES)]
        number += not line.plain
        path = " ".join(f"{xs(x):.1f},{ys(y):.1f}" for x, y in line.points)
        x, y = line.points[-1]
        parts.append(
            f'<polyline class="curve {kind}" stroke-dasharray="{dashes}" points="{path}"/>'
            f'<circle class="end {kind}" cx="{xs(x):.1f}" cy="{ys(y):.1f}" r="3"/>'
        )
        parts.append(_line(xs(x) + 4, ys(y), right + 14, place, "leader"))
        parts.append(_name(right + 18, place + 4, line.name, f"series {kind}"))
    return _svg(title, _HEIGHT + _AXIS, parts)


class _Scale:
    """A linear scale with round ticks.

    Args:
        low, high: of the values.
        start, end: where they lie.
        exact: whether it begins and ends there, without room around.
    """

    def __init__(
        self, low: float, high: float, start: float, end: float, *, exact: bool = False
    ) -> None:
        room = 0.0 if exact else 0.04 * ((high - low) or 1.0)
        self._low, self._high = (low, high) if exact else (max(0.0, low - room), high + room)
        self._start, self._end = start, end
        width = (self._high - self._low) or 1.0
        self._width = width
        step = 10 ** math.floor(math.log10(width / 4))
        step *= next(factor for factor in (1, 2, 2.5, 5, 10) if width / (factor * step) <= 6)
        first = math.ceil(self._low / step - 1e-9)
        last = math.floor(self._high / step + 1e-9)
        self.ticks = [round(step * number, 10) for number in range(first, last + 1)]

    @property
    def middle(self) -> float:
        return (self._start + self._end) / 2

    def __call__(self, value: float) -> float:
        return self._start + (value - self._low) / self._width * (self._end - self._start)


def _axis(scale: _Scale, top: float, y: float, label: str, *, whole: bool = False) -> str:
    parts = []
    for tick in scale.ticks:
        if not whole or tick == int(tick):
            parts.append(_line(scale(tick), top, scale(tick), y, "grid"))
            parts.append(_text(scale(tick), y + 14, f"{tick:g}", "tick", "middle"))
    parts.append(_text(scale.middle, y + 29, label, "label", "middle"))
    return "".join(parts)


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    parts, x = [], float(LEFT)
    for name, kind in entries:
        parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{_TOP}" width="11" height="11"/>')
        parts.append(_text(x + 15, _TOP + 10, name, "words"))
        x += 30 + 6.6 * len(name)
    return "".join(parts)


def _apart(ends: Sequence[tuple[float, float]]) -> list[float]:
    """Heights for the names of lines that end there, at least a line apart; of equal heights the line
    that ends first comes first."""
    order = sorted(range(len(ends)), key=lambda at: ends[at])
    put = [height for height, _ in ends]
    for before, at in zip([None, *order], order, strict=False):
        if before is not None:
            put[at] = max(put[at], put[before] + 15)
    over = max(0.0, max(put, default=0.0) - (_HEIGHT - 2))
    return [place - over for place in put]


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _name(x: float, y: float, name: str, kind: str, anchor: str = "start") -> str:
    """A name; of a long one the middle is left out, and shown in full where one points at it."""
    if len(name) <= _LETTERS:
        return _text(x, y, name, kind, anchor)
    short = f"{name[: _LETTERS // 2]}…{name[-(_LETTERS // 2) :]}"
    text = _text(x, y, short, kind, anchor)
    return text.replace("</text>", f"<title>{escape(name)}</title></text>")


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
