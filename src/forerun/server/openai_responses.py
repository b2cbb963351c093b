"""/v1/responses in OpenAI's form, without stored conversations."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request as HttpRequest

from forerun.server import chat
from forerun.server.answers import Answer, AnswerChoice, Block, Counts
from forerun.server.bodies import ChatBody, CommonBody, text_of
from forerun.server.errors import ApiError
from forerun.server.respond import STREAMS, AnswerResponse, Form, event
from forerun.server.state import ServerState

_PARTS = {"text": "output_text", "reasoning": "reasoning_text"}
# Events of a growing block.
_MORE = _PARTS | {"call": "function_call_arguments"}


class ResponsesBody(CommonBody):
    """Body of /v1/responses."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=2**31)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    previous_response_id: str | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    # No effect on an answer of this server.
    include: list[str] | None = None
    stream_options: dict[str, Any] | None = None


def add_routes(app: FastAPI, state: ServerState) -> None:
    @app.post("/v1/responses", response_model=None, responses=STREAMS)
    async def responses(body: ResponsesBody, request: HttpRequest) -> AnswerResponse:
        """Answer a conversation that is given as items."""
        if body.previous_response_id is not None:
            message = "responses are not stored; send the whole conversation as input."
            raise ApiError(400, message, param="previous_response_id")
        return chat.answer(state, request, _chat_body(body), ResponseWriter(state, body))


def _chat_body(body: ResponsesBody) -> ChatBody:
    """A body in OpenAI's form of chat, to which this one translates.

    Raises:
        ApiError: for an item that is not served.
    """
    fields: dict[str, Any] = {name: getattr(body, name) for name in CommonBody.model_fields}
    fields |= {"max_tokens": body.max_output_tokens, "messages": _messages(body)}
    # Other types are OpenAI's hosted tools, which this server does not have.
    functions = [tool for tool in body.tools or () if tool.get("type") == "function"]
    tools = [_nested(function, "function") for function in functions]
    choice, form = body.tool_choice, (body.text or {}).get("format") or {"type": "text"}
    if tools:
        fields["tools"], fields["parallel_tool_calls"] = tools, body.parallel_tool_calls
        fields["tool_choice"] = _nested(choice, "function") if isinstance(choice, dict) else choice
    elif choice not in (None, "auto", "none"):
        raise ApiError(400, "tool_choice needs a tool of type function.", param="tool_choice")
    is_schema = isinstance(form, dict) and form.get("type") == "json_schema"
    fields["response_format"] = _nested(form, "json_schema") if is_schema else form
    fields["reasoning_effort"] = (body.reasoning or {}).get("effort")
    return ChatBody.model_validate(fields)


