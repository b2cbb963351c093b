"""Errors of the server, and the envelopes in which clients expect them."""

from __future__ import annotations

import logging
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from pydantic import BaseModel

from forerun.errors import ForerunError

logger = logging.getLogger(__name__)

# OpenAI's types of errors by status; other mistakes of a client are invalid requests.
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_TYPES |= {429: "rate_limit_error", 503: "unavailable_error", 504: "timeout_error"}
_ANTHROPIC_TYPES = {"server_error": "api_error", "unavailable_error": "overloaded_error"}


@dataclass(eq=False)
class ApiError(Exception):
    """An error that a client is told about.

    Args:
        status: HTTP status.
        message: what is wrong, what is allowed and what to do.
        param: the field of the body at fault.
        code: short name for programs.
    """

    status: int
    message: str
    _: KW_ONLY
    param: str | None = None
    code: str | None = None

    def __str__(self) -> str:
        return self.message

    @property
    def kind(self) -> str:
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        return _TYPES.get(self.status, usual)

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"} if self.status in (429, 503) else {}

    @classmethod
    def of(cls, error: Exception, what: str = "a request failed") -> ApiError:
        """The error of the API for any error: a user's mistake is named, a fault of the server is logged."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, ForerunError):
            return cls(400, str(error))
        logger.error(what, exc_info=error)
        return cls(500, f"the server failed ({type(error).__name__}); its log says more.")


class ErrorContent(BaseModel):
    """An error; `param` and `code` are in OpenAI's form alone."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of an error; `type` is in Anthropic's form alone."""

    error: ErrorContent
    type: Literal["error"] | None = None


def published(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Errors of a route by status, for the published schema."""
    return {status: {"model": ErrorBody} for status in statuses}


EVERYWHERE = published(401, 403, 500, 503)
"""Errors of all routes; paths that need no key do not send 401."""
WITH_BODY = published(400, 404, 408, 413, 415)
"""Further errors of routes that take a body."""


def envelope(path: str, error: ApiError) -> dict[str, Any]:
    """The body of an error in the form of the front that serves `path`: Anthropic's or OpenAI's."""
    if path.startswith("/v1/messages"):
        kind = _ANTHROPIC_TYPES.get(error.kind, error.kind)
        return {"type": "error", "error": {"type": kind, "message": error.message}}
    content = {"message": error.message, "type": error.kind}
    return {"error": {**content, "param": error.param, "code": error.code}}
