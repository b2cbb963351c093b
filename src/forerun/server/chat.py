"""The core of all chat fronts: from a body in OpenAI's form to an answer in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest

from forerun.core import Hints
from forerun.server.answers import Thinking
from forerun.server.bodies import ChatBody, Message
from forerun.server.constraints import grammar_of
from forerun.server.errors import ApiError
from forerun.server.respond import AnswerResponse, Form
from forerun.server.service import EngineRequest
from forerun.server.state import ServerState

# Tokens at the end of a prompt in which the template may have opened a thought.
_TAIL = 8


def answer(state: ServerState, request: HttpRequest, body: ChatBody, form: Form) -> AnswerResponse:
    """The response to a conversation, in the form of a front.

    Raises:
        ApiError: for another model, and while the server cannot answer.
    """
    make = partial(_make, state, body, request.state.namespace)
    return state.answer(request, body, make, form)


def _make(
    state: ServerState, body: ChatBody, namespace: str
) -> tuple[Sequence[EngineRequest], dict[str, Any]]:
    token_ids = prompt_of(state, body.messages, body.chat_template_kwargs, body.reasoning_effort)
    params = state.sampling(body)
    params["max_tokens"] = _limit(body)
    if body.logprobs:
        params["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true.", param="top_logprobs")
    hints, opened = Hints(_prediction(state, body), namespace), _thinks(state, token_ids)
    grammars = _grammars(state, grammar_of(body), opened)
    requests = state.repeated(body, [token_ids], params, grammars, hints=hints)
    options = {
        **({} if opened is None else {"new_splitter": partial(Thinking, opened)}),
        "per_prompt": len(requests),
        "prediction_only": state.engine.config.method == "prediction",
    }
    return requests, options


def prompt_of(
    state: ServerState,
    messages: Sequence[Message],
    variables: Mapping[str, Any] | None,
    effort: str | None = None,
) -> list[int]:
    """The prompt of a conversation.

    Raises:
        ForerunError: for messages or variables that the template refuses, and without a template.
    """
    values = dict(variables or {})
    if effort is not None and "reasoning_effort" in state.prompts.template_variables:
        values.setdefault("reasoning_effort", effort)
    written = [_written(message) for message in messages]
    return state.prompts.read_messages(written, values or None)


def _written(message: Message) -> dict[str, Any]:
    """A message as templates know it: OpenAI's developer is their system."""
    written = message.model_dump(exclude_none=True)
    if message.role == "developer":
        written["role"] = "system"
    return written


def _limit(body: ChatBody) -> int | None:
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise ApiError(
            400, "max_tokens and max_completion_tokens differ; give one.", param="max_tokens"
        )
    if 0 in limits:
        raise ApiError(400, "max_tokens is 0; an answer has at least 1 token.", param="max_tokens")
    return limits.pop() if limits else None


def _prediction(state: ServerState, body: ChatBody) -> tuple[int, ...]:
    if body.prediction is None:
        return ()
    content = body.prediction.content
    if not isinstance(content, str):
        parts = [part.get("text") for part in content]
        if not all(isinstance(part, str) for part in parts):
            raise ApiError(400, "a prediction is text, or parts of text.", param="prediction")
        content = "".join(str(part) for part in parts)
    return state.prompts.read_prediction(content)


def _thinks(state: ServerState, token_ids: Sequence[int]) -> bool | None:
    """True if the prompt ends in a thought, False if one may come; None if the template has none."""
    template, engine = state.template, state.engine
    if template is None or Thinking.END not in template.source or engine.tokenizer is None:
        return None
    tail = engine.tokenizer.decode(list(token_ids[-_TAIL:])).rstrip()
    return None if tail.endswith(Thinking.END) else tail.endswith(Thinking.START)


def _grammars(
    state: ServerState, grammar: dict[str, Any] | None, opened: bool | None
) -> Sequence[dict[str, Any]]:
    """A grammar of an answer, which holds after its thought."""
    if grammar is None or opened is None:
        return () if grammar is None else (grammar,)
    words = state.vocabulary
    thought = "thought" if opened else f"({words.literal(Thinking.START)} thought)?"
    rules = f"start: {thought} @answer\nthought: before /\\n{{0,3}}/\n{words.until(Thinking.END)}"
    return ({"lark_grammar": rules}, {"name": "answer", **grammar})
