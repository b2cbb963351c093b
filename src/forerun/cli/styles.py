"""Styles by the origin of a token: colour and underline, or marks without colour."""

from __future__ import annotations

import re

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from forerun.core import Origin
from forerun.engine.text import VISIBLE

# With marks around them, all fit one line of 80 columns.
MEANINGS = {
    Origin.ACCEPTED: "accepted draft",
    Origin.RECOVERED: "recovered after a rejection",
    Origin.BONUS: "bonus after a full draft",
    Origin.PLAIN: "plain",
}
# Readable without the colours too: what was drafted is underlined, a bonus twice.
STYLES = {
    Origin.ACCEPTED: "underline green",
    Origin.RECOVERED: "bold yellow",
    Origin.BONUS: "underline2 cyan",
    Origin.PLAIN: "default",
}
# Around the text of each origin, where there is no colour.
MARKS = {
    Origin.ACCEPTED: ("«", "»"),
    Origin.RECOVERED: ("¦", "¦"),
    Origin.BONUS: ("‹", "›"),
    Origin.PLAIN: ("", ""),
}
PROMPT = Style(dim=True)
_SPACES = re.compile(r"(\s+)")


def coloured(console: Console) -> bool:
    """True if colours and underlines are shown: not in a pipe, a dumb terminal or under NO_COLOR."""
    return console.is_terminal and console.color_system is not None and not console.no_color


def segments(text: str, origin: Origin) -> list[Segment]:
    """Text in the style of its origin; spaces are not underlined."""
    style = Style.parse(STYLES[origin])
    parts = _SPACES.split(text.translate(VISIBLE))
    return [Segment(part, None if part.isspace() else style) for part in parts if part]


def marked(text: str, origin: Origin, *, coloured: bool) -> Text:
    """Text styled or, without colour, between the marks of its origin."""
    if coloured:
        return Text(text, STYLES[origin])
    before, after = MARKS[origin]
    return Text(f"{before}{text}{after}")


def legend_of(console: Console) -> Text:
    """Meanings of styles or marks, on one line."""
    entries = [marked(text, key, coloured=coloured(console)) for key, text in MEANINGS.items()]
    return Text("  " if coloured(console) else " ").join(entries)
