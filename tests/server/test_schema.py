"""The published schema: requests made from it do not fail and leave nothing behind; the page lists it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from pydantic import BaseModel
from schemathesis.core import NotSet
from schemathesis.specs.openapi import checks

from forerun.server.anthropic_messages import MessagesBody
from forerun.server.app import build_app
from forerun.server.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    Function,
    SpeculativeBody,
    TokenizeBody,
)
from forerun.server.errors import ErrorBody
from forerun.server.gate import OPEN, GateLimits
from forerun.server.openai_responses import ResponsesBody
from tests.helpers.examples import examples
from tests.helpers.served import USER, Client, client, served_engine, state_of, wait_for

STATE = state_of(served_engine(max_context=48))
APP = build_app(STATE)
schema = schemathesis.openapi.from_dict(APP.openapi())
# Random requests, right and wrong; those at bounds would be made while tests are collected, in every process.
schema.config.phases.update(phases=["examples", "fuzzing"])
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def served() -> Iterator[Client]:
    with client(STATE) as made:
        yield made


@schema.parametrize()
@settings(
    max_examples=examples(24).max_examples,
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
    case.validate_response(response, checks=CHECKS)
    wait_for(lambda: STATE.service.open == 0)


def _published(response: Any, operation: dict[str, Any]) -> None:
    """The status, and the envelope of an error, are those of the schema."""
    known = operation["responses"][str(response.status_code)]
    if response.status_code != 200:
        (kind,) = known["content"].values()
        assert kind["schema"] == {"$ref": "#/components/schemas/ErrorBody"}
        ErrorBody.model_validate(response.json(), extra="forbid")


@pytest.mark.parametrize(
    ("limits", "kind", "status"),
    [
        (GateLimits(keys=("key",)), "application/json", 401),
        (GateLimits(hosts=("elsewhere",)), "application/json", 403),
        (GateLimits(body_bytes=1), "application/json", 413),
        (GateLimits(), "text/plain", 415),
        (GateLimits(), "application/json", 400),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_refusals_before_a_route_are_published(limits: GateLimits, kind: str, status: int) -> None:
    paths = APP.openapi()["paths"].items()
    operations = [(path, *item) for path, methods in paths for item in methods.items()]
    assert not any("422" in operation["responses"] for *_, operation in operations)
    assert all(
        "401" not in operation["responses"] for path, _, operation in operations if path in OPEN
    )
    with client(limits=limits) as one:
        for path, method, operation in operations:
            response = one.request(method, path, content=b"{]", headers={"Content-Type": kind})
            _published(response, operation)
            refused = path not in OPEN if status == 401 else status == 403 or method == "post"
            assert (response.status_code == status) == refused


QUESTIONS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "w1"},
    "/v1/messages": {"messages": USER, "max_tokens": 4},
    "/v1/responses": {"input": "w1"},
}
AS_JSON = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("limits", "draining", "more", "status"),
    [
        ({"max_per_key": 0}, False, {}, 429),
        # Grammars need a tokenizer that works on bytes, and this one on words.
        ({}, False, dict.fromkeys(list(QUESTIONS)[:2], AS_JSON), 501),
        ({}, True, {}, 503),
        ({"deadline": 1e-6}, False, {}, 504),
    ],
    ids=lambda value: str(value) if type(value) is int else "",
)
def test_refusals_of_a_running_server_are_published(
    limits: dict[str, Any], draining: bool, more: dict[str, Any], status: int
) -> None:
    state, paths = state_of(**limits), APP.openapi()["paths"]
    with client(state) as one:
        state.service.draining = draining
        for path in more or QUESTIONS:
            response = one.post(path, json=QUESTIONS[path] | more.get(path, {}))
            assert response.status_code == status, (path, response.text)
            _published(response, paths[path]["post"])
        wait_for(lambda: state.service.open == 0)


@pytest.mark.parametrize("method", ["trace", "put", "delete", "query", "post"])
def test_another_method_is_answered_with_those_that_are_served(method: str, served: Client) -> None:
    for path, methods in APP.openapi()["paths"].items():
        if method in methods:
            continue
        response = served.request(method.upper(), path)
        assert response.status_code == 405
        assert {name.strip().lower() for name in response.headers["allow"].split(",")} == {*methods}


def test_the_page_lists_all_fields_and_endpoints() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    bodies: tuple[type[BaseModel], ...] = (ChatBody, CompletionBody, ResponsesBody, MessagesBody)
    bodies += (TokenizeBody, DetokenizeBody, SpeculativeBody, Function)
    fields = {name for body in bodies for name in body.model_fields}
    assert fields - named == {"name", "description", "parameters"}
    paths = {path for path in APP.openapi()["paths"] if "{" not in path}
    # Those that are not there are named too.
    assert named - fields - paths == {"/v1/embeddings", "/infill"}
    assert paths <= named
