"""The server on Ray Serve: `serve run forerun.server.ray_app:build model=smollm2`."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from forerun.errors import ConfigError, shown
from forerun.flag_values import from_texts
from forerun.flags import Given, request_from
from forerun.server.listen import application
from forerun.server.request import LOCAL, ServeRequest, loader

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application


class Replica:
    """A server with an engine of its own; it is ready once the model is loaded.

    Args:
        options: of `forerun serve`, by name.

    Raises:
        ForerunError: for a model that does not load, and without keys where others reach Ray's address.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        request, loaded = _request(options), threading.Event()
        keys, address = request.keys, _address()
        if not keys and address not in LOCAL:
            raise ConfigError(
                f"Ray Serve listens on {address or 'an unknown address'}, which others may reach; give "
                "api_key or api_key_file, or have Ray listen on localhost."
            )
        state, self._app = application(request, keys, loader(request))
        self._service = state.service
        self._service.on_loaded = loaded.set
        self._service.start()
        loaded.wait()
        self.check_health()

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Ray after the replica has been made."""
        return self._app

    def check_health(self) -> None:
        """Called by Ray now and then; a replica without an engine is replaced."""
        if self._service.failure is not None or not self._service.alive:
            raise RuntimeError("the engine's loop has ended") from self._service.failure


def _request(options: Mapping[str, Any]) -> ServeRequest:
    """The request of options that a file of configuration types, and a command line gives as text."""
    texts = {name: value for name, value in options.items() if isinstance(value, str)}
    return request_from(ServeRequest, Given({**options, **from_texts(ServeRequest, texts)}))


def _deployment(given: Any) -> dict[str, Any]:
    """Options of a deployment, which a command line gives as JSON."""
    with suppress(ValueError, RecursionError):
        given = json.loads(given) if isinstance(given, str) else given
    if not isinstance(given, Mapping):
        raise ConfigError(
            f'deployment is {shown(given)}; it must be an object such as {{"num_replicas": 2}}.'
        )
    return dict(given)


def _address() -> str | None:
    """Host on which Ray's proxies listen; None if Ray does not say."""
    try:
        from ray.serve.context import _get_global_client

        host: str | None = _get_global_client().http_config.host
    except Exception:
        # Ray has no public way to ask.
        return None
    return host


def build(args: Mapping[str, Any]) -> Application:
    """Application of Ray Serve.

    Args:
        args: options of `forerun serve` by name, and `deployment`: those of `ray.serve.deployment`,
            such as num_replicas or autoscaling_config; as JSON on a command line.

    Raises:
        ForerunError: for options that are not valid.
    """
    options = dict(args)
    given = _deployment(options.pop("deployment", {}))
    for name in options.keys() & {"host", "port"}:
        raise ConfigError(f"{name} is Ray Serve's own; set it there.")
    request = _request(options)
    from ray import serve

    usual = {
        "name": "forerun",
        "max_ongoing_requests": request.max_batch_size + request.max_queue,
        "graceful_shutdown_timeout_s": request.drain_timeout,
    }
    deployment: Any = serve.deployment(serve.ingress()(Replica), **usual | given)
    bound: Application = deployment.bind(options)
    return bound
