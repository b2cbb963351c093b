"""The core of all chat fronts: from a body in OpenAI's form to an answer in pieces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest

from forerun.core import Hints
from forerun.server.answers import AnswerPart, Splitter, Thinking
from forerun.server.bodies import ChatBody, Function, Message, Tool, text_of
from forerun.server.constraints import grammar_of
from forerun.server.errors import ApiError
from forerun.server.respond import AnswerResponse, Form
from forerun.server.service import EngineRequest
from forerun.server.state import ServerState
from forerun.server.tools import ToolCallReader, ToolFormat, offered

# Tokens at the end of a prompt in which the template may have opened a thought.
_TAIL = 8


def answer(state: ServerState, request: HttpRequest, body: ChatBody, form: Form) -> AnswerResponse:
    """The response to a conversation, in the form of a front.

    Raises:
        ApiError: for another model, and while the server cannot answer.
    """
    make = partial(_make, state, body, request.state.namespace)
    return AnswerResponse(state, request, body, make, form)


def _make(
    state: ServerState, body: ChatBody, namespace: str
) -> tuple[Sequence[EngineRequest], dict[str, Any]]:
    functions, form = offered(body, state.tool_format), state.tool_format
    token_ids = prompt_for(state, body)
    params = state.sampling(body)
    params["max_tokens"] = _limit(body)
    if body.logprobs:
        params["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true.", param="top_logprobs")
    hints, opened = Hints(_prediction(state, body), namespace), _thinks(state, token_ids)
    grammars = _grammars(state, body, opened, functions)
    marks = form.marks if form is not None and functions else ()
    requests = state.repeated(body, [token_ids], params, grammars, hints=hints, marks=marks)
    options: dict[str, Any] = {
        "new_splitter": lambda: _splitter(opened, form, functions),
        "per_prompt": len(requests),
        "prediction_only": state.engine.config.method == "prediction",
    }
    return requests, options


def prompt_for(state: ServerState, body: ChatBody) -> list[int]:
    """The prompt of a body, with the tools that may be called.

    Raises:
        ForerunError, ApiError: as `prompt_of` and `offered` do.
    """
    tools = body.tools if offered(body, state.tool_format) else None
    variables, effort = body.chat_template_kwargs, body.reasoning_effort
    return prompt_of(state, body.messages, variables, effort, tools)


def prompt_of(
    state: ServerState,
    messages: Sequence[Message],
    variables: Mapping[str, Any] | None,
    effort: str | None = None,
    tools: Sequence[Tool] | None = None,
) -> list[int]:
    """The prompt of a conversation.

    Raises:
        ForerunError: for messages or variables that the template refuses, and without a template.
    """
    values = dict(variables or {})
    if effort is not None and "reasoning_effort" in state.prompts.template_variables:
        values.setdefault("reasoning_effort", effort)
    if tools:
        values["tools"] = [tool.model_dump(exclude_none=True) for tool in tools]
    written = [_written(message) for message in messages]
    return state.prompts.read_messages(written, values or None)


def _written(message: Message) -> dict[str, Any]:
    """A message as templates know it: OpenAI's developer is their system."""
    written = message.model_dump(exclude_none=True)
    if message.role == "developer":
        written["role"] = "system"
    for call in written.get("tool_calls", ()):
        function = call.get("function", {}) if isinstance(call, dict) else {}
        # Templates write arguments as the objects that they are.
        with suppress(ValueError, TypeError):
            function["arguments"] = json.loads(function["arguments"])
    return written


def _limit(body: ChatBody) -> int | None:
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        message = "max_tokens and max_completion_tokens differ; give one."
        raise ApiError(400, message, param="max_tokens")
    # Without a limit an answer goes on to the end of the context.
    return limits.pop() if limits else None


def _prediction(state: ServerState, body: ChatBody) -> tuple[int, ...]:
    if body.prediction is None:
        return ()
    return state.prompts.read_prediction(text_of(body.prediction.content, "prediction", joint=""))


def _thinks(state: ServerState, token_ids: Sequence[int]) -> bool | None:
    """True if the prompt ends in a thought, False if one may come; None if the template has none."""
    template, engine = state.template, state.engine
    if template is None or Thinking.END not in template.source or engine.tokenizer is None:
        return None
    tail = engine.tokenizer.decode(list(token_ids[-_TAIL:])).rstrip()
    return None if tail.endswith(Thinking.END) else tail.endswith(Thinking.START)


def _splitter(
    opened: bool | None, form: ToolFormat | None, functions: Sequence[Function]
) -> Splitter:
    """Splitter of one choice: its thought, then its text and calls."""
    thinking = None if opened is None else Thinking(opened)
    calls = ToolCallReader(form, functions) if form is not None and functions else None

    def split(text: str, final: bool) -> Sequence[AnswerPart]:
        parts = (AnswerPart("text", text),) if thinking is None else thinking(text, final)
        if calls is None:
            return parts
        thought = [part for part in parts if part.kind == "reasoning"]
        return [*thought, *calls("".join(part.text for part in parts[len(thought) :]), final)]

    return split


def _grammars(
    state: ServerState, body: ChatBody, opened: bool | None, functions: Sequence[Function]
) -> Sequence[dict[str, Any]]:
    """Grammars of an answer, which hold after its thought: of calls, of text or of both."""
    grammar, choice, rules = grammar_of(body), body.tool_choice, list[str]()
    forced = bool(functions) and choice not in (None, "auto")
    if grammar is None and not forced:
        return ()
    words, ways = state.vocabulary, [] if forced else ["@answer"]
    if functions and state.tool_format is not None:
        several = choice == "required" and body.parallel_tool_calls is not False
        ways, rules = [*ways, "calls"], [state.tool_format.rules(words, functions, several)]
    thought = ""
    if opened is not None:
        thought = "thought" if opened else f"({words.literal(Thinking.START)} thought)?"
        rules += ["thought: before /\\n{0,3}/", words.until(Thinking.END)]
    start = "\n".join([f"start: {thought} ({' | '.join(ways)})", *rules])
    named = () if forced or grammar is None else ({"name": "answer", **grammar},)
    return ({"lark_grammar": start}, *named)
