"""/v1/messages and /v1/messages/count_tokens in Anthropic's form."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request as HttpRequest

from forerun.server import chat
from forerun.server.answers import Answer, AnswerChoice, Block, Counts
from forerun.server.bodies import Body, ChatBody, CommonBody, text_of
from forerun.server.errors import WITH_BODY, ApiError
from forerun.server.respond import STREAMS, AnswerResponse, Form, event
from forerun.server.state import ServerState

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class AnthropicTool(Body):
    """A tool that a client runs."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    # No effect on an answer of this server.
    cache_control: dict[str, Any] | None = None
    eager_input_streaming: bool | None = None


class AnthropicToolChoice(Body):
    """The tools that an answer may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicThinking(Body):
    """Thinking, on or off where the template reads that; its length is the model's own."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: str | None = None


class AnthropicMessage(Body):
    """A message of text, or of blocks."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class CountBody(Body):
    """Body of /v1/messages/count_tokens."""

    model: str | None = None
    messages: list[AnthropicMessage] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: AnthropicThinking | None = None
    cache_control: dict[str, Any] | None = None


class MessagesBody(CountBody, CommonBody):
    """Body of /v1/messages."""

    max_tokens: int = Field(ge=1, le=2**31)
    stop_sequences: list[str] | None = Field(default=None, max_length=64)
    top_k: int | None = Field(default=None, ge=0, le=2**31)


def add_routes(app: FastAPI, state: ServerState) -> None:
    @app.post("/v1/messages", response_model=None, responses=STREAMS)
    async def messages(body: MessagesBody, request: HttpRequest) -> AnswerResponse:
        """Answer a conversation."""
        names = (*CommonBody.model_fields, "max_tokens", "top_k")
        fields = {name: getattr(body, name) for name in names} | {"stop": body.stop_sequences}
        translated = _chat_body(state, body, fields)
        return chat.answer(state, request, translated, MessageWriter(state, body))

    @app.post("/v1/messages/count_tokens", responses=WITH_BODY)
    async def count_tokens(body: CountBody) -> dict[str, int]:
        """Tokens of the prompt of a conversation."""
        state.check_model(body.model)
        prompt = await asyncio.to_thread(chat.prompt_for, state, _chat_body(state, body, {}))
        return {"input_tokens": len(prompt)}


def _chat_body(state: ServerState, body: CountBody, fields: dict[str, Any]) -> ChatBody:
    """A body in OpenAI's form, to which this one translates.

    Raises:
        ApiError: for a block that is not served.
    """
    system = [] if body.system is None else [{"role": "system", "content": body.system}]
    given = [*system, *(message.model_dump() for message in body.messages)]
    fields |= {"messages": [made for message in given for made in _translated(message)]}
    choice, thinking = body.tool_choice, body.thinking
    if body.tools is not None:
        fields["tools"] = [_function(tool) for tool in body.tools]
    if choice is not None:
        named = {"type": "function", "function": {"name": choice.name or ""}}
        fields["tool_choice"] = _CHOICES.get(choice.type, named)
        fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if thinking is not None and "enable_thinking" in state.prompts.template_variables:
        fields["chat_template_kwargs"] = {"enable_thinking": thinking.type != "disabled"}
    return ChatBody.model_validate(fields | {"model": body.model})


def _function(tool: AnthropicTool) -> dict[str, Any]:
    described = tool.model_dump(include={"name", "description", "strict"})
    return {"type": "function", "function": described | {"parameters": tool.input_schema}}


def _translated(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Translate a message to OpenAI's form; each tool result becomes a separate message."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        return [message]
    made: dict[str, Any] = {"role": role}
    results, texts, calls = list[dict[str, Any]](), list[str](), list[dict[str, Any]]()
    for block in content:
        match block.get("type"):
            case "text":
                texts.append(text_of(block, "messages"))
            case "thinking":
                made["reasoning_content"] = block.get("thinking")
            case "redacted_thinking":
                pass
            case "tool_use":
                function = {"name": block.get("name"), "arguments": json.dumps(block.get("input"))}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case "tool_result":
                text, number = text_of(block.get("content"), "messages"), block.get("tool_use_id")
                results.append({"role": "tool", "tool_call_id": number, "content": text})
            case kind:
                problem = f"blocks of type {str(kind)[:40]!r} are not served; text and tools are."
                raise ApiError(400, problem, param="messages")
    if calls:
        made["tool_calls"] = calls
    if texts or calls or not results:
        results.append(made | {"content": "\n".join(texts)})
    return results


class MessageWriter(Form):
    """Writes an answer as Anthropic's message, whole or as a stream.

    Args:
        state: the server's.
        body: what was asked for.
    """

    def __init__(self, state: ServerState, body: MessagesBody) -> None:
        self._state, self._body, self.streams = state, body, bool(body.stream)

    def failed(self, body: dict[str, Any]) -> str:
        return event(body, "error")

    async def whole(self, answer: Answer) -> dict[str, Any]:
        [choice] = await answer.gathered()
        content = [_filled(block) for block in choice.blocks]
        return self._message(content, answer.counts) | self._end(answer)

    async def stream(self, answer: Answer) -> AsyncIterator[str]:
        yield _event("message_start", message=self._message([], answer.counts))
        choice = AnswerChoice()
        async for piece in answer:
            for change, block, text in choice.add(piece):
                place = {"index": block.place}
                if change == "begin":
                    yield _event("content_block_start", **place, content_block=_content(block))
                elif change == "more":
                    yield _event("content_block_delta", **place, delta=_delta(block, text))
                else:
                    yield _event("content_block_stop", **place)
        usage = _usage(answer.counts)
        yield _event("message_delta", delta=self._end(answer), usage=usage)
        yield _event("message_stop")

    def _message(self, content: Sequence[dict[str, Any]], counts: Counts) -> dict[str, Any]:
        return {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": self._body.model or self._state.names[0],
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(counts),
        }

    def _end(self, answer: Answer) -> dict[str, Any]:
        [end] = answer.endings
        rest = self._state.tokens.decode(end.completion.token_ids)[len(end.completion.text) :]
        found = [text for text in self._body.stop_sequences or () if text and rest.startswith(text)]
        if end.reason == "stop" and found:
            return {"stop_reason": "stop_sequence", "stop_sequence": found[0]}
        return {"stop_reason": _REASONS[end.reason], "stop_sequence": None}


def _event(kind: str, **fields: Any) -> str:
    return event({"type": kind, **fields}, kind)


def _content(block: Block) -> dict[str, Any]:
    """A block as it begins."""
    first = block.first
    if first.kind == "call":
        return {"type": "tool_use", "id": first.call_id, "name": first.name, "input": {}}
    if first.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _filled(block: Block) -> dict[str, Any]:
    content = _content(block)
    if block.first.kind != "call":
        return content | {content["type"]: block.text}
    try:
        return content | {"input": json.loads(block.text or "{}")}
    except ValueError:
        # Cut off before its end.
        return content


def _delta(block: Block, text: str) -> dict[str, Any]:
    if block.first.kind == "call":
        return {"type": "input_json_delta", "partial_json": text}
    name = "thinking" if block.first.kind == "reasoning" else "text"
    return {"type": f"{name}_delta", name: text}


def _usage(counts: Counts) -> dict[str, int]:
    return {
        "input_tokens": counts.prompt - counts.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.completion,
    }
