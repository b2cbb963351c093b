"""Drawer of a page's charts as inline SVG, in the colours of the page, readable without colour too.

Charts are narrow, so that their text can be read on a page 360 pixels wide: names stand above what they name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from importlib import resources

from forerun.report.chart import Bars, Curves, Picture, Spans, amount

WIDTH = 420
# Room at the left for the numbers of an axis, and at the right for half of the last one below.
_LEFT, _RIGHT = 50, 20
_ROW, _AXIS, _TOP = 44, 36, 8
_HEIGHT = 250
_BAR = 15
# Room for a letter, and for a swatch with its gaps.
_LETTER, _SWATCH, _LINE = 7.0, 40, 18
# Numbers of an axis from which on a prefix such as k shortens them.
_LONG = 10_000
# Letters of a name that fit into half a chart.
_LETTERS = 27
# Line patterns and marks of series, so that colour is not the only sign.
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 3", "4 2 1 2")


def style() -> str:
    """Style sheet of charts, with the colours that it names."""
    return (resources.files("forerun.report") / "chart.css").read_text("utf-8")


def image(chart: Picture) -> str:
    """An SVG file of its own, in light or dark as it is shown."""
    start = '<svg xmlns="http://www.w3.org/2000/svg" '
    return (
        svg(chart).replace("<svg ", start, 1).replace(">", f"><style>{style()}</style>", 1) + "\n"
    )


def svg(chart: Picture) -> str:
    """An SVG element; of curves the first panel."""
    if isinstance(chart, Spans):
        return _spans(chart)
    return _bars(chart) if isinstance(chart, Bars) else _curves(chart)


def _spans(chart: Spans) -> str:
    rows, mark = chart.rows, chart.mark
    ends = [end for row in rows for end in (row.low, row.high)]
    ends += [mark] if mark is not None else []
    scale = _Scale(min(ends), max(ends), _RIGHT, WIDTH - _RIGHT)
    bottom = _TOP + _ROW * len(rows)
    parts = [_axis(scale, _TOP, bottom, chart.x_label)]
    if mark is not None:
        parts.append(_line(scale(mark), _TOP, scale(mark), bottom, "one"))
    for number, row in enumerate(rows):
        y = _TOP + _ROW * number + 29
        parts.append(_above(y, row.name, row.words))
        parts.append(_line(scale(row.low), y, scale(row.high), y, f"span {row.kind}"))
        for end in (row.low, row.high):
            parts.append(_line(scale(end), y - 4, scale(end), y + 4, f"span {row.kind}"))
        parts.append(
            f'<circle class="dot {row.kind}" cx="{scale(row.value):.1f}" cy="{y:.1f}" r="4.5"/>'
        )
    return _svg(chart.title, bottom + _AXIS, parts)


def _bars(chart: Bars) -> str:
    """Stacked bars, the names of their parts explained above."""
    rows, names = chart.rows, chart.names
    longest = max(sum(row.parts) for row in rows)
    scale = _Scale(0.0, longest, _RIGHT, WIDTH - _RIGHT, exact=True)
    shown = [at for at in range(len(names)) if any(row.parts[at] > 0 for row in rows)]
    swatch = '<rect class="fill{}" width="11" height="11" x="25"/>'
    legend, top = _legend([(names[at], swatch.format(at), "words") for at in shown], _TOP)
    bottom = top + _ROW * len(rows)
    parts = [legend, _axis(scale, top, bottom, chart.x_label)]
    for number, row in enumerate(rows):
        y, start = top + _ROW * number + 29, 0.0
        parts.append(_above(y, row.name, row.words))
        for at in shown:
            left, right = scale(start), scale(start + row.parts[at])
            start += row.parts[at]
            parts.append(
                f'<rect class="fill{at}" x="{left:.1f}" y="{y - _BAR / 2:.1f}" '
                f'width="{max(right - left, 0):.1f}" height="{_BAR}">'
                f"<title>{escape(names[at])}: {row.parts[at]:.2f}</title></rect>"
            )
    return _svg(chart.title, bottom + _AXIS, parts)


def _curves(chart: Curves) -> str:
    """Lines, with their names below."""
    lines, percent = next(iter(chart.panels.values())), chart.percent
    every = [x for line in lines.values() for x in line.x]
    highest = 1.0 if percent else max(y for line in lines.values() for y in line.y)
    right, top = WIDTH - _RIGHT, _TOP + 18
    xs = _Scale(min(every), max(every), _LEFT, right, exact=True)
    ys = _Scale(chart.lowest, highest, _HEIGHT, top, exact=percent)
    parts = [_axis(xs, top, _HEIGHT, chart.x_label, whole=percent)]
    parts.append(_text(0, _TOP + 4, chart.y_label, "label"))
    for tick in ys.ticks:
        parts.append(_line(_LEFT, ys(tick), right, ys(tick), "grid"))
        label = f"{tick:.0%}" if percent else f"{tick:g}"
        parts.append(_text(_LEFT - 8, ys(tick) + 4, label, "tick", "end"))
    number, entries = 0, []
    for name, line in lines.items():
        kind = "plain" if line.plain else f"line{number % len(_DASHES)}"
        dashes = "" if line.plain else _DASHES[number % len(_DASHES)]
        number += not line.plain
        drawn = f'class="curve {kind}" stroke-dasharray="{dashes}"'
        path = " ".join(f"{xs(x):.1f},{ys(y):.1f}" for x, y in zip(line.x, line.y, strict=True))
        x, y = line.x[-1], line.y[-1]
        parts.append(
            f'<polyline {drawn} points="{path}"/>'
            f'<circle class="end {kind}" cx="{xs(x):.1f}" cy="{ys(y):.1f}" r="3"/>'
        )
        entries.append((name, f'<line {drawn} x2="36" y1="6" y2="6"/>', f"series {kind}"))
    legend, bottom = _legend(entries, _HEIGHT + _AXIS)
    return _svg(chart.title, bottom, [*parts, legend])


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
            name = f"{tick:g}" if tick < _LONG else amount(tick)
            parts.append(_line(scale(tick), top, scale(tick), y, "grid"))
            parts.append(_text(scale(tick), y + 14, name, "tick", "middle"))
    parts.append(_text(scale.middle, y + 29, label, "label", "middle"))
    return "".join(parts)


def _legend(entries: Sequence[tuple[str, str, str]], top: float) -> tuple[str, float]:
    """Names behind their swatches, in as many lines as they take, and the height below them."""
    parts, x, y = [], 0.0, top + 12
    for name, swatch, kind in entries:
        width = _SWATCH + _LETTER * min(len(name), 2 * _LETTERS) + 12
        if x and x + width > WIDTH:
            x, y = 0.0, y + _LINE
        parts.append(f'<g transform="translate({x:.1f} {y - 10:.1f})">{swatch}</g>')
        parts.append(_name(x + _SWATCH, y, name, kind, 2 * _LETTERS - 6))
        x += width
    return "".join(parts), y + 6


def _above(y: float, name: str, words: str) -> str:
    """Name of a row and the words behind it, above what it shows."""
    return _name(0, y - 13, name, "name") + _text(WIDTH, y - 13, words, "words", "end")


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _name(x: float, y: float, name: str, kind: str, most: int = _LETTERS) -> str:
    """A name; of a long one the middle is left out, and shown in full where one points at it."""
    if len(name) <= most:
        return _text(x, y, name, kind)
    text = _text(x, y, f"{name[: most // 2]}…{name[-(most // 2) :]}", kind)
    return text.replace("</text>", f"<title>{escape(name)}</title></text>")


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
