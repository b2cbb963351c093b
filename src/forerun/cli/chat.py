"""`forerun chat`: talk with a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forerun.cli.asked import (
    load_engine,
    open_checkpoint,
    sampling_params,
    speculation,
    with_defaults,
)
from forerun.cli.combinations import settle_speculation
from forerun.cli.flags import chat_options
from forerun.cli.options import Command, Note, method_notes
from forerun.cli.prompt import read_messages, with_system
from forerun.cli.quiet import quiet_libraries
from forerun.cli.session import open_session, restore
from forerun.errors import ConfigError, PromptError

if TYPE_CHECKING:
    from forerun.cli.repl import Repl
    from forerun.engine.resolve import Resolved
    from forerun.kv_cache.session_file import Session
    from forerun.params import SamplingParams


@click.pass_context
def chat(ctx: click.Context, /, **values: Any) -> int:
    """Talk with a model, turn by turn.

    What you type is a message; /help lists the commands. Ctrl-C ends an answer, Ctrl-D the
    conversation. A turn runs only its new tokens: the rest is in the cache. Messages may also come through a
    pipe, one a line.
    """
    settle_speculation(ctx, values)
    session = open_session(values["session"])
    messages = _read_messages(values)
    params = sampling_params(values)
    quiet_libraries()
    choice = speculation(ctx, values, values["model"]) if values["speculative"] else None
    if choice is not None and choice.config.method == "prediction":
        raise ConfigError(
            "method 'prediction' drafts from a predicted output, which a conversation has not; use "
            "another method, such as ngram or suffix."
        )
    return _load(ctx, values, messages, params, choice, session).run()


def _read_messages(values: dict[str, Any]) -> list[dict[str, Any]]:
    file = values["messages"]
    if file == "-":
        raise ConfigError("--messages is -, but what is said comes from there; name a file.")
    return with_system([] if file is None else read_messages(file), values["system"])


def _load(
    ctx: click.Context,
    values: dict[str, Any],
    messages: list[dict[str, Any]],
    params: SamplingParams,
    choice: Resolved | None,
    session: Session | None,
) -> Repl:
    checkpoint = open_checkpoint(values)
    from forerun.cli.conversation import Conversation
    from forerun.cli.repl import Repl
    from forerun.engine.chat import ChatTemplate
    from forerun.engine.load import DEFAULT_CONTEXT

    params, from_model = with_defaults(ctx, params, checkpoint.sampling_defaults)
    tokenizer = checkpoint.tokenizer
    template = ChatTemplate.of(tokenizer)
    if template is None:
        raise PromptError(
            f"{checkpoint.name} has no chat template (a base model), which a conversation needs; use "
            "forerun generate, or a model that has one, such as smollm2."
        )
    conversation = Conversation(tokenizer, template, dict(values["template_var"]), messages)
    if session is not None and values["messages"] is None:
        conversation.restore(session)
        if values["system"] is not None:
            conversation.set_system(values["system"])
    # A variable that the template does not read is refused before the model is loaded.
    conversation.prompt({"role": "user", "content": ""})
    context = values["max_context"] or min(DEFAULT_CONTEXT, checkpoint.summary.max_context)
    engine = load_engine(values, checkpoint, choice, max_context=context)
    restore(engine, values["session"], session)
    return Repl(values, engine, conversation, params, from_model)


def _notes() -> dict[str, Note]:
    return {title: note for title, note in method_notes().items() if title != "Method prediction"}


command = Command(
    "chat",
    params=chat_options(),
    callback=chat,
    example='forerun chat --model smollm2 --system "You are brief."',
    notes=_notes,
)
