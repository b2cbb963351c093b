"""The server on Ray Serve: `serve run forerun.server.ray_app:build model=smollm2`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forerun.errors import ConfigError
from forerun.flags import Given, request_from
from forerun.server.listen import application
from forerun.server.request import ServeRequest, loader

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application


class Replica:
    """A server with an engine of its own; it is ready once the model is loaded.

    Args:
        options: of `forerun serve`, by name.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        request, loaded = request_from(ServeRequest, Given(dict(options))), threading.Event()
        state, self._app = application(request, request.keys, loader(request))
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


def build(args: Mapping[str, Any]) -> Application:
    """Application of Ray Serve.

    Args:
        args: options of `forerun serve` by name, and `deployment`: those of `ray.serve.deployment`,
            such as num_replicas or autoscaling_config.

    Raises:
        ForerunError: for options that are not valid.
    """
    options = dict(args)
    given = options.pop("deployment", {})
    for name in options.keys() & {"host", "port"}:
        raise ConfigError(
            f"{name} is Ray Serve's own; set it there, and api_key if others can reach it."
        )
    request = request_from(ServeRequest, Given(dict(options)))
    from ray import serve

    usual = {
        "name": "forerun",
        "max_ongoing_requests": request.max_batch_size + request.max_queue,
        "graceful_shutdown_timeout_s": request.drain_timeout,
    }
    deployment: Any = serve.deployment(serve.ingress()(Replica), **usual | given)
    bound: Application = deployment.bind(options)
    return bound
