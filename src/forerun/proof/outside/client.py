"""HTTP client of an OpenAI-compatible server: waits when asked to, and counts what went wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from math import isfinite
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

from forerun.errors import ConfigError, EndpointError, shown

# Times that a request waits for a full server, and the longest wait in seconds.
_MOST_WAITS, _LONGEST_WAIT = 60, 60.0
_BUSY = (429, 503)
UNKNOWN, ABSENT = (400, 422), (404, 405, 501)
"""Statuses of fields that a server does not know, and of paths that it does not have."""


class RefusedError(EndpointError):
    """A request that a subject does not answer, while it answers others.

    Args:
        status: HTTP status.
    """

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Endpoint:
    """A server under a URL.

    Args:
        url: address, with or without `/v1`.
        api_key: key to send.
        timeout: seconds that a request may take.
    """

    url: str
    api_key: str | None = None
    timeout: float = 120.0
    waits: int = field(default=0, init=False)
    """Times that the server was full (429 or 503) and the client waited."""
    broken: int = field(default=0, init=False)
    """Responses that were not UTF-8."""
    software: str = field(default="", init=False)
    """The `Server` header."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"{shown(self.url)} is no URL; give one such as http://localhost:8000/v1."
            )
        self.url = self.url.rstrip("/").removesuffix("/v1")

    def fetch(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The object at a path, or the answer to a body.

        Raises:
            EndpointError: if the server is down, too slow, or refuses.
        """
        with self._opened(path, body) as response:
            text = self._text(response.read())
        try:
            return json.loads(text)
        except ValueError:
            raise EndpointError(
                f"{self.url}{path} answers with something else than JSON ({shown(text)}); give the "
                "address of an OpenAI-compatible server."
            ) from None

    def lines(self, path: str, body: Mapping[str, Any]) -> Iterator[str]:
        """The lines of a stream; leaving the iterator closes the connection.

        Raises:
            EndpointError: as `fetch` does.
        """
        with self._opened(path, body) as response:
            for line in response:
                yield self._text(line)

    def _text(self, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError:
            self.broken += 1
            return content.decode(errors="replace")

    @contextmanager
    def _opened(self, path: str, body: Mapping[str, Any] | None) -> Iterator[HTTPResponse]:
        for _ in range(_MOST_WAITS):
            try:
                with self._send(path, body) as response:
                    self.software = response.headers.get("Server", "")
                    yield response
                return
            except HTTPError as error:
                if error.code not in _BUSY:
                    raise self._refusal(path, error) from None
                self.waits += 1
                time.sleep(_seconds(error.headers.get("Retry-After")))
            except (TimeoutError, URLError) as error:
                problem = error.reason if isinstance(error, URLError) else error
                if isinstance(problem, TimeoutError):
                    raise EndpointError(
                        f"{self.url} took longer than {self.timeout:g} seconds; give it more by "
                        "--request-timeout."
                    ) from None
                raise EndpointError(
                    f"no server answers at {self.url} ({problem}); start it, or give its address."
                ) from None
            except (HTTPException, OSError) as error:
                raise EndpointError(
                    f"{self.url} broke the connection off ({error or type(error).__name__}); see the "
                    "server's log."
                ) from None
        raise EndpointError(f"{self.url} was full {_MOST_WAITS} times in a row; try again later.")

    def _send(self, path: str, body: Mapping[str, Any] | None) -> HTTPResponse:
        headers = {"Content-Type": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        content = None if body is None else json.dumps(body).encode()
        request = HttpRequest(self.url + path, content, headers)
        response: HTTPResponse = urlopen(request, timeout=self.timeout)
        return response

    def _refusal(self, path: str, error: HTTPError) -> EndpointError:
        said = error.read().decode(errors="replace")
        try:
            content = json.loads(said)
            said = str(content.get("message") or content["error"]["message"] or said)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        text = f"{self.url}{path} refuses the request with {error.code}: {' '.join(said.split())[:200]}"
        is_broken = error.code >= 500 and error.code not in ABSENT
        return EndpointError(text) if is_broken else RefusedError(text, error.code)


def _seconds(text: str | None) -> float:
    """Seconds of a `Retry-After` header; one where it holds none."""
    try:
        seconds = float(text or 1.0)
    except ValueError:
        return 1.0
    return min(max(seconds, 0.05), _LONGEST_WAIT) if isfinite(seconds) else 1.0
