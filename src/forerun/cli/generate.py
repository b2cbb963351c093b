"""`forerun generate`: complete a prompt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

import click

from forerun.cli.asked import (
    choose,
    in_steps,
    longest_context,
    sampling_params,
    set_threads,
    speculative_config,
)
from forerun.cli.combinations import settle
from forerun.cli.flags import generate_options
from forerun.cli.options import Command
from forerun.cli.prompt import read_prediction, read_prompt
from forerun.cli.quiet import quiet_libraries
from forerun.engine.config import SpeculativeConfig
from forerun.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forerun.bench.paired import Run
    from forerun.cli.report import Outcome, Round
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
    speculative = speculative_config(values) if values["speculative"] else None
    engine, prompt_ids = _load(ctx, values, text, params, speculative)
    from forerun.core import Hints

    hints = Hints(prediction=prediction)
    output = _choose_output(values["json"])
    if values["compare"]:
        return _compare(values, engine, prompt_ids, params, hints, output)
    return _complete(values, engine, prompt_ids, params, hints, output)


def _load(
    ctx: click.Context,
    values: dict[str, Any],
    text: str,
    params: SamplingParams,
    speculative: SpeculativeConfig | None,
) -> tuple[Engine, list[int]]:
    """The engine, with room for this request and no more, and the prompt's token ids."""
    quiet_libraries()
    from forerun.engine.load import load, locate
    from forerun.models import load_tokenizer

    set_threads(values)
    model, revision = values["model"], values["revision"]
    config, note = (None, None) if speculative is None else choose(ctx, speculative, model)
    # A directory that holds no model at all is told by its config, not by its tokenizer.
    longest = longest_context(values)
    tokenizer = load_tokenizer(locate(model), revision=revision)
    prompt_ids = list(tokenizer.encode(text))
    engine = load(
        model,
        config or False,
        revision=revision,
        dtype=values["dtype"],
        device=values["device"],
        backend=values["backend"],
        max_context=values["max_context"] or min(_needed(len(prompt_ids), params), longest),
        tokenizer=tokenizer,
    )
    if note:
        click.echo(f"forerun: {note}", err=True)
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
    from forerun.bench.paired import Run
    from forerun.cli.report import Outcome, Round

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
    from forerun.bench.paired import compare
    from forerun.cli.report import Outcome
    from forerun.engine.attribution import DEFECT

    started: list[Run] = []

    def begin(label: str, run: Run) -> None:
        # Whoever interrupts sees what there is so far.
        started.append(run)
        output.begin(label, run)

    try:
        found = compare(
            engine, prompt_ids, params, values["compare_rounds"], hints=hints, begin=begin
        )
    except KeyboardInterrupt:
        started[-1].stream.close()
        # The first speculative run of the full length, or what there is of the warm-up.
        shown = started[2] if len(started) > 2 else started[0]
        output.finish(Outcome(values["model"], engine, shown))
        raise
    _explain(output)
    output.finish(Outcome(values["model"], engine, found.shown.speculative, found))
    return DEFECT_FOUND if found.difference and found.difference.explanation == DEFECT else 0


def _explain(output: Output) -> None:
    from forerun.core import Origin

    output.legend(Origin)


command = Command("generate", params=generate_options(), callback=generate, help=generate.__doc__)
