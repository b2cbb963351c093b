"""`forerun chat`: a conversation with a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from forerun.cli.bars import bars, waiting
from forerun.cli.output import NewOutput, visible_output
from forerun.cli.prompt import read_messages, with_system
from forerun.cli.session import open_session, restore
from forerun.compression import Compression
from forerun.engine.chat import TemplateOptions
from forerun.engine.config import SpeculativeConfig
from forerun.engine.options import ModelOptions, speculation
from forerun.engine.resolve import Resolved, choose
from forerun.errors import ConfigError, PromptError
from forerun.options import FileName, option, options, part
from forerun.params import SamplingParams, sampling, settled
from forerun.report.result import Result

if TYPE_CHECKING:
    from forerun.cli.repl import Repl
    from forerun.kv_cache.session_file import Session

USUAL = SamplingParams(max_tokens=1024, temperature=0.7)


@options
class ChatRequest:
    """Talk with a model, turn by turn.

    What you type is a message; /help lists the commands. Ctrl-C ends an answer, Ctrl-D the
    conversation. A turn runs only its new tokens: the rest is in the cache. Messages may also come through a
    pipe, one a line.
    """

    common: ClassVar[Sequence[str]] = (
        *("model", "system", "messages", "session", "temperature", "seed", "max_tokens", "method"),
        *("draft_model", "speculative"),
    )
    hidden: ClassVar[Sequence[str]] = ("Method prediction",)

    messages: FileName | None = option(
        default=None,
        description="A conversation to go on with: a JSON list of messages with role and content, or an "
        "object that holds one.",
        section="Prompt",
    )
    template: TemplateOptions = part(default=TemplateOptions, section="Prompt")
    model: ModelOptions = part(
        default=ModelOptions,
        section="Model",
        help={
            "max_context": "Tokens of a conversation at most; left out, the model's context up to 4096."
        },
    )
    compression: Compression = part(default=Compression, section="Cache", requires=("kv_method",))
    session: FileName | None = option(
        default=None,
        description="Go on with the conversation there, if it exists, and write it at the end.",
        section="Cache",
    )
    speculative: bool = option(
        default=True, description="Draft ahead, or decode plainly.", section="Speculation"
    )
    speculation: SpeculativeConfig = speculation(requires=("speculative",))
    sampling: Mapping[str, Any] = sampling(USUAL, without=("logprobs", "logprobs_mode"))


def run(request: ChatRequest, new_output: NewOutput = visible_output) -> Result:
    """Hold a conversation on the standard streams; the result has only an exit code.

    Args:
        new_output: returns where an answer is shown as it comes.

    Raises:
        ForerunError: for a model, method or file that does not fit.
    """
    session, messages = open_session(request.session), _read_messages(request)
    choice = choose(request.speculation, request.model.model) if request.speculative else None
    if choice is not None and choice.config.method == "prediction":
        raise ConfigError(
            "method 'prediction' drafts from a predicted output, which a conversation does not have; use "
            "another method, such as ngram or suffix."
        )
    code = _load(request, messages, choice, session, new_output).run()
    return Result(exit_code=code)


def _read_messages(request: ChatRequest) -> list[dict[str, Any]]:
    file = request.messages
    if file == "-":
        raise ConfigError("--messages is -, but what is said comes from there; name a file.")
    return with_system([] if file is None else read_messages(file), request.template.system)


def _load(
    request: ChatRequest,
    messages: list[dict[str, Any]],
    choice: Resolved | None,
    session: Session | None,
    new_output: NewOutput,
) -> Repl:
    with waiting("starting"):
        from forerun.cli.conversation import Conversation
        from forerun.cli.outcome import SingleRequest
        from forerun.cli.repl import Repl
        from forerun.engine.chat import ChatTemplate

        checkpoint = request.model.open()
    params, origins = settled(request.sampling, checkpoint.sampling_defaults, USUAL)
    tokenizer, system = checkpoint.tokenizer, request.template.system
    template = ChatTemplate.of(tokenizer)
    if template is None:
        raise PromptError(
            f"{checkpoint.name} has no chat template (a base model), which a conversation needs; use "
            "forerun generate, or a model that has one, such as smollm2."
        )
    variables = dict(request.template.template_var)
    conversation = Conversation(tokenizer, template, variables, messages)
    if session is not None and request.messages is None:
        conversation.restore(session)
        if system is not None:
            conversation.set_system(system)
    # A variable that the template does not read is refused before the model is loaded.
    empty = conversation.prompt({"role": "user", "content": ""})
    with bars():
        engine = request.model.load(
            checkpoint,
            choice,
            max_context=request.model.max_context,
            compression=request.compression,
        )
    restore(engine, request.session, session)
    first = SingleRequest(request.model.model, engine, empty, params, origins)
    return Repl(request, first, conversation, new_output)
