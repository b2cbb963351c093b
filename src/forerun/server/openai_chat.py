"""/v1/chat/completions in OpenAI's form."""

from __future__ import annotations

import time
import uuid
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request as HttpRequest

from forerun.engine.requests import TokenEvent, TokenLogprob
from forerun.server import chat
from forerun.server.answers import (
    Answer,
    AnswerChoice,
    AnswerPart,
    Counts,
    Ending,
    Piece,
    speculation,
    timings,
)
from forerun.server.bodies import ChatBody, SamplingBody
from forerun.server.respond import STREAMS, AnswerResponse, Form, event, written
from forerun.server.state import ServerState, TokenNames

DONE = event("[DONE]")


def add_routes(app: FastAPI, state: ServerState) -> None:
    @app.post("/v1/chat/completions", response_model=None, responses=STREAMS)
    async def chat_completions(body: ChatBody, request: HttpRequest) -> AnswerResponse:
        """Answer a conversation."""
        return chat.answer(state, request, body, ChatWriter(state, body))


@dataclass
class Writer(Form):
    """Writes the objects of OpenAI's form that chat and completions share.

    Args:
        state: the server's.
        body: what was asked for.
    """

    state: ServerState
    body: SamplingBody
    prefix: str = "chatcmpl"
    kind: str = "chat.completion"
    chunk_kind: str = "chat.completion.chunk"
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.streams, options = bool(self.body.stream), self.body.stream_options
        self.with_usage = options is not None and options.include_usage
        self.continuous = options is not None and options.continuous_usage_stats
        self.most = self.state.engine.config.num_speculative_tokens
        self.number = f"{self.prefix}-{uuid.uuid4().hex}"
        self.opening = written(self.head(self.chunk_kind))[:-1]

    async def whole(self, answer: Answer) -> dict[str, Any]:
        choices = [self.choice(*pair) for pair in enumerate(await answer.gathered())]
        made = self.head(self.kind) | {"choices": choices, "usage": usage(answer.counts)}
        return made | {"timings": timings(answer.endings)} | self.metrics(answer.endings)

    @abstractmethod
    def choice(self, index: int, choice: AnswerChoice) -> dict[str, Any]:
        """A choice of an answer that does not stream."""

    def head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.number,
            "object": kind,
            "created": self.created,
            "model": self.body.model or self.state.names[0],
            "system_fingerprint": f"forerun-{self.state.started:x}",
        }

    def chunk(self, answer: Answer, choice: dict[str, Any], end: Ending | None = None) -> str:
        """An event with one choice; the last one of a choice has its timings."""
        made: dict[str, Any] = {"choices": [choice]}
        if self.with_usage:
            made["usage"] = usage(answer.counts) if self.continuous else None
        if end is not None:
            made["timings"] = timings([end])
        return event(f"{self.opening},{written(made)[1:]}")

    def last_chunk(self, answer: Answer) -> str:
        """The event after all choices, with the usage if it is asked for."""
        if not self.with_usage:
            return DONE
        made = self.head(self.chunk_kind) | {"choices": [], "usage": usage(answer.counts)}
        return event(made | self.metrics(answer.endings)) + DONE

    def metrics(self, endings: Sequence[Ending]) -> dict[str, Any]:
        """Counters of speculation; empty if nothing was drafted."""
        found = speculation(endings, self.most)
        return {} if found is None else {"metrics": {"speculative_decoding": found}}

    def extras(self, events: Sequence[TokenEvent]) -> dict[str, Any]:
        """Token ids and origins of a choice, as far as they are asked for."""
        extras: dict[str, Any] = {}
        if self.body.return_token_ids:
            extras["token_ids"] = [event.token_id for event in events]
        if self.body.return_origins:
            extras["token_origins"] = [event.origin.value for event in events]
        return extras


class ChatWriter(Writer):
    """Writes an answer as OpenAI's chat completion, whole or as a stream."""

    body: ChatBody

    def choice(self, index: int, choice: AnswerChoice) -> dict[str, Any]:
        assert choice.end is not None
        message: dict[str, Any] = {"role": "assistant", "content": choice.text("text")}
        message["refusal"] = None
        if thought := choice.text("reasoning"):
            message["reasoning_content"] = thought
        if calls := [block for block in choice.blocks if block.first.kind == "call"]:
            message["tool_calls"] = [_tool_call(block.first, block.text) for block in calls]
            message["content"] = message["content"] or None
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(choice.events),
            "finish_reason": choice.end.reason,
            **self.extras(choice.events),
        }

    async def stream(self, answer: Answer) -> AsyncIterator[str]:
        begun = set[int]()
        async for piece in answer:
            if piece.index not in begun:
                begun.add(piece.index)
                first = {"role": "assistant", "content": "", "refusal": None}
                yield self.chunk(answer, self._delta(piece.index, first))
            delta, extras = _delta(piece), self.extras(piece.events)
            # Tokens whose text is held back are reported all the same.
            if delta or (piece.events and (self.body.logprobs or extras)):
                own = self._delta(piece.index, delta or {"content": ""}) | extras
                yield self.chunk(answer, own | {"logprobs": self._logprobs(piece.events)})
            if piece.end is not None:
                last = self._delta(piece.index, {}) | {"finish_reason": piece.end.reason}
                yield self.chunk(answer, last, piece.end)
        yield self.last_chunk(answer)

    def _delta(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs(self, events: Sequence[TokenEvent]) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        names = self.state.tokens
        scored = [event.logprob for event in events if event.logprob is not None]
        return {"content": [_logprob(names, logprob) for logprob in scored], "refusal": None}


def _delta(piece: Piece) -> dict[str, Any]:
    delta = dict[str, Any]()
    for part in piece.parts:
        if part.kind == "call":
            call = _tool_call(part, part.text) | {"index": part.index}
            delta.setdefault("tool_calls", []).append(call)
        elif part.text:
            name = "content" if part.kind == "text" else "reasoning_content"
            delta[name] = delta.get(name, "") + part.text
    return delta


def _tool_call(first: AnswerPart, arguments: str) -> dict[str, Any]:
    function = {"arguments": arguments}
    if first.name is None:
        return {"function": function}
    return {"id": first.call_id, "type": "function", "function": {"name": first.name} | function}


def _logprob(names: TokenNames, token: TokenLogprob) -> dict[str, Any]:
    top = [_entry(names, *pair) for pair in token.top]
    return _entry(names, token.token_id, token.logprob) | {"top_logprobs": top}


def _entry(names: TokenNames, token_id: int, logprob: float) -> dict[str, Any]:
    text, content = names(token_id)
    return {"token": text, "logprob": finite(logprob), "bytes": list(content)}


def finite(logprob: float) -> float:
    """A log probability that JSON can hold; OpenAI writes -9999 for what is impossible."""
    return max(logprob, -9999.0)


def usage(counts: Counts) -> dict[str, Any]:
    """OpenAI's `usage` object of an answer."""
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
        "prompt_tokens_details": {"cached_tokens": counts.cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": counts.reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": counts.accepted_prediction,
            "rejected_prediction_tokens": counts.rejected_prediction,
        },
    }
