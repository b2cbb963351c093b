"""Requests made from the schema that the server publishes: none fails it, and none leaves anything behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.core import NotSet

from forerun.server.app import build_app
from tests.helpers.served import Client, client, served_engine, state_of, wait_for

STATE = state_of(served_engine(max_context=48))
APP = build_app(STATE)
schema = schemathesis.openapi.from_dict(APP.openapi())
# Random requests, right and wrong; those at bounds would be made while tests are collected, in every process.
schema.config.phases.update(phases=["examples", "fuzzing"])


@pytest.fixture(scope="module")
def served() -> Iterator[Client]:
    with client(STATE) as made:
        yield made


@schema.parametrize()
@settings(
    max_examples=24,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_breaks_the_server(case: Any, served: Client) -> None:
    body = b"" if isinstance(case.body, NotSet) else case.body
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    response = served.request(case.method, case.formatted_path, content=sent, headers=headers)
    assert response.status_code < 500, response.text
    assert response.status_code == 200 or "error" in response.json()
    wait_for(lambda: STATE.service.open == 0)
