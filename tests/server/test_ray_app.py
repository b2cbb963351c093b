"""Replicas as Ray Serve makes them: ready with their model, healthy while their loop runs."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from forerun.errors import ForerunError
from forerun.server.ray_app import Replica, build

OPTIONS = {"model": "zoo", "max_context": 256, "threads": 1}
BODY = {"prompt": "def add(a, b):", "max_tokens": 8, "temperature": 0.0}


def test_a_replica_is_healthy_while_its_loop_runs() -> None:
    replica = Replica(OPTIONS)
    with TestClient(replica.__serve_build_asgi_app__(), base_url="http://localhost") as one:
        assert one.post("/v1/completions", json=BODY).json()["choices"][0]["text"]
        replica.check_health()
    with pytest.raises(RuntimeError, match="has ended"):
        replica.check_health()


def test_a_replica_whose_model_does_not_load_is_not_ready() -> None:
    with pytest.raises(ForerunError):
        Replica({**OPTIONS, "model": "/nothing/here"})


@pytest.mark.filterwarnings("ignore")
def test_an_application_has_the_servers_limits() -> None:
    pytest.importorskip("ray")
    more = {"deployment": {"num_replicas": 2}, "max_batch_size": 3, "max_queue": 5}
    deployment = build({**OPTIONS, **more})._bound_deployment
    assert (deployment.num_replicas, deployment.max_ongoing_requests) == (2, 8)
    with pytest.raises(ForerunError, match="max_batch_sizes"):
        build({"max_batch_sizes": 3})


@pytest.mark.parametrize("name", ["host", "port"])
def test_the_address_is_rays(name: str) -> None:
    with pytest.raises(ForerunError, match=f"{name} is Ray Serve's own"):
        build({**OPTIONS, name: "9000"})
