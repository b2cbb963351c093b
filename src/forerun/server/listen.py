"""Listening: uvicorn around the application, from loading to draining."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePath

import uvicorn
from fastapi import FastAPI

from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.files import reason
from forerun.server.app import build_app
from forerun.server.gate import GateLimits
from forerun.server.request import LOCAL, MEBI, ServeRequest
from forerun.server.service import EngineService
from forerun.server.state import ServerState

# Seconds after which another thread may take the interpreter: the HTTP side must not hold up a round.
SWITCH_SECONDS = 0.0005
# Seconds between two looks at what is left while the server drains.
_LOOK = 0.05


class Server(uvicorn.Server):
    """A server that, told to stop, refuses new requests and finishes the running ones."""

    def __init__(self, config: uvicorn.Config, service: EngineService, drain: float) -> None:
        super().__init__(config)
        self._service, self._drain = service, drain

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            # SIGTERM has done what it asked for; an interruption goes on to the caller.
            left = [number for number in self._captured_signals if number != signal.SIGTERM]
            self._captured_signals[:] = left

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain):
                while self._service.open and not self.force_exit:
                    await asyncio.sleep(_LOOK)
        # What still runs ends with an error that says so, before its connection closes.
        await asyncio.to_thread(self._service.close)
        await super().shutdown(sockets)


def listen(
    request: ServeRequest,
    keys: Sequence[str],
    load: Callable[[], Engine],
    say: Callable[[str], None],
) -> None:
    """Serve until a signal comes.

    Raises:
        ConfigError: for an address that cannot be used.
        Exception: as `load` does.
    """
    state, app = application(request, keys, load)
    service = state.service
    config = uvicorn.Config(
        app,
        host=request.host,
        port=request.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    server, bound = Server(config, service, request.drain_timeout), _bind(request)
    host = f"[{request.host}]" if ":" in request.host else request.host
    address = f"http://{host}:{bound.getsockname()[1]}"
    say(f"listening on {address} (the model is loading)")

    def loaded() -> None:
        if service.failure is not None:
            server.should_exit = True
        elif service.engine is not None:
            method = service.engine.config.method or "none"
            say(f"ready: {state.names[0]} on {address}/v1, speculation: {method}")

    service.on_loaded = loaded
    sys.setswitchinterval(SWITCH_SECONDS)
    server.run([bound])
    if service.failure is not None:
        raise service.failure


def application(
    request: ServeRequest, keys: Sequence[str], load: Callable[[], Engine]
) -> tuple[ServerState, FastAPI]:
    """The application of a server, and its state."""
    service = EngineService(
        load, max_queue=request.max_queue, max_per_key=request.max_requests_per_key
    )
    named = PurePath(request.model.model).name or request.model.model
    names = request.served_model_name or (named,)
    state = ServerState(service, names, request.request_timeout, request.stream_pacing)
    hosts = () if keys else tuple({*LOCAL, request.host})
    limits = GateLimits(keys, hosts, request.max_body * MEBI)
    return state, build_app(state, limits, request.metrics_prefix)


def _bind(request: ServeRequest) -> socket.socket:
    family = socket.AF_INET6 if ":" in request.host else socket.AF_INET
    try:
        return socket.create_server((request.host, request.port), family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {request.host} port {request.port}: {reason(error)}; choose another --port."
        ) from error
