"""Replicas as Ray Serve makes them: ready with their model, healthy while their loop runs, closed by keys."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from forerun.errors import ForerunError
from forerun.server.ray_app import Replica, build

OPTIONS = {"model": "zoo", "max_context": 256, "threads": 1}
BODY = {"prompt": "def add(a, b):", "max_tokens": 8, "temperature": 0.0}


@dataclass
class Deployment:
    """What a stub of Ray Serve makes of a class and its options."""

    cls: type[Any]
    options: dict[str, Any]
    arguments: tuple[Any, ...] = ()

    def bind(self, *arguments: Any) -> Deployment:
        self.arguments = arguments
        return self


Listen = Callable[[str | None], None]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Listen:
    """A stub of Ray Serve on localhost; called with a host, it listens there, with None it hides where."""

    def module(name: str, **content: Any) -> Any:
        made: Any = ModuleType(name)
        made.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    def listen(host: str | None) -> None:
        config = SimpleNamespace(**({} if host is None else {"host": host}))
        context._get_global_client = lambda: SimpleNamespace(http_config=config)

    context = module("ray.serve.context")
    serve = module(
        "ray.serve",
        context=context,
        ingress=lambda: lambda cls: cls,
        deployment=lambda cls, **options: Deployment(cls, options),
    )
    module("ray", serve=serve)
    listen("127.0.0.1")
    return listen


def built(args: Mapping[str, Any]) -> Deployment:
    found: Any = build(args)
    return found


@pytest.mark.usefixtures("ray")
def test_a_replica_is_healthy_while_its_loop_runs() -> None:
    replica = Replica(OPTIONS)
    with TestClient(replica.__serve_build_asgi_app__(), base_url="http://localhost") as one:
        assert one.post("/v1/completions", json=BODY).json()["choices"][0]["text"]
        replica.check_health()
    with pytest.raises(RuntimeError, match="has ended"):
        replica.check_health()


@pytest.mark.usefixtures("ray")
def test_a_replica_whose_model_does_not_load_is_not_ready() -> None:
    with pytest.raises(ForerunError, match="nothing/here"):
        Replica({**OPTIONS, "model": "/nothing/here"})


@pytest.mark.usefixtures("ray")
def test_an_application_is_built_of_options_and_those_of_its_deployment() -> None:
    """Its class, made with what is bound, answers; its limits are those of the server unless given."""
    limits = {"max_batch_size": 3, "max_queue": 5, "drain_timeout": 7.0}
    own = {"num_replicas": 2, "name": "other"}
    found = built({**OPTIONS, **limits, "deployment": own})
    waits = {"max_ongoing_requests": 8, "graceful_shutdown_timeout_s": 7.0}
    assert found.options == waits | own
    assert found.arguments == (OPTIONS | limits,)
    # `serve run` gives all values as text.
    texts = {name: str(value) for name, value in (OPTIONS | limits).items()}
    assert built(texts).options == waits | {"name": "forerun"}
    assert built({**texts, "deployment": json.dumps(own)}).options == waits | own
    for wrong in ("num_replicas=2", "[2]", 2):
        with pytest.raises(ForerunError, match=r'deployment is .* such as \{"num_replicas": 2\}'):
            built({**texts, "deployment": wrong})
    assert (
        built({**OPTIONS, "deployment": {"max_ongoing_requests": 4}}).options["name"] == "forerun"
    )
    replica = found.cls(*found.arguments)
    with TestClient(replica.__serve_build_asgi_app__(), base_url="http://localhost") as one:
        assert one.post("/v1/completions", json=BODY).is_success


# Keys as `serve run` passes them, and as a file of configuration does.
@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("0.0.0.0", "secret"),
        ("10.0.0.7", ["other", "secret"]),
        ("::", "secret"),
        (None, ["other", "secret"]),
    ],
)
def test_an_address_that_others_reach_needs_a_key(
    ray: Listen, host: str | None, key: str | list[str]
) -> None:
    ray(host)
    with pytest.raises(ForerunError, match=host or "unknown address"):
        Replica(OPTIONS)
    replica = Replica({**OPTIONS, "api_key": key})
    with TestClient(replica.__serve_build_asgi_app__(), base_url="http://anywhere") as one:
        for own in ({}, {"Authorization": "Bearer secre"}, {"X-Api-Key": "wrong"}):
            assert one.post("/v1/completions", json=BODY, headers=own).status_code == 401
        own = {"Authorization": "Bearer secret"}
        assert one.post("/v1/completions", json=BODY, headers=own).is_success


@pytest.mark.filterwarnings("ignore")
def test_ray_takes_the_application() -> None:
    pytest.importorskip("ray")
    more = {"deployment": {"num_replicas": 2}, "max_batch_size": 3, "max_queue": 5}
    found: Any = build({**OPTIONS, **more})
    deployment = found._bound_deployment
    assert (deployment.num_replicas, deployment.max_ongoing_requests) == (2, 8)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"host": "0.0.0.0"}, "host is Ray Serve's own"),
        ({"port": 9000}, "port is Ray Serve's own"),
        ({"max_batch_sizes": 3}, "max_batch_sizes"),
        ({"max_batch_size": "three"}, "max_batch_size"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_that_do_not_fit_are_refused_before_ray_is_asked(
    args: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ForerunError, match=problem):
        build({**OPTIONS, **args})
