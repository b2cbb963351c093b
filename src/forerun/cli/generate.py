"""`forerun generate`: complete a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.asked import (
    in_steps,
    load_engine,
    open_checkpoint,
    sampling_params,
    speculation,
    with_defaults,
)
from forerun.cli.combinations import check_prediction, settle
from forerun.cli.flags import generate_options
from forerun.cli.options import Command, method_notes
from forerun.cli.output import visible_output
from forerun.cli.prompt import (
    EXAMPLE,
    SentPrompt,
    make_prompt,
    read_prediction,
    read_prompt,
    show_prompt,
)
from forerun.cli.quiet import quiet_libraries
from forerun.cli.session import keep, keep_what_there_is, open_session, restore
from forerun.engine.resolve import Resolved
from forerun.params import SamplingParams
from forerun.report.target_file import check_writable

if TYPE_CHECKING:
    from forerun.cli.output import Output
    from forerun.cli.report import Outcome
    from forerun.core import Hints
    from forerun.engine.engine import Engine
    from forerun.kv_cache.session_file import Session
    from forerun.measure.paired import Run

DEFECT_FOUND = 1


@click.pass_context
def generate(ctx: click.Context, /, **values: Any) -> int:
    """Answer PROMPT, or complete it, with the model's own text, drafted ahead and verified.

    A model with a chat template answers; others, and all with --raw, go on from the text. Standard
    output carries the text alone, or one JSON object; everything else goes to standard error.
    """
    settle(ctx, values)
    if values["html"] is not None:
        check_writable("--html", values["html"])
    content = read_prompt(values)
    prediction = read_prediction(values["prediction_file"])
    params = sampling_params(values)
    quiet_libraries()
    choice = None
    if values["speculative"]:
        choice = speculation(ctx, values, values["model"])
        check_prediction(choice.config, values["prediction_file"])
    session = open_session(values["session"])
    request = _load(ctx, values, content, params, choice, session)
    from forerun.core import Hints

    output = choose_output(values["json"])
    if values["html"] is not None:
        output = _with_page(output, values["html"])
    output.prompt(_shown(content), apart=request.prompt.template)
    run = _compare if values["compare"] else _complete
    return run(values, request, Hints(prediction=prediction), output)


@dataclass(frozen=True)
class SingleRequest:
    """A request of the command, ready to run.

    Args:
        engine: with room for this request and no more.
        prompt: as it is sent.
        params: the options over the model's own defaults.
        from_model: names of parameters that the latter set.
    """

    engine: Engine
    prompt: SentPrompt
    params: SamplingParams
    from_model: tuple[str, ...]

    def outcome(self, values: dict[str, Any], run: Run, **more: Any) -> Outcome:
        """What is shown of a run."""
        from forerun.cli.report import Outcome

        settings = {"params": self.params, "from_model": self.from_model, **more}
        return Outcome(values["model"], self.prompt, self.engine, run, **settings)


def _shown(content: str | list[dict[str, Any]]) -> str:
    """What of a prompt stands before the answer: of a conversation its last message."""
    if isinstance(content, str):
        return content
    from forerun.engine.chat import text_of

    return text_of(content[-1])


def _load(
    ctx: click.Context,
    values: dict[str, Any],
    content: str | list[dict[str, Any]],
    params: SamplingParams,
    choice: Resolved | None,
    session: Session | None,
) -> SingleRequest:
    checkpoint = open_checkpoint(values)
    params, from_model = with_defaults(ctx, params, checkpoint.sampling_defaults)
    prompt = make_prompt(checkpoint, content, values)
    if values["show_prompt"]:
        show_prompt(prompt)
    assert params.max_tokens is not None
    held = 0 if session is None else len(session.token_ids) + 1
    needed = in_steps(max(len(prompt.token_ids) + params.max_tokens, held))
    context = values["max_context"] or min(needed, checkpoint.summary.max_context)
    engine = load_engine(values, checkpoint, choice, max_context=context)
    restore(engine, values["session"], session)
    return SingleRequest(engine, prompt, params, from_model)


def _say_how(values: dict[str, Any], prompt: SentPrompt) -> None:
    """Say that the prompt went around a template that is not there."""
    if not prompt.template and not values["raw"]:
        text = "has no chat template (a base model): the prompt is sent as it is, as with --raw"
        click.echo(f"forerun: {values['model']} {text}", err=True)


def choose_output(as_json: bool) -> Output:
    """Where results go: a terminal, a pipe, or one object."""
    if as_json:
        from forerun.cli.report import JsonOutput

        return JsonOutput()
    return visible_output()


def _with_page(output: Output, file: str) -> Output:
    from forerun.cli.page import PageOutput

    return PageOutput(output, file)


def _complete(values: dict[str, Any], request: SingleRequest, hints: Hints, output: Output) -> int:
    from forerun.cli.report import Round
    from forerun.measure.paired import Run

    engine, prompt_ids = request.engine, request.prompt.token_ids
    # The plain loop keeps nothing for a session.
    if values["speculative"] or values["session"] is not None:
        run = Run(engine.stream(prompt_ids, request.params, hints=hints))
    else:
        run = Run(engine.stream_plain(prompt_ids, request.params))
    _say_how(values, request.prompt)
    rounds: list[Round] | None = [] if values["show_rounds"] else None
    if rounds is not None:
        engine.explain_rounds(lambda _, *round_: rounds.append(Round.of(*round_)))
    outcome = request.outcome(values, run, rounds=rounds)
    output.start(legend=values["speculative"])
    try:
        run.follow(output.event)
    except BaseException as stopped:
        run.stream.close()
        try:
            if isinstance(stopped, KeyboardInterrupt):
                output.finish(outcome)
        finally:
            keep_what_there_is(engine, values["session"])
        raise
    try:
        output.finish(outcome)
    finally:
        keep(engine, values["session"])
    return 0


def _compare(values: dict[str, Any], request: SingleRequest, hints: Hints, output: Output) -> int:
    from forerun.measure.attribution import DEFECT
    from forerun.measure.paired import compare

    started: list[Run] = []
    _say_how(values, request.prompt)

    def begin(label: str, run: Run) -> None:
        # An interruption shows what there is so far.
        started.append(run)
        output.begin(label, run)

    pairs, prompt_ids = values["compare_rounds"], request.prompt.token_ids
    try:
        comparison = compare(
            request.engine, prompt_ids, request.params, pairs, hints=hints, begin=begin
        )
    except KeyboardInterrupt:
        if started:
            started[-1].stream.close()
            # The first speculative run of the full length, or what there is of the warm-up.
            shown = started[2] if len(started) > 2 else started[0]
            output.finish(request.outcome(values, shown))
        raise
    output.start()
    shown = comparison.shown.speculative
    output.finish(request.outcome(values, shown, comparison=comparison))
    difference = comparison.difference
    return DEFECT_FOUND if difference and difference.explanation == DEFECT else 0


command = Command(
    "generate",
    params=generate_options(),
    callback=generate,
    example=EXAMPLE,
    notes=method_notes,
)
