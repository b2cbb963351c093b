"""The application: all fronts behind the gate, errors in their envelopes, the engine's life."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse

from forerun import __version__
from forerun.errors import ForerunError
from forerun.server import (
    anthropic_messages,
    information,
    metrics,
    openai_chat,
    openai_completions,
    openai_responses,
)
from forerun.server.errors import EVERYWHERE, ApiError, envelope
from forerun.server.gate import OPEN, Gate, GateLimits, check_type
from forerun.server.state import ServerState

FRONTS: Sequence[Callable[[FastAPI, ServerState], None]] = (
    openai_chat.add_routes,
    openai_completions.add_routes,
    openai_responses.add_routes,
    anthropic_messages.add_routes,
    information.add_routes,
)
_NO_LIMITS = GateLimits()
# What pydantic puts into the place of a problem where a field may have several forms: types and classes.
_FORM = re.compile(r"str|int|float|bool|[A-Z].*|.*\[.*")


class ServerApp(FastAPI):
    """FastAPI application whose schema leaves out 422, and 401 for paths that need no key."""

    def openapi(self) -> dict[str, Any]:
        schema = super().openapi()
        for path, methods in schema["paths"].items():
            for operation in methods.values():
                for status in ("422", "401") if path in OPEN else ("422",):
                    operation["responses"].pop(status, None)
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        return schema


def build_app(
    state: ServerState, limits: GateLimits = _NO_LIMITS, metrics_prefix: str = "forerun"
) -> FastAPI:
    """The application of a server; its engine is loaded when it starts."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        state.service.start()
        try:
            yield
        finally:
            state.service.close()

    app = ServerApp(
        title="forerun",
        version=__version__,
        lifespan=life,
        dependencies=[Depends(check_type)],
        responses=EVERYWHERE,
        docs_url=None,
        redoc_url=None,
    )
    for add_routes in FRONTS:
        add_routes(app, state)
    metrics.add_routes(app, state, metrics_prefix)
    libraries = (HTTPException, RequestValidationError, ValidationError)
    for kind in (ApiError, ForerunError, *libraries, Exception):
        app.add_exception_handler(kind, _answer_error)
    app.add_middleware(Gate, limits=limits)
    return app


async def _answer_error(request: HttpRequest, error: Exception) -> JSONResponse:
    match error:
        case RequestValidationError() | ValidationError():
            # The second is about the body to which a front translates its own: its places lack "body".
            skipped = isinstance(error, RequestValidationError)
            answer = _of_validation(error.errors(), int(skipped))
        case HTTPException():
            problem = str(error.detail)
            if error.status_code == 404:
                problem = (
                    "this path is not served; clients take the address with /v1 at its end "
                    "(Anthropic's without it)."
                )
            answer = ApiError(error.status_code, problem)
        case _:
            answer = ApiError.of(error)
    headers = getattr(error, "headers", None) or answer.headers
    return JSONResponse(envelope(request.url.path, answer), answer.status, headers)


def _of_validation(problems: Sequence[Any], skipped: int) -> ApiError:
    """The innermost problem of the first field that has one; a field that is not served is named as unknown.

    A value that has none of the forms that its field takes has a problem for each.

    Args:
        skipped: steps of its place that are no field.
    """

    def field_of(problem: Any) -> str | None:
        steps = [str(step) for step in problem["loc"][skipped:]]
        # The name of an unknown field and the key of a mapping are the client's, whatever they look like.
        is_key = steps[-1:] == ["[key]"]
        own = len(steps) - 1 - is_key if is_key or problem["type"] == "extra_forbidden" else None
        kept = (step for i, step in enumerate(steps) if i == own or not _FORM.fullmatch(step))
        return ".".join(kept) or None

    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    first = problems[0]["loc"][: skipped + 1]
    of_first = [problem for problem in problems if problem["loc"][: skipped + 1] == first]
    problem = max(unknown or of_first, key=lambda other: len(other["loc"]))
    param = field_of(problem)
    if unknown:
        message = f"Unknown parameter: '{param}'; docs/serve.md lists those that are served."
        return ApiError(400, message, param=param, code="unknown_parameter")
    if problem["type"] == "json_invalid":
        return ApiError(400, "the body is not valid JSON.", code="invalid_json")
    code = "missing_required_parameter" if problem["type"] == "missing" else "invalid_value"
    said = dict.fromkeys(other["msg"] for other in problems if field_of(other) == param)
    message = f"{param or 'the body'}: {', or: '.join(said)}."
    return ApiError(400, message, param=param, code=code)
