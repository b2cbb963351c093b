"""The gate before all routes: request ids, keys, hosts, and limits of bodies."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.server.errors import ApiError, envelope

# Paths that need no key.
OPEN = ("/health",)
REQUEST_ID = "x-request-id"
_LONGEST_ID = 128


@dataclass(frozen=True)
class GateLimits:
    """Limits that the gate enforces.

    Args:
        keys: keys of clients; empty lets everybody in.
        hosts: names by which the server may be addressed; empty allows all. It keeps a web page from
            reaching a server without keys by a name of its own.
        body_bytes: size of a body at most.
        body_seconds: time in which it must have come.
    """

    keys: Sequence[str] = ()
    hosts: Sequence[str] = ()
    body_bytes: int = 16 << 20
    body_seconds: float = 60.0


class Gate:
    """Middleware that refuses what no route should see.

    It reads the whole body, so that a route never waits for one, and leaves the namespace of the key
    in the request's state.
    """

    def __init__(self, app: ASGIApp, limits: GateLimits) -> None:
        self._app, self._limits = app, limits
        self._keys = [key.encode() for key in limits.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        number = _request_id(headers)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = number
            await send(message)

        try:
            self._check_host(headers)
            scope.setdefault("state", {})["namespace"] = self._namespace(scope["path"], headers)
            body = await self._body(scope["method"], headers, receive)
        except ApiError as error:
            content = envelope(scope["path"], error)
            refusal = JSONResponse(content, error.status, error.headers | {"Connection": "close"})
            await refusal(scope, receive, send_with_id)
            return
        whole = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive_again() -> Message:
            return next(whole, None) or await receive()

        await self._app(scope, receive_again, send_with_id)

    def _check_host(self, headers: Headers) -> None:
        given = headers.get("host", "")
        host = given[1:].split("]")[0] if given.startswith("[") else given.split(":")[0]
        if self._limits.hosts and host.lower() not in self._limits.hosts:
            raise ApiError(403, "this host name is not served; use localhost or an API key.")

    def _namespace(self, path: str, headers: Headers) -> str:
        """Namespace of the key of a request; empty without keys.

        Raises:
            ApiError: for no key or a wrong one.
        """
        if not self._keys or path in OPEN:
            return ""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = (key.strip() if scheme.lower() == "bearer" else "") or headers.get("x-api-key", "")
        # All keys are compared, each in constant time.
        known = [hmac.compare_digest(own, given.encode()) for own in self._keys]
        if not any(known):
            message = "the API key is missing or wrong; send it as Authorization: Bearer KEY."
            raise ApiError(401, message, code="invalid_api_key")
        return hashlib.sha256(given.encode()).hexdigest()[:16]

    async def _body(self, method: str, headers: Headers, receive: Receive) -> bytes:
        if method in ("GET", "HEAD", "OPTIONS", "TRACE"):
            return b""
        most, parts, size = self._limits.body_bytes, list[bytes](), 0
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > most:
            raise self._too_long()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while (message := await receive())["type"] == "http.request":
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise self._too_long()
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(408, "the body did not come in time.") from None
        raise ApiError(400, "the client went before its body had come.")

    def _too_long(self) -> ApiError:
        return ApiError(413, f"the body is longer than {self._limits.body_bytes} bytes.")


async def check_type(request: HttpRequest) -> None:
    """Refuse a body whose type is not JSON; a dependency of all routes, so that 404 and 405 come first."""
    given = request.headers.get("content-type", "").split(";")[0].strip().lower()
    # Without this a page elsewhere could post here without asking the browser first.
    if request.method == "POST" and given != "application/json":
        raise ApiError(415, "send the body as JSON, with Content-Type: application/json.")


def _request_id(headers: Headers) -> str:
    """The client's id for a request if it is short and plain, otherwise a new one."""
    given = headers.get(REQUEST_ID, "")
    plain = given.isascii() and given.replace("-", "").replace("_", "").isalnum()
    return given if plain and len(given) <= _LONGEST_ID else f"req_{uuid.uuid4().hex}"
