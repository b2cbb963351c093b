"""Output for people: text as it comes, by the origin of its tokens, then rounds and a panel."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from forerun.cli.outcome import Outcome, Round, summary
from forerun.cli.output import Output
from forerun.core import Origin
from forerun.engine.requests import TokenEvent
from forerun.engine.text import ON_ONE_LINE, VISIBLE, Tokenizer
from forerun.interrupts import PIECE, held_back, wait_until_writable

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


_WORDS = re.compile(r"\s+|\S+")
# Characters of a long prompt that are shown, from its beginning and from its end.
_SHOWN_PART = 1000


class PlainOutput(Output):
    """Text alone on standard output, in UTF-8; everything else on standard error."""

    takes_logprobs = False
    shows_prompts = False

    def __init__(self, stdout: IO[str] | None = None, stderr: Console | None = None) -> None:
        self.stdout = stdout or sys.stdout
        self.stderr = stderr or Console(stderr=True, highlight=False)
        self._written = 0

    def event(self, event: TokenEvent) -> None:
        """Write the text that a token completes."""
        if event.text:
            self.write(event.text, event.origin)

    def finish(self, outcome: Outcome, *, panel: bool = True) -> None:
        """Write the rest of the text, one newline, and the statistics."""
        completion = outcome.run.completion
        if not self._written and outcome.comparison is not None:
            for event in outcome.run.events:
                self.event(event)
        self.end(completion.text)
        if outcome.rounds is not None:
            show_rounds(self.stderr, outcome.rounds, outcome.request.engine.tokenizer)
        if panel:
            self.stderr.print(summary(outcome))

    def end(self, text: str) -> None:
        """Write the rest of a text and a newline: an interruption may have held back its last tokens."""
        self.write(text[self._written :] + "\n", Origin.PLAIN)

    def write(self, text: str, origin: Origin) -> None:
        """Write text as it is; an interruption neither loses nor repeats any of it."""
        for start in range(0, len(text), PIECE):
            piece = text[start : start + PIECE]
            wait_until_writable(self.stdout)
            with held_back():
                self._put(piece, origin)
                self.stdout.flush()
                self._written += len(piece)

    def _put(self, text: str, origin: Origin) -> None:
        self.stdout.write(text)


class WordWrap:
    """Line breaks in front of words that would cross the edge of a terminal.

    A word whose beginning is written already is taken back and written on the next line.
    """

    def __init__(self) -> None:
        self._column, self._word = 0, list[Segment]()

    def wrapped(self, parts: Iterable[Segment], width: int) -> list[Segment]:
        """The next segments of the text, with line breaks."""
        pieces = (Segment(word, part.style) for part in parts for word in _WORDS.findall(part.text))
        placed = (segment for piece in pieces for segment in self._placed(piece, width))
        return list(Segment.simplify(placed))

    def _placed(self, piece: Segment, width: int) -> list[Segment]:
        if piece.text.isspace():
            self._word = []
            for space in piece.text:
                step = 8 - self._column % 8 if space == "\t" else 1
                self._column = 0 if space == "\n" else self._column % width + step
            return [piece]
        begun, size = sum(part.cell_length for part in self._word), piece.cell_length
        self._word.append(piece)
        # The last column stays free: behind it terminals differ in where they are.
        if self._column + size < width or self._column == begun or begun + size >= width:
            self._column = (self._column + size) % width
            return [piece]
        self._column = begun + size
        back = [Segment(f"\x1b[{begun}D\x1b[K")] if begun else []
        return [*back, Segment("\n"), *self._word]


class TerminalOutput(PlainOutput):
    """Output in a terminal: the dim prompt, then text styled or marked by the origin of its tokens.

    Args:
        marks: show the origin of tokens.
    """

    shows_prompts = True

    def __init__(
        self, console: Console | None = None, stderr: Console | None = None, *, marks: bool = True
    ) -> None:
        self.console = console or Console(highlight=False)
        super().__init__(self.console.file, stderr)
        self._marks, self._coloured = marks, coloured(self.console)
        self._open, self._prompt, self._wrap = Origin.PLAIN, "", WordWrap()

    def prompt(self, text: str, *, apart: bool = False) -> None:
        """Take the prompt."""
        self._prompt = _shortened(text).translate(VISIBLE) + ("\n\n" if apart else "")

    def start(self, *, legend: bool = True) -> None:
        """Explain styles or marks, and show the prompt, dim."""
        if legend:
            self.stderr.print(legend_of(self.console), soft_wrap=True)
        self._print([Segment(self._prompt, PROMPT)])
        self.stdout.flush()

    def _put(self, text: str, origin: Origin) -> None:
        origin = origin if self._marks else Origin.PLAIN
        if self._coloured:
            self._print(segments(text, origin))
            return
        for number, line in enumerate(text.translate(VISIBLE).split("\n")):
            if number:
                # Marks that are open at the end of a line are easily missed.
                self._mark(Origin.PLAIN, "\n")
            if line:
                self._mark(origin, line)

    def _mark(self, origin: Origin, line: str) -> None:
        """Write a part of a line; its mark stays open until a token of another origin follows."""
        if origin is not self._open:
            line = MARKS[self._open][1] + MARKS[origin][0] + line
            self._open = origin
        self._print([Segment(line)])

    def _print(self, parts: list[Segment]) -> None:
        if not self.console.is_dumb_terminal:
            parts = self._wrap.wrapped(parts, self.console.width)
        # rich neither wraps nor measures segments.
        self.console.print(Segments(parts), crop=False, soft_wrap=True)


def _shortened(prompt: str) -> str:
    """The beginning and the end of a long prompt; a short one unchanged."""
    left = len(prompt) - 2 * _SHOWN_PART
    if left <= 0:
        return prompt
    return f"{prompt[:_SHOWN_PART]} [… {left} characters …] {prompt[-_SHOWN_PART:]}"


def show_rounds(console: Console, rounds: Sequence[Round], tokenizer: Tokenizer | None) -> None:
    """Print the meaning of the marks and all rounds; without a tokenizer, tokens are ids."""
    legend = (f"{MARKS[key][0]}{text}{MARKS[key][1]}" for key, text in MEANINGS.items())
    console.print(" ".join(legend), highlight=False)
    console.print("⟨⟩: not accepted in a draft, plain in the output", highlight=False)
    for number, entry in enumerate(rounds, start=1):
        for line in _lines(number, entry, tokenizer):
            console.print(line, highlight=False)


def _lines(number: int, entry: Round, tokenizer: Tokenizer | None) -> Iterator[Text]:
    """The emitted tokens, then the draft: a chain on one line, branches indented below it."""
    draft, verdict = entry.draft, entry.verdict
    kind = f"{verdict.num_accepted} of {len(draft)} accepted" if len(draft) else "plain"
    pairs = zip(verdict.token_ids, verdict.origins, strict=True)
    emitted = (_token(*pair, tokenizer) for pair in pairs)
    yield Text(" ").join([Text(f"round {number}: {kind}, emitted"), *emitted])
    left = [(child, "  ") for child in reversed(draft.tree.children(-1))]
    while left:
        node, indent = left.pop()
        chain = [node]
        while len(below := draft.tree.children(chain[-1])) == 1:
            chain += below
        origins = (Origin.ACCEPTED if step in entry.accepted else None for step in chain)
        ids = (draft.token_ids[step] for step in chain)
        tokens = (_token(*pair, tokenizer) for pair in zip(ids, origins, strict=True))
        yield Text(indent).append(Text(" ").join(tokens))
        left += [(child, indent + "  ") for child in reversed(below)]


def _token(token: int, origin: Origin | None, tokenizer: Tokenizer | None) -> Text:
    """A token between the marks of its origin, in its style."""
    before, after = ("", "") if origin is None else MARKS[origin]
    text = str(token)
    if tokenizer is not None:
        text = tokenizer.decode([token]).translate(ON_ONE_LINE)
        before, after = before or "⟨", after or "⟩"
    return Text(f"{before}{text}{after}", STYLES[origin] if origin else "")
