"""Anthropic's form and OpenAI's responses, through the packages of others, unmodified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.served import MODEL, Client, byte_engine, client, state_of
from tests.matrix import DRAFTERS
from tests.server.test_tools import TOOLS, WEATHER, template_of

# Both packages are imported where they are used: every process of the tests collects this file.
if TYPE_CHECKING:
    import anthropic

ASKED: Any = {"role": "user", "content": "Is it warm?"}
LIMITS: dict[str, Any] = {"seed": 5}
GIVEN: Any = [tool["function"] for tool in TOOLS]
CUSTOM: Any = [{"name": one["name"], "input_schema": one["parameters"]} for one in GIVEN]
FLAT: Any = [{"type": "function", **one} for one in GIVEN]
PROPERTIES: Any = WEATHER["properties"]


@pytest.fixture(scope="module")
def served() -> Iterator[Client]:
    engine = byte_engine(DRAFTERS[0], template_of("hermes"), 1024)
    with client(state_of(engine)) as one:
        yield one


@pytest.fixture(scope="module")
def thinking() -> Iterator[Client]:
    engine = byte_engine(DRAFTERS[0], template_of("hermes", thinks=True), 1024)
    with client(state_of(engine)) as one:
        yield one


def claude(served: Client) -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(
        base_url="http://testserver", api_key="any", http_client=served, max_retries=0
    )


def responses(served: Client) -> Any:
    import openai

    made = openai.OpenAI(
        base_url="http://testserver/v1", api_key="any", http_client=served, max_retries=0
    )
    return made.responses


def chat(served: Client, **body: Any) -> Any:
    """The choice of the same question in OpenAI's form."""
    return served.chat(messages=[ASKED], **LIMITS, **body)["choices"][0]


def test_a_message_is_the_answer_of_chat(served: Client) -> None:
    ask: Any = {"model": MODEL, "messages": [ASKED], "max_tokens": 20, "extra_body": LIMITS}
    found = claude(served).messages.create(**ask)
    choice = chat(served, max_tokens=20)
    block: Any = found.content[0]
    assert block.text == choice["message"]["content"]
    assert (found.stop_reason, found.usage.output_tokens) == ("max_tokens", 20)
    counted = claude(served).messages.count_tokens(model=MODEL, messages=[ASKED]).input_tokens
    assert counted == found.usage.input_tokens + (found.usage.cache_read_input_tokens or 0)
    with claude(served).messages.stream(**ask) as stream:
        assert "".join(stream.text_stream) == block.text
        last = stream.get_final_message()
    assert [one.type for one in last.content] == ["text"]
    assert last.usage.output_tokens == 20


def test_a_stop_sequence_is_named(served: Client) -> None:
    text = chat(served, max_tokens=20)["message"]["content"]
    ask: Any = {"model": MODEL, "messages": [ASKED], "max_tokens": 20, "extra_body": LIMITS}
    found = claude(served).messages.create(**ask, stop_sequences=["\0", text[3:5]])
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", text[3:5])


def test_a_message_calls_tools(served: Client, thinking: Client) -> None:
    for one, kinds in ((served, ["tool_use"]), (thinking, ["thinking", "tool_use"])):
        ask: Any = {
            "model": MODEL,
            "messages": [ASKED],
            "max_tokens": 700,
            "tools": CUSTOM,
            "tool_choice": {"type": "tool", "name": "get_weather"},
            "extra_body": LIMITS,
        }
        found: Any = claude(one).messages.create(**ask)
        with claude(one).messages.stream(**ask) as stream:
            last: Any = stream.get_final_message()
        assert last.stop_reason == found.stop_reason
        if found.stop_reason == "max_tokens":
            continue
        assert [block.type for block in found.content] == kinds
        assert found.stop_reason == "tool_use"
        assert {*found.content[-1].input} == {*PROPERTIES}
        assert last.content[-1].input == found.content[-1].input
        told = [ASKED, {"role": "assistant", "content": found.content}]
        result = {"type": "tool_result", "tool_use_id": found.content[-1].id, "content": "yes"}
        told.append({"role": "user", "content": [result, {"type": "text", "text": "So?"}]})
        claude(one).messages.create(model=MODEL, messages=told, tools=CUSTOM, max_tokens=3)


