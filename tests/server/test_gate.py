"""Keys, hosts, bodies and errors: what is refused, and how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute

from forerun.errors import ConfigError
from forerun.server.app import build_app
from forerun.server.gate import GateLimits, check_type
from forerun.server.request import ServeRequest
from tests.helpers.served import MODEL, USER, Client, client, served_engine, state_of

KEYS = ("first-key", "second-key")


@pytest.fixture(scope="module")
def served() -> Iterator[Client]:
    with client(limits=GateLimits(body_bytes=20_000)) as made:
        yield made


@pytest.fixture(scope="module")
def locked() -> Iterator[Client]:
    with client(limits=GateLimits(keys=KEYS)) as made:
        yield made


def error_of(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status
    assert {*response.json()} == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert {*error} == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"guided_json": {}}, "guided_json"),
        ({"typical_p": 0.4}, "typical_p"),
        ({"temprature": 1.0}, "temprature"),
        ({"speculative": {"drafter": "x"}}, "speculative.drafter"),
        ({"Temperature": 1.0}, "Temperature"),
        ({"speculative": {"str": "x"}}, "speculative.str"),
    ],
)
def test_unknown_fields_are_named(served: Client, body: dict[str, Any], param: str) -> None:
    response = served.post("/v1/chat/completions", json={"messages": USER, **body})
    error = error_of(response, 400)
    assert (error["param"], error["code"]) == (param, "unknown_parameter")


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": "1"},
        {"temperature": -1},
        {"n": 0},
        {"max_tokens": 0},
        {"max_tokens": 3, "max_completion_tokens": 4},
        {"seed": 1 << 70},
        {"stop": 3},
        {"stop": ["x"] * 65},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"99": 1}},
        {"top_logprobs": 2},
        {"messages": []},
        {"messages": "hello"},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "user"}]},
        {"chat_template_kwargs": {"unheard_of": 1}},
        {"speculative": {"method": "eagle3"}},
        {"speculative": {"num_speculative_tokens": 5}},
        {"messages": [{"role": "user", "content": "w1 " * 200}]},
    ],
    ids=str,
)
def test_bad_values_are_a_clients_mistake(served: Client, body: dict[str, Any]) -> None:
    error = error_of(served.post("/v1/chat/completions", json={"messages": USER, **body}), 400)
    assert error["type"] == "invalid_request_error"
    assert served.state.service.open == 0


@pytest.mark.parametrize(
    ("body", "param", "forms"),
    [
        ({"stop": 3}, "stop", ["list", "string"]),
        ({"stop": [3]}, "stop.0", ["string"]),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content", ["string", "list"]),
        ({"speculative": 3}, "speculative", ["boolean", "dictionary"]),
        (
            {"speculative": {"num_speculative_tokens": "3"}},
            "speculative.num_speculative_tokens",
            ["integer"],
        ),
        ({"temperature": "1", "top_p": "1"}, "temperature", ["number"]),
        ({"temperature": "1", "stop": [3]}, "temperature", ["number"]),
        ({"logit_bias": {"Abc": 1}}, "logit_bias.Abc", ["integer"]),
    ],
    ids=str,
)
def test_a_wrong_type_names_the_field_and_all_that_it_takes(
    served: Client, body: dict[str, Any], param: str, forms: list[str]
) -> None:
    error = error_of(served.post("/v1/chat/completions", json={"messages": USER, **body}), 400)
    assert error["param"] == param
    assert all(form in error["message"] for form in forms)
    assert error["message"].count("Input should") == len(forms)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * 10_000, 400),
        (b"\xff\xfe", 400),
        (b'{"messages": NaN}', 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
        (b'{"seed": ' + b"9" * 5000 + b"}", 400),
        (b'{"messages": "' + b"w" * 20_000 + b'"}', 413),
    ],
    ids=["empty", "cut", "deep", "bytes", "nan", "surrogate", "digits", "long"],
)
def test_broken_bodies_are_refused(served: Client, content: bytes, status: int) -> None:
    headers = {"Content-Type": "application/json"}
    error_of(served.post("/v1/chat/completions", content=content, headers=headers), status)
    # A body of unknown length.
    chunks = iter([content[:5], content[5:]])
    error_of(served.post("/v1/chat/completions", content=chunks, headers=headers), status)


def test_a_body_must_be_json_by_its_type(served: Client) -> None:
    response = served.post(
        "/v1/chat/completions", content=b"{}", headers={"Content-Type": "text/plain"}
    )
    error_of(response, 415)


def test_every_route_that_takes_a_body_asks_for_its_type() -> None:
    routes = [
        route
        for route in build_app(state_of(served_engine())).routes
        if "POST" in (getattr(route, "methods", None) or ())
    ]
    assert routes
    for route in routes:
        assert isinstance(route, APIRoute)
        assert check_type in {dependency.call for dependency in route.dependant.dependencies}


def test_the_model_is_the_one_that_is_served(served: Client) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": USER},
        "/v1/completions": {"prompt": "w1"},
        "/v1/responses": {"input": "w1"},
        "/tokenize": {"content": "w1"},
        "/detokenize": {"tokens": [5]},
        "/v1/messages": {"messages": USER, "max_tokens": 1},
        "/v1/messages/count_tokens": {"messages": USER},
    }
    for name in ("gpt-5", "../../etc/passwd", "http://example.org/model", "/etc/passwd", "zoo"):
        for path, body in bodies.items():
            response = served.post(path, json={"model": name, **body})
            assert response.status_code == 404
            assert response.json()["error"]["type"] == "not_found_error"
        error_of(served.get(f"/v1/models/{name}"), 404)
    assert served.chat(model=MODEL, max_tokens=1)["model"] == MODEL
    assert served.get(f"/v1/models/{MODEL}").json()["id"] == MODEL


@pytest.mark.parametrize("path", ["/v1/nothing", "/../etc/passwd", "/v1/embeddings", "/infill"])
def test_other_paths_are_not_there(served: Client, path: str) -> None:
    error_of(served.post(path, json={}), 404)


def test_an_address_for_other_clients_is_corrected(served: Client) -> None:
    message = error_of(served.post("/v1/v1/messages", json={}), 404)["message"]
    assert "with /v1 at its end (Anthropic's without it)" in message


def test_every_response_has_an_id(served: Client) -> None:
    assert served.get("/health").headers["x-request-id"].startswith("req_")
    given = served.get("/health", headers={"x-request-id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    forged = served.get("/health", headers={"x-request-id": "a: b"})
    assert forged.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "first-key"},
        {"Authorization": "Basic first-key"},
        {"x-api-key": "first-ke"},
    ],
    ids=str,
)
def test_a_key_is_needed(locked: Client, headers: dict[str, str]) -> None:
    """On every path that is published, and on those that are not there."""
    error = error_of(locked.get("/v1/models", headers=headers), 401)
    assert error["code"] == "invalid_api_key"
    app: Any = locked.app
    asked = [(m, path) for path, methods in app.openapi()["paths"].items() for m in methods]
    assert len(asked) > 10
    asked += [("get", "/openapi.json"), ("post", "/v1/nothing"), ("get", "/health/../metrics")]
    for method, path in asked:
        response = locked.request(method, path, headers=headers)
        assert response.status_code == (200 if path == "/health" else 401), path
        assert not any(key in response.text for key in KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_any_key_opens(locked: Client, key: str) -> None:
    for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
        assert locked.get("/v1/models", headers=headers).status_code == 200


def test_keys_share_no_prefix() -> None:
    with client(state_of(served_engine(rows=1)), GateLimits(keys=KEYS)) as one:
        cached = []
        for key in (KEYS[0], KEYS[0], KEYS[1], KEYS[1]):
            body = {"messages": USER, "max_tokens": 1}
            headers = {"x-api-key": key}
            usage = one.post("/v1/chat/completions", json=body, headers=headers).json()["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == cached[2] == 0 < cached[1] == cached[3]


def test_a_server_without_keys_answers_to_its_own_names() -> None:
    with client(limits=GateLimits(hosts=("localhost", "::1"))) as one:
        for host, status in {
            "localhost:8000": 200,
            "LOCALHOST": 200,
            "[::1]:8000": 200,
            "evil.example": 403,
            "localhost.evil.example": 403,
        }.items():
            assert one.get("/health", headers={"Host": host}).status_code == status


def test_an_address_that_others_reach_needs_a_key(tmp_path: Any) -> None:
    from forerun.server.request import run

    with pytest.raises(ConfigError, match="--api-key"):
        run(ServeRequest(host="0.0.0.0"))
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n", "utf-8")
    assert ServeRequest(api_key=("zero",), api_key_file=str(file)).keys == ("zero", "one", "two")
    file.write_text("\n", "utf-8")
    with pytest.raises(ConfigError, match="no key"):
        _ = ServeRequest(api_key_file=str(file)).keys


def test_the_model_is_described(served: Client) -> None:
    (model,) = served.get("/v1/models").json()["data"]
    assert model["max_model_len"] == 128
    assert model["capabilities"]["chat"]
    assert model["speculative"] == {"method": "ngram", "num_speculative_tokens": 4}
    props = served.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 128
    assert props["total_slots"] == 3
    assert props["chat_template"]


def test_text_and_tokens_translate(served: Client) -> None:
    for field in ("content", "prompt"):
        told = served.post("/tokenize", json={field: "w1 w2"}).json()
        assert (told["tokens"], told["count"]) == ([5, 6], 2)
    told = served.post("/tokenize", json={"messages": USER, "return_token_strs": True}).json()
    assert told["tokens"] == list(served_engine().chat(USER, max_tokens=1).prompt_ids)
    assert told["token_strs"][:2] == ["<user>", "w1"]
    back = served.post("/detokenize", json={"tokens": [5, 6]}).json()
    assert back["content"] == back["prompt"] == "w1 w2"
    error_of(served.post("/detokenize", json={"tokens": [99]}), 400)
    error_of(served.post("/tokenize", json={}), 400)
