"""Errors of the server, and the envelopes in which clients expect them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from forerun.errors import ForerunError

logger = logging.getLogger(__name__)

# OpenAI's types of errors by status; other mistakes of a client are invalid requests.
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_TYPES |= {429: "rate_limit_error", 503: "unavailable_error", 504: "timeout_error"}


class ApiError(Exception):
    """An error that a client is told about.

    Args:
        status: HTTP status.
        message: what is wrong, what is allowed and what to do.
        param: the field of the body at fault.
        code: short name for programs.
        retry_after: seconds after which another try makes sense.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.param, self.code, self.retry_after = param, code, retry_after

    @property
    def kind(self) -> str:
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        return _TYPES.get(self.status, usual)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}

    @classmethod
    def logged(cls, error: Exception) -> ApiError:
        """The error of the API, after a fault of the server has been logged."""
        found = cls.of(error)
        if found.status == 500:
            logger.error("a request failed", exc_info=error)
        return found

    @classmethod
    def of(cls, error: Exception) -> ApiError:
        """The error of the API for any error: a user's mistake is named, a fault of the server is not."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, ForerunError):
            return cls(400, str(error))
        return cls(500, f"the server failed ({type(error).__name__}); its log says more.")


def openai_envelope(error: ApiError) -> dict[str, Any]:
    """The body of OpenAI's errors."""
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


def anthropic_envelope(error: ApiError) -> dict[str, Any]:
    """The body of Anthropic's errors."""
    kind = {"server_error": "api_error", "unavailable_error": "overloaded_error"}
    found = {"type": kind.get(error.kind, error.kind), "message": error.message}
    return {"type": "error", "error": found}


ENVELOPES: Mapping[str, Callable[[ApiError], dict[str, Any]]] = {
    "/": openai_envelope,
    "/v1/messages": anthropic_envelope,
}
"""Bodies of errors by the beginning of the path; the longest that fits counts."""


def envelope(path: str, error: ApiError) -> dict[str, Any]:
    """The body of an error in the form of the front that serves `path`."""
    prefix = max((start for start in ENVELOPES if path.startswith(start)), key=len, default="/")
    return ENVELOPES[prefix](error)