def _nested(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A typed object as chat has it: all but the type under a name."""
    return {"type": name, name: {key: value for key, value in given.items() if key != "type"}}


def _messages(body: ResponsesBody) -> list[dict[str, Any]]:
    """The messages that an input's items stand for."""
    items, messages = body.input, list[dict[str, Any]]()
    if body.instructions is not None:
        messages.insert(0, {"role": "system", "content": body.instructions})
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    for item in items:
        kind, role = item.get("type", "message"), item.get("role")
        match kind:
            case "message" if role != "assistant":
                messages.append({"role": role, "content": text_of(item.get("content"), "input")})
            case "message":
                _assistant(messages)["content"] = text_of(item.get("content"), "input")
            case "reasoning":
                messages.append({"role": "assistant", "content": ""})
                messages[-1]["reasoning_content"] = text_of(item.get("content"), "input")
            case "function_call":
                function = {name: item.get(name) for name in ("name", "arguments")}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
                _assistant(messages, calls=True).setdefault("tool_calls", []).append(call)
            case "function_call_output":
                text, number = text_of(item.get("output"), "input"), item.get("call_id")
                messages.append({"role": "tool", "tool_call_id": number, "content": text})
            case _:
                message = f"items of type {str(kind)[:40]!r} are not served."
                raise ApiError(400, message, param="input")
    return messages or [{"role": "user", "content": ""}]


def _assistant(messages: list[dict[str, Any]], calls: bool = False) -> dict[str, Any]:
    """The message of the assistant that an item goes on with, or a new one."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or (last["content"] and not calls):
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


class ResponseWriter(Form):
    """Writes an answer as OpenAI's response, whole or as a stream.

    Args:
        state: the server's.
        body: what was asked for.
    """

    def __init__(self, state: ServerState, body: ResponsesBody) -> None:
        self._state, self._body, self._number = state, body, f"resp_{uuid.uuid4().hex}"
        self._created, self._numbers, self.streams = int(time.time()), count(), bool(body.stream)

    def failed(self, body: dict[str, Any]) -> str:
        return self._event("error", **body["error"])

    async def whole(self, answer: Answer) -> dict[str, Any]:
        [choice] = await answer.gathered()
        return self._done(answer, choice)

    async def stream(self, answer: Answer) -> AsyncIterator[str]:
        begun = self._response("in_progress", ())
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)
        choice = AnswerChoice()
        async for piece in answer:
            for change, block, text in choice.add(piece):
                for kind, fields in self._change(change, block, text):
                    yield self._event(f"response.{kind}", **fields)
        done = self._done(answer, choice)
        yield self._event(f"response.{done['status']}", response=done)

    def _change(self, change: str, block: Block, text: str) -> Sequence[tuple[str, dict[str, Any]]]:
        """Events of a change, in their order."""
        place = {"output_index": block.place}
        inside: dict[str, Any] = place | {"item_id": self._item_id(block)}
        part, more = _PARTS.get(block.first.kind), _MORE[block.first.kind]
        inside |= {} if part is None else {"content_index": 0}
        own: dict[str, Any] = inside | ({"logprobs": []} if block.first.kind == "text" else {})
        if change == "more":
            return [(f"{more}.delta", own | {"delta": text})]
        ends = change == "end"
        name = "done" if ends else "added"
        events = [(f"output_item.{name}", place | {"item": self._item(block, ends)})]
        if part is not None:
            events.append((f"content_part.{name}", inside | {"part": _part(block, part)}))
        if not ends:
            return events
        key = "arguments" if part is None else "text"
        return [(f"{more}.done", own | {key: block.text}), *events[::-1]]

    def _event(self, kind: str, **fields: Any) -> str:
        return event(fields | {"type": kind, "sequence_number": next(self._numbers)}, kind)

    def _item_id(self, block: Block) -> str:
        return f"{block.first.kind}_{block.place}_{self._number}"

    def _item(self, block: Block, ended: bool = True) -> dict[str, Any]:
        status = ("incomplete" if block.cut else "completed") if ended else "in_progress"
        item: dict[str, Any] = {"id": self._item_id(block), "status": status}
        first = block.first
        if first.kind == "call":
            called = {"call_id": first.call_id, "name": first.name}
            return item | {"type": "function_call", **called, "arguments": block.text}
        content = [_part(block, _PARTS[first.kind])] if ended else []
        if first.kind == "reasoning":
            return item | {"type": "reasoning", "summary": [], "content": content}
        return item | {"type": "message", "role": "assistant", "content": content}

    def _done(self, answer: Answer, choice: AnswerChoice) -> dict[str, Any]:
        [end] = answer.endings
        status = "incomplete" if end.reason == "length" else "completed"
        output = [self._item(block) for block in choice.blocks]
        return self._response(status, output) | {"usage": _usage(answer.counts)}

    def _response(self, status: str, output: Sequence[dict[str, Any]]) -> dict[str, Any]:
        body = self._body
        same = ("instructions", "max_output_tokens", "temperature", "top_p", "reasoning", "user")
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **{name: getattr(body, name) for name in (*same, "previous_response_id")},
            "id": self._number,
            "object": "response",
            "created_at": self._created,
            "model": body.model or self._state.names[0],
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "output": output,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "store": False,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "truncation": "disabled",
            "usage": None,
        }


def _part(block: Block, kind: str) -> dict[str, Any]:
    made: dict[str, Any] = {"type": kind, "text": block.text}
    return made | {"annotations": [], "logprobs": []} if block.first.kind == "text" else made


def _usage(counts: Counts) -> dict[str, Any]:
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached},
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.prompt + counts.completion,
    }
