"""The result of `forerun generate` for people: text as it comes, then a panel of statistics."""

from __future__ import annotations

import sys
from typing import IO

from rich.console import Console
from rich.panel import Panel
from rich.segment import Segment, Segments
from rich.style import Style
from rich.table import Table
from rich.text import Text

from forerun.cli.report import Outcome, Output
from forerun.cli.rounds import show_rounds
from forerun.cli.styles import STYLES, VISIBLE
from forerun.compare.paired import Comparison, Run
from forerun.core import Origin, Stats
from forerun.engine.config import SpeculativeConfig
from forerun.engine.requests import TokenEvent
from forerun.interrupts import PIECE, held_back, wait_until_writable

_BAR_WIDTH = 20


class PlainOutput(Output):
    """Text alone on standard output, in UTF-8; everything else on standard error."""

    def __init__(self, stdout: IO[str] | None = None, stderr: Console | None = None) -> None:
        self.stdout = stdout or sys.stdout
        self.stderr = stderr or Console(stderr=True, highlight=False)
        self._written = 0
        self._status_shown = False

    def event(self, event: TokenEvent) -> None:
        """Write the text that a token completes."""
        if event.text:
            self.write(event.text, event.origin)

    def begin(self, label: str, run: Run) -> None:
        """Show the progress of a comparison on one line; no thread redraws it while runs are timed."""
        if self.stderr.is_terminal:
            self.stderr.file.write(f"\r\x1b[2Kcomparing: {label}")
            self.stderr.file.flush()
            self._status_shown = True

    def clear_status(self) -> None:
        """Clear the line that `begin` has shown."""
        if self._status_shown:
            self.stderr.file.write("\r\x1b[2K")
            self.stderr.file.flush()
            self._status_shown = False

    def finish(self, outcome: Outcome) -> None:
        """Write the rest of the text, one newline, and the statistics."""
        self.clear_status()
        completion = outcome.run.completion
        if not self._written and outcome.comparison is not None:
            for event in outcome.run.events:
                self.event(event)
        # After an interruption some tokens of the text may not have been streamed.
        rest = completion.text[self._written :]
        self.write(rest + "\n", Origin.PLAIN)
        if outcome.rounds is not None:
            show_rounds(self.stderr, outcome.rounds, outcome.engine.tokenizer)
        self.stderr.print(summary(outcome))

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


class TerminalOutput(PlainOutput):
    """Text coloured by where each token came from."""

    def __init__(self, console: Console | None = None, stderr: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        super().__init__(self.console.file, stderr)

    def legend(self) -> None:
        """Explain the colours."""
        self.clear_status()
        entries = [Text(f"■ {origin}", style) for origin, style in STYLES.items()]
        self.stderr.print(Text("  ").join(entries))

    def _put(self, text: str, origin: Origin) -> None:
        # rich neither wraps nor measures a segment.
        segment = Segment(text.translate(VISIBLE), Style.parse(STYLES[origin]))
        self.console.print(Segments([segment]), crop=False, soft_wrap=True)


def summary(outcome: Outcome) -> Panel:
    """The closing panel."""
    stats, run = outcome.run.completion.stats, outcome.run
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("model", outcome.model)
    table.add_row("drafter", _drafter(outcome.engine.config))
    table.add_row("prompt", "by the chat template" if outcome.prompt.template else "raw text")
    table.add_row("ended by", outcome.finish_reason)
    table.add_row("tokens", f"{stats.num_emitted_tokens} after {stats.prompt_tokens} of prompt")
    table.add_row(
        "speed",
        f"{_number(run.tokens_per_second, 1)} tokens/s "
        f"(decoding alone {_number(stats.tokens_per_second, 1)})",
    )
    table.add_row("tokens per target forward", _number(stats.tokens_per_target_forward))
    if stats.num_drafts:
        _add_acceptance(table, stats)
    table.add_row("time", _stages(stats))
    if outcome.comparison is not None:
        _add_comparison(table, outcome.comparison)
    table.add_row("exactness", str(outcome.engine.exactness))
    return Panel(table, expand=False)


def _drafter(config: SpeculativeConfig) -> str:
    if config.method is None:
        return "none: plain decoding"
    return f"{config.method} {config.model}" if config.model else config.method


def _add_acceptance(table: Table, stats: Stats) -> None:
    table.add_row("mean acceptance length", _number(stats.mean_acceptance_length))
    table.add_row(
        "acceptance rate",
        f"{stats.acceptance_rate or 0:.0%} "
        f"({stats.num_accepted_tokens} of {stats.num_draft_tokens} drafted)",
    )
    for position, count in enumerate(stats.num_accepted_tokens_per_pos, start=1):
        share = count / stats.num_drafts
        bar = "█" * round(share * _BAR_WIDTH)
        table.add_row(
            "  by position" if position == 1 else "", f"{position} {bar:<{_BAR_WIDTH}} {share:.0%}"
        )


def _stages(stats: Stats) -> str:
    stages = {"prefill": stats.prefill_seconds}
    if stats.num_drafts:
        stages["draft"] = stats.draft_seconds
        stages["target"] = stats.target_seconds
        stages["verify"] = stats.verify_seconds
    else:
        stages["decode"] = stats.seconds
    total = sum(stages.values()) or 1.0
    return ", ".join(
        f"{name} {value:.2f} s ({value / total:.0%})" for name, value in stages.items()
    )


def _add_comparison(table: Table, comparison: Comparison) -> None:
    low, high = comparison.spread
    table.add_row("plain", f"{_number(comparison.shown.plain.tokens_per_second, 1)} tokens/s")
    table.add_row(
        "speed-up",
        f"{comparison.speedup:.2f}x ({low:.2f}x to {high:.2f}x in {len(comparison.pairs)} rounds; "
        f"decoding alone {comparison.decode_speedup:.2f}x)",
    )
    answers = {True: "yes", False: "no", None: "not comparable: drawn without a shared seed"}
    table.add_row("same tokens as plain", answers[comparison.identical])
    difference = comparison.difference
    if difference is not None:
        table.add_row(
            "first difference",
            f"token {difference.index}: {difference.text!r} against {difference.plain_text!r}; "
            f"logit margin {difference.margin:.2g}: {difference.explanation}",
        )


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
