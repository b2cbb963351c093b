"""`forerun generate`: the answer to a prompt, or its completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from forerun.cli.bars import bars, waiting
from forerun.cli.output import NewOutput, Output
from forerun.cli.prompt import make_prompt, read_prediction, read_prompt, show_prompt
from forerun.cli.session import open_session, restore, session_kept
from forerun.compression import Compression
from forerun.engine.chat import TemplateOptions
from forerun.engine.config import SpeculativeConfig
from forerun.engine.options import ModelOptions, context_of, settings_of, speculation
from forerun.engine.resolve import Resolved, choose
from forerun.errors import ConfigError
from forerun.options import FileName, option, options, part
from forerun.params import SamplingParams, sampling, settled
from forerun.progress import say
from forerun.report.result import DEFECT_FOUND, Interrupted, Result

if TYPE_CHECKING:
    from forerun.cli.outcome import Outcome, SingleRequest
    from forerun.core import Hints
    from forerun.kv_cache.session_file import Session

USUAL = SamplingParams()


@options
class GenerateRequest:
    """Answer PROMPT, or complete it, with the model's own text, drafted ahead and verified.

    A model with a chat template answers; others, and all with --raw, go on from the text. Standard
    output carries the text alone, or one JSON object; everything else goes to standard error.
    """

    common: ClassVar[Sequence[str]] = (
        *("model", "prompt_file", "system", "temperature", "seed", "max_tokens", "method"),
        *("draft_model", "compare", "quiet", "json"),
    )

    prompt: str | None = option(
        default=None,
        description="PROMPT as an option.",
        section="Prompt",
        argument=True,
        excludes=("prompt_file", "messages"),
    )
    prompt_file: FileName | None = option(
        default=None,
        description="A UTF-8 file that holds it; - is standard input, as is leaving both out.",
        excludes=("messages",),
    )
    messages: FileName | None = Field(
        default=None,
        description="A conversation to answer (- is standard input): a JSON list of messages with role and "
        "content, or an object that holds one.",
    )
    raw: bool = option(
        default=False,
        description="Send the text as it is, without the model's chat template.",
        excludes=("messages", "system", "template_var"),
    )
    template: TemplateOptions = part(default=TemplateOptions, section="Prompt")
    model: ModelOptions = part(default=ModelOptions, section="Model")
    compression: Compression = part(default=Compression, section="Cache", requires=("kv_method",))
    session: FileName | None = option(
        default=None,
        description="Read what a prompt shares with an earlier one from there, if it exists, and write it at "
        "the end.",
        section="Cache",
        excludes=("compare",),
    )
    speculative: bool = option(
        default=True, description="Draft ahead, or decode plainly.", section="Speculation"
    )
    speculation: SpeculativeConfig = speculation(requires=("speculative",))
    prediction_file: FileName | None = option(
        default=None,
        description="A UTF-8 file with the output that is expected, for method prediction.",
        section="Method prediction",
        requires=("speculative",),
    )
    sampling: Mapping[str, Any] = sampling(USUAL)
    compare: bool = option(
        default=False,
        description="Decode plainly too; same text? how fast?",
        section="Comparison",
        requires=("speculative",),
    )
    compare_rounds: int = option(
        default=3,
        ge=1,
        le=10**6,
        description="Pairs of timed runs for --compare.",
        requires=("compare",),
    )
    show_rounds: bool = option(
        default=False,
        description="Show every round: what was drafted, and what of it was emitted.",
        section="Other",
        requires=("speculative",),
        excludes=("compare",),
    )
    quiet: bool = option(
        default=False,
        description="Print the text alone: no prompt, marks or statistics.",
        excludes=("compare", "show_rounds"),
    )


def run(request: GenerateRequest, new_output: NewOutput = Output) -> Result:
    """The text and its statistics.

    Args:
        new_output: returns where the text is shown as it comes.

    Raises:
        ForerunError: for a model, method, prompt or file that does not fit.
        Interrupted: with the text until then.
    """
    output, config = new_output(marks=not request.quiet), request.speculation
    if request.sampling.get("logprobs") is not None and not output.takes_logprobs:
        raise ConfigError("--logprobs are part of the JSON object; add --json.")
    content = read_prompt(request.prompt, request.prompt_file, request.messages)
    prediction = read_prediction(request.prediction_file)
    choice = choose(config, request.model.model) if request.speculative else None
    if choice is not None:
        _check_options(choice.config, request.prediction_file)
    single = _load(request, content, choice, open_session(request.session))
    from forerun.core import Hints

    if not request.quiet:
        output.prompt(_shown(content), apart=single.prompt.template)
    follow = _compare if request.compare else _complete
    return _result(request, follow(request, single, Hints(prediction=prediction), output))


def _check_options(config: SpeculativeConfig, prediction_file: str | None) -> None:
    """Refuse options that are of no use to a single request, and a missing prediction.

    Raises:
        ConfigError: naming the option.
    """
    if "suffix_store_tokens" in config.options:
        raise ConfigError(
            "suffix_store_tokens keeps outputs for later requests, and one run has none; "
            "leave it out, or use --corpus with earlier answers, or forerun chat."
        )
    if prediction_file is not None and not any(
        drafter.reads_predictions for drafter in config.drafters
    ):
        raise ConfigError(
            f"--prediction-file is not read by method {config.method!r}; "
            "leave it out or use --method prediction."
        )
    if prediction_file is None and config.method == "prediction":
        raise ConfigError(
            "method 'prediction' drafts from a predicted output; add --prediction-file."
        )


def _shown(content: str | list[dict[str, Any]]) -> str:
    """The text shown before the answer: the prompt, or the last message of a conversation."""
    if isinstance(content, str):
        return content
    from forerun.engine.chat import text_of

    return text_of(content[-1])


def _load(
    request: GenerateRequest,
    content: str | list[dict[str, Any]],
    choice: Resolved | None,
    session: Session | None,
) -> SingleRequest:
    """A request ready to run, with an engine that has room for it alone."""
    with waiting("starting"):
        from forerun.cli.outcome import SingleRequest

        checkpoint = request.model.open()
    params, origins = settled(request.sampling, checkpoint.sampling_defaults, USUAL)
    prompt = make_prompt(checkpoint, content, request.template, raw=request.raw)
    if request.template.show_prompt:
        show_prompt(prompt)
    assert params.max_tokens is not None
    held = 0 if session is None else len(session.token_ids) + 1
    needed = max(len(prompt.token_ids) + params.max_tokens, held)
    context = context_of(checkpoint, request.model.max_context, needed)
    with bars():
        engine = request.model.load(
            checkpoint, choice, max_context=context, compression=request.compression
        )
    restore(engine, request.session, session)
    return SingleRequest(request.model.model, engine, prompt, params, origins)


def _say_how(request: GenerateRequest, single: SingleRequest) -> None:
    """Say that the model has no chat template, if that matters."""
    if not single.prompt.template and not request.raw:
        text = "has no chat template (a base model): the prompt is sent as it is, as with --raw"
        say(f"{single.model} {text}")


def _complete(
    request: GenerateRequest, single: SingleRequest, hints: Hints, output: Output
) -> Outcome:
    from forerun.cli.outcome import Outcome, Round
    from forerun.measure.paired import Run

    engine, prompt_ids = single.engine, single.prompt.token_ids
    # The plain loop keeps nothing for a session.
    if request.speculative or request.session is not None:
        run = Run(engine.stream(prompt_ids, single.params, hints=hints), engine.policy)
    else:
        run = Run(engine.stream_plain(prompt_ids, single.params))
    # Here: what is refused until now is said in one line.
    _say_how(request, single)
    rounds: list[Round] | None = [] if request.show_rounds else None
    if rounds is not None:
        engine.watch_rounds(lambda done: rounds.append(Round.of(done)))
    outcome = Outcome(single, run, rounds=rounds)
    output.start(legend=request.speculative and not request.quiet)
    with session_kept(engine, request.session):
        try:
            run.follow(output.event)
        except KeyboardInterrupt:
            output.finish(outcome, panel=not request.quiet)
            raise Interrupted(_result(request, outcome)) from None
        output.finish(outcome, panel=not request.quiet)
    return outcome


def _compare(
    request: GenerateRequest, single: SingleRequest, hints: Hints, output: Output
) -> Outcome:
    from forerun.cli.outcome import Outcome
    from forerun.measure.paired import compare

    _say_how(request, single)
    prompt_ids, rounds = single.prompt.token_ids, request.compare_rounds
    with bars():
        comparison = compare(single.engine, prompt_ids, single.params, rounds, hints=hints)
    output.start()
    outcome = Outcome(single, comparison.shown.speculative, comparison=comparison)
    output.finish(outcome)
    return outcome


def _result(request: GenerateRequest, outcome: Outcome) -> Result:
    from forerun.cli.outcome import report
    from forerun.measure.attribution import DEFECT

    engine, comparison = outcome.request.engine, outcome.comparison
    difference = comparison.difference if comparison else None
    return Result(
        settings=settings_of(engine.config) if request.speculative else {},
        content=report(outcome),
        exit_code=DEFECT_FOUND if difference and difference.explanation == DEFECT else 0,
        device=engine.target.device,
    )