def test_a_response_is_the_answer_of_chat(served: Client, thinking: Client) -> None:
    for one in (served, thinking):
        choice = chat(one, max_tokens=20)
        ask: Any = {"model": MODEL, "input": [ASKED], "max_output_tokens": 20, "extra_body": LIMITS}
        found = responses(one).create(**ask)
        assert found.output_text == choice["message"]["content"]
        assert found.status == "incomplete"
        assert found.usage.output_tokens == 20
        with responses(one).stream(**ask) as stream:
            events = list(stream)
        assert events[-1].type == "response.incomplete"
        last = events[-1].response
        done = [one.item.status for one in events if one.type == "response.output_item.done"]
        assert done == [item.status for item in last.output] == ["incomplete"]
        assert last.output_text == found.output_text
        numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
        assert numbers == sorted({*numbers})
        thought = choice["message"].get("reasoning_content")
        texts = [part.text for part in last.output[0].content]
        assert (thought is None) == (last.output[0].type == "message")
        assert texts == [thought if thought is not None else found.output_text]


def test_a_response_calls_tools_and_meets_schemas(served: Client) -> None:
    ask: Any = {"model": MODEL, "input": "Is it warm?", "extra_body": LIMITS}
    named = {"type": "function", "name": "get_weather"}
    found = responses(served).create(
        **ask, tools=[{"type": "web_search"}, *FLAT], tool_choice=named
    )
    [call] = found.output
    assert {*json.loads(call.arguments)} == {*PROPERTIES}
    told = [ASKED, *(item.model_dump() for item in found.output)]
    told.append({"type": "function_call_output", "call_id": call.call_id, "output": "yes"})
    responses(served).create(model=MODEL, input=told, max_output_tokens=2)
    with responses(served).stream(**ask, tools=FLAT, tool_choice=named) as stream:
        assert stream.get_final_response().output[0].arguments == call.arguments
    form = {"type": "json_schema", "name": "w", "schema": {"enum": ["sunny"]}}
    assert responses(served).create(**ask, text={"format": form}).output_text == '"sunny"'


def test_mistakes_are_told_in_the_form_of_the_path(served: Client) -> None:
    import anthropic
    import openai

    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        claude(served).messages.create(model="other", messages=[ASKED], max_tokens=1)
    for body in (
        {"temprature": 1},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
    ):
        asked = {"messages": [ASKED], "max_tokens": 1, **body}
        error = served.post("/v1/messages", json=asked).json()
        assert error["type"] == "error"
        assert error["error"]["type"] == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="not stored"):
        responses(served).create(model=MODEL, input="a", previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match="not served"):
        responses(served).create(model=MODEL, input=[{"type": "item_reference", "id": "a"}])
    assert served.post("/v1/responses", json={"input": [], "max_output_tokens": 1}).is_success


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_an_error_ends_a_stream_in_its_form(path: str) -> None:
    """The engine fails in the middle of an answer."""
    engine, rounds = byte_engine(DRAFTERS[0], template_of("hermes"), 1024), count()

    def fail(*_: Any) -> None:
        if next(rounds) > 2:
            raise RuntimeError("a secret")

    # Greedy, so that no answer ends before the failure.
    body: dict[str, Any] = {"temperature": 0}
    body |= {"messages": [ASKED]} if "messages" in path else {"input": [ASKED]}
    limit = {"max_tokens": 50} if "messages" in path else {"max_output_tokens": 50}
    with client(state_of(engine)) as one:
        engine.watch_rounds(fail)
        *_, last, end = one.post(path, json={**body, **limit, "stream": True}).text.split("\n\n")
    kind, _, data = last.partition("\n")
    assert (kind, end) == ("event: error", "")
    assert json.loads(data.removeprefix("data: "))["type"] == "error"
    assert "secret" not in data
