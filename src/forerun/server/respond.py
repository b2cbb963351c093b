"""The response to a request for an answer: one JSON object or a stream, until the client goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forerun.server.answers import Answer
from forerun.server.errors import ApiError, envelope
from forerun.server.service import AnswerJob, EngineRequest

if TYPE_CHECKING:
    from forerun.server.state import ServerState

Make = Callable[[], tuple[Sequence[EngineRequest], dict[str, Any]]]
"""Makes the requests of an answer, and the options of `Answer`."""


@dataclass(frozen=True)
class Form:
    """The wire format of a front.

    Args:
        whole: the object of an answer that does not stream.
        stream: the events of one that does, each as it is sent; None if none is asked for.
        failed: the event of an error in the middle of a stream, given the body of its envelope.
    """

    whole: Callable[[Answer], Awaitable[dict[str, Any]]]
    stream: Callable[[Answer], AsyncIterator[str]] | None = None
    failed: Callable[[dict[str, Any]], str] = lambda body: event(body)


def event(data: Any, name: str | None = None) -> str:
    """A server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {data if isinstance(data, str) else written(data)}\n\n"


def written(data: Any) -> str:
    """JSON as OpenAI's server writes it."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


class AnswerResponse(Response):
    """Opens an answer, sends it, and ends its job, even when the client goes before.

    Args:
        state: the server's.
        make: makes them and the options of the answer, in a worker thread: templates and tokenizers
            take time.
        key: namespace of the client's key.
        form: the wire format.
    """

    def __init__(self, state: ServerState, make: Make, key: str, form: Form) -> None:
        super().__init__()
        self._state, self._make, self._key, self._form = state, make, key, form
        self._job: AnswerJob | None = None
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._answer(scope, send))
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

    async def _answer(self, scope: Scope, send: Send) -> None:
        service, deadline, stream = self._state.service, self._state.deadline, self._form.stream
        try:
            async with asyncio.timeout(deadline):
                # Before any work is done for it.
                service.admit(1, self._key)
                requests, options = await asyncio.to_thread(self._make)
                self._job = await service.submit(requests, self._key)
                paced = self._state.paced and stream is not None
                answer = Answer(self._job, paced=paced, **options)
                if stream is None:
                    await self._send_json(send, 200, await self._form.whole(answer), {})
                else:
                    await self._send_stream(send, stream(answer))
        except TimeoutError:
            text = f"the request took longer than {deadline:g} seconds."
            await self._fail(scope, send, ApiError(504, text, code="timeout"))
        except Exception as error:
            await self._fail(scope, send, ApiError.logged(error))

    async def _send_stream(self, send: Send, events: AsyncIterator[str]) -> None:
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        await self._start(send, 200, headers | {"X-Accel-Buffering": "no"})
        async for text in events:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_json(
        self, send: Send, status: int, content: dict[str, Any], headers: dict[str, str]
    ) -> None:
        body = written(content).encode()
        size = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        await self._start(send, status, size | headers)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self, send: Send, status: int, headers: dict[str, str]) -> None:
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        self._begun = True

    async def _fail(self, scope: Scope, send: Send, error: ApiError) -> None:
        body = envelope(scope["path"], error)
        if not self._begun:
            await self._send_json(send, error.status, body, error.headers)
            return
        text = self._form.failed(body).encode()
        await send({"type": "http.response.body", "body": text, "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
