"""The response to a request for an answer: one JSON object or a stream, until the client goes."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from forerun.server.answers import Answer
from forerun.server.bodies import CommonBody
from forerun.server.errors import WITH_BODY, ApiError, envelope, published
from forerun.server.service import AnswerJob, EngineRequest
from forerun.server.state import ServerState

_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
STREAMS = {200: {"content": {"text/event-stream": {}}}, **WITH_BODY, **published(429, 501, 504)}
"""Responses of routes that answer, beside an object of JSON, for the published schema."""
Make = Callable[[], tuple[Sequence[EngineRequest], dict[str, Any]]]
"""Makes the requests of an answer, and the options of `Answer`."""


class Form(ABC):
    """The wire format of a front; `streams` is true for an answer that is sent as events."""

    streams: bool

    @abstractmethod
    async def whole(self, answer: Answer) -> dict[str, Any]:
        """The object of an answer that does not stream."""

    @abstractmethod
    def stream(self, answer: Answer) -> AsyncIterator[str]:
        """The events of one that does, each as it is sent."""

    def failed(self, body: dict[str, Any]) -> str:
        """The event of an error in the middle of a stream, given the body of its envelope."""
        return event(body)


def event(data: Any, name: str | None = None) -> str:
    """A server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {data if isinstance(data, str) else written(data)}\n\n"


written = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""JSON of an event, as OpenAI's server writes it."""


class AnswerResponse(Response):
    """Opens an answer, sends it, and ends its job, even when the client goes before.

    Args:
        state: the server's.
        request: the client's.
        body: its body.
        make: makes the requests of the answer and its options, in a worker thread: templates and
            tokenizers take time.
        form: the wire format.

    Raises:
        ApiError: for another model, and while the server cannot answer.
    """

    def __init__(
        self, state: ServerState, request: HttpRequest, body: CommonBody, make: Make, form: Form
    ) -> None:
        super().__init__()
        state.service.ready()
        state.check_model(body.model)
        self._state, self._make, self._form = state, make, form
        self._key: str = request.state.namespace
        self._job: AnswerJob | None = None
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._answer(scope, receive, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, gone):
                task.cancel()
            try:
                await asyncio.gather(work, gone, return_exceptions=True)
            finally:
                if self._job is not None:
                    self._state.service.end(self._job)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, deadline, form = self._state.service, self._state.deadline, self._form
        try:
            async with asyncio.timeout(deadline):
                # Before any work is done for it.
                service.admit(1, self._key)
                requests, options = await asyncio.to_thread(self._make)
                self._job = await service.submit(requests, self._key)
                paced = self._state.paced and form.streams
                answer = Answer(self._job, paced=paced, **options)
                if form.streams:
                    await self._send_stream(send, form.stream(answer))
                else:
                    await JSONResponse(await form.whole(answer))(scope, receive, send)
        except TimeoutError:
            text = f"the request took longer than {deadline:g} seconds."
            await self._fail(scope, receive, send, ApiError(504, text, code="timeout"))
        except Exception as error:
            await self._fail(scope, receive, send, ApiError.of(error))

    async def _send_stream(self, send: Send, events: AsyncIterator[str]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [*_STREAM]})
        self._begun = True
        async for text in events:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _fail(self, scope: Scope, receive: Receive, send: Send, error: ApiError) -> None:
        body = envelope(scope["path"], error)
        if self._begun:
            text = self._form.failed(body).encode()
            await send({"type": "http.response.body", "body": text, "more_body": False})
        else:
            await JSONResponse(body, error.status, error.headers)(scope, receive, send)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
