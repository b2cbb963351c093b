"""`forerun generate`: complete a prompt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

import click

from forerun.cli.asked import (
    in_steps,
    open_checkpoint,
    sampling_params,
    set_threads,
    speculative_config,
)
from forerun.cli.combinations import check_prediction, settle
from forerun.cli.derived import notes
from forerun.cli.flags import generate_options
from forerun.cli.options import Command
from forerun.cli.prompt import read_prediction, read_prompt
from forerun.cli.quiet import quiet_libraries
from forerun.engine.config import SpeculativeConfig
from forerun.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forerun.cli.report import Outcome, Round
    from forerun.compare.paired import Run
    from forerun.core import Hints, Origin
    from forerun.engine.engine import Engine
    from forerun.engine.requests import TokenEvent

DEFECT_FOUND = 1


class Output(Protocol):
    """Where a result goes: a terminal, a pipe, or one JSON object."""

    def legend(self, origins: Iterable[Origin]) -> None:
        """Explain the marks before the first token."""

    def event(self, event: TokenEvent) -> None:
        """See a token as it comes."""

    def begin(self, label: str, run: Run) -> None:
        """See a run of a comparison begin."""

    def finish(self, outcome: Outcome) -> None:
        """See the end."""


@click.pass_context
def generate(ctx: click.Context, /, **values: Any) -> int:
    """Complete a prompt with the model's own text, drafted ahead and verified.

    Standard output carries the text alone, or one JSON object; everything else goes to standard
    error.
    """
    settle(ctx, values)
    text = read_prompt(values["prompt"], values["prompt_file"])
    prediction = read_prediction(values["prediction_file"])
    params = sampling_params(values)
    quiet_libraries()
    config, note = None, None
    if values["speculative"]:
        config, note = speculative_config(ctx, values, values["model"])
        check_prediction(config, values["prediction_file"])
    engine, prompt_ids = _load(values, text, params, config)
    if note:
        click.echo(f"forerun: {note}", err=True)
    from forerun.core import Hints

    hints = Hints(prediction=prediction)
    output = _choose_output(values["json"])
    if values["compare"]:
        return _compare(values, engine, prompt_ids, params, hints, output)
    return _complete(values, engine, prompt_ids, params, hints, output)


def _load(
    values: dict[str, Any],
    text: str,
    params: SamplingParams,
    config: SpeculativeConfig | None,
) -> tuple[Engine, list[int]]:
    """The engine, with room for this request and no more, and the prompt's token ids."""
    from forerun.engine.load import load

    set_threads(values)
    checkpoint = open_checkpoint(values)
    prompt_ids = list(checkpoint.tokenizer.encode(text))
    needed = min(_needed(len(prompt_ids), params), checkpoint.summary.max_context)
    engine = load(
        checkpoint,
        config or False,
        dtype=values["dtype"],
        device=values["device"],
        backend=values["backend"],
        max_context=values["max_context"] or needed,
        prefix_reuse=values["prefix_reuse"],
    )
    return engine, prompt_ids


def _needed(prompt_tokens: int, params: SamplingParams) -> int:
    assert params.max_tokens is not None
    return in_steps(prompt_tokens + params.max_tokens)


def _choose_output(as_json: bool) -> Output:
    if as_json:
        from forerun.cli.report import JsonOutput

        return JsonOutput()
    from forerun.cli.terminal import PlainOutput, TerminalOutput

    if sys.stdout.isatty():
        return TerminalOutput()
    # Prompts are read as UTF-8 whatever the locale, and text is written as such.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")
    return PlainOutput()


def _complete(
    values: dict[str, Any],
    engine: Engine,
    prompt_ids: list[int],
    params: SamplingParams,
    hints: Hints,
    output: Output,
) -> int:
    from forerun.cli.report import Outcome, Round
    from forerun.compare.paired import Run

    if values["speculative"]:
        run = Run(engine.stream(prompt_ids, params, hints=hints))
        _explain(output)
    else:
        run = Run(engine.stream_plain(prompt_ids, params))
    rounds: list[Round] | None = [] if values["show_rounds"] else None
    if rounds is not None:
        engine.watch_rounds(lambda _, draft, verdict: rounds.append(Round.of(draft, verdict)))
    try:
        run.follow(output.event)
    except KeyboardInterrupt:
        run.stream.close()
        output.finish(Outcome(values["model"], engine, run, rounds=rounds))
        raise
    output.finish(Outcome(values["model"], engine, run, rounds=rounds))
    return 0


def _compare(
    values: dict[str, Any],
    engine: Engine,
    prompt_ids: list[int],
    params: SamplingParams,
    hints: Hints,
    output: Output,
) -> int:
    from forerun.cli.report import Outcome
    from forerun.compare.attribution import DEFECT
    from forerun.compare.paired import compare

    started: list[Run] = []

    def begin(label: str, run: Run) -> None:
        # Whoever interrupts sees what there is so far.
        started.append(run)
        output.begin(label, run)

    try:
        comparison = compare(
            engine, prompt_ids, params, values["compare_rounds"], hints=hints, begin=begin
        )
    except KeyboardInterrupt:
        started[-1].stream.close()
        # The first speculative run of the full length, or what there is of the warm-up.
        shown = started[2] if len(started) > 2 else started[0]
        output.finish(Outcome(values["model"], engine, shown))
        raise
    _explain(output)
    output.finish(Outcome(values["model"], engine, comparison.shown.speculative, comparison))
    difference = comparison.difference
    return DEFECT_FOUND if difference and difference.explanation == DEFECT else 0


def _explain(output: Output) -> None:
    from forerun.core import Origin

    output.legend(Origin)


command = Command(
    "generate", params=generate_options(), callback=generate, help=generate.__doc__, notes=notes
)
