"""Tools: calls are read however rounds cut them, and forced ones are those of plain decoding."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.server import tools
from forerun.server.bodies import Function
from forerun.server.tools import FORMATS, ToolCallReader
from tests.helpers.served import (
    USER,
    Client,
    byte_engine,
    byte_tokenizer,
    client,
    served_engine,
    state_of,
)
from tests.matrix import DRAFTERS

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "integer", "maximum": 9, "minimum": 0},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
FUNCTIONS = [
    Function(name="get_weather", parameters=WEATHER),
    Function(name="now", parameters={"type": "object", "additionalProperties": False}),
]
TOOLS = [{"type": "function", "function": one.model_dump(exclude_none=True)} for one in FUNCTIONS]
ROME = '{"city": "Ro\\"m}e", "unit": "C", "days": 3}'
# Of each form an answer with two calls, and the text around them.
ANSWERS = {
    "hermes": (
        f'Let me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {ROME}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    ),
    "qwen3_coder": (
        'Let me see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRo"m}e\n</parameter>\n'
        "<parameter=unit>\nC\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    ),
    "mistral": (
        f'Let me see.[TOOL_CALLS][{{"name": "get_weather", "arguments": {ROME}, "id": "123456789"}}, '
        '{"name": "now", "arguments": {}}]'
    ),
    "mistral_named": f"Let me see.[TOOL_CALLS]get_weather[ARGS]{ROME}[TOOL_CALLS]now[ARGS]{{}}",
    "llama3": f'{{"name": "get_weather", "parameters": {ROME}}}; {{"name": "now", "parameters": {{}}}}',
}
EXPECTED = [["get_weather", json.loads(ROME)], ["now", {}]]


def template_of(name: str, thinks: bool = False) -> str:
    """A template that shows tools and calls, and holds the sign of a form."""
    return (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}"
        "<{{ message.role }}>{{ message.content or '' }}{% for call in message.tool_calls or [] %}"
        "{{ call.function.name }}{{ call.function.arguments.city }}{% endfor %}{% endfor %}"
        "{# " + FORMATS[name].sign + " #}" + ("<think>{# </think> #}" if thinks else "")
    )


def read(name: str, text: str, cuts: list[int]) -> tuple[str, list[list[Any]]]:
    reader, ends = ToolCallReader(FORMATS[name], FUNCTIONS), sorted({*cuts, len(text)})
    found, calls = "", list[list[Any]]()
    cut = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    for place, new in enumerate(cut):
        for part in reader(new, place == len(cut) - 1):
            if part.kind == "text":
                found += part.text
                continue
            assert part.index in (len(calls) - 1, len(calls))
            if part.index == len(calls):
                assert part.name is not None
                assert part.call_id
                calls.append([part.name, ""])
            calls[part.index][1] += part.text
    return found, [[called, json.loads(arguments)] for called, arguments in calls]


@pytest.mark.parametrize("name", ANSWERS)
@given(cuts=st.lists(st.integers(0, 150), max_size=20))
def test_calls_are_read_however_they_are_cut(name: str, cuts: list[int]) -> None:
    text = "" if name == "llama3" else "Let me see."
    assert read(name, ANSWERS[name], [min(cut, len(ANSWERS[name])) for cut in cuts]) == (
        text,
        EXPECTED,
    )


@pytest.mark.parametrize(
    ("name", "text", "rest", "calls"),
    [
        ("hermes", "a < b <tool", "a < b <tool", []),
        ("hermes", "<tool_call>none</tool_call>", "<tool_call>none</tool_call>", []),
        ("hermes", '<tool_call>{"arguments": {}, "name": "now"}</tool_call>', "", [["now", {}]]),
        (
            "hermes",
            '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>.',
            ".",
            [["now", {}]],
        ),
        ("hermes", '<tool_call>{"name": "no', '<tool_call>{"name": "no', []),
        ("llama3", '{"answer": 42}', '{"answer": 42}', []),
        ("llama3", "the answer is {}", "the answer is {}", []),
        ("llama3", '\n{"type": "function", "name": "now", "parameters": {}}', "", [["now", {}]]),
        ("mistral", "[TOOL_CALLS]now{}", "", [["now", {}]]),
        ("qwen3_coder", "<tool_call>\n<function=now>", "", [["now", {}]]),
    ],
)
def test_what_is_no_call_stays_text(name: str, text: str, rest: str, calls: Any) -> None:
    for cuts in ([], [*range(len(text))]):
        assert read(name, text, cuts) == (rest, calls)


def called(one: Client, **body: Any) -> dict[str, Any]:
    """The choice of a forced call, which is that of plain decoding, and of a stream."""
    asked = {"seed": 5, "max_tokens": 200, "tools": TOOLS, **body}
    choice = one.chat(**asked)["choices"][0]
    plain = one.chat(**asked, speculative=False)["choices"][0]
    chunks = one.chunks(**asked)
    parts: list[list[str]] = []
    for delta in (chunk["choices"][0]["delta"] for chunk in chunks):
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                parts.append([part["function"]["name"], ""])
            assert part["index"] == len(parts) - 1
            parts[-1][1] += part["function"]["arguments"]
    calls = choice["message"].get("tool_calls", [])
    assert parts == [[*one["function"].values()] for one in calls]
    assert len({one["id"] for one in calls}) == len(calls)
    for message in (choice["message"], plain["message"]):
        for call in message.get("tool_calls", ()):
            del call["id"]
    assert plain == choice
    return choice


CASES = {case.name: case for case in DRAFTERS}


@pytest.mark.parametrize(
    ("name", "drafter", "thinks"),
    [
        ("hermes", "draft_model", False),
        pytest.param("hermes", "ngram", True, marks=pytest.mark.slow),
        pytest.param("hermes", "eagle3-tree", False, marks=pytest.mark.slow),
        ("qwen3_coder", "suffix", True),
        ("mistral", "medusa", False),
        ("mistral_named", "layer_skip", True),
        ("llama3", "token_recycling", False),
    ],
)
def test_forced_calls_are_those_of_plain_decoding(name: str, drafter: str, thinks: bool) -> None:
    """With thoughts before them, several at once, or with what would be a stop string in text."""
    template = template_of(name, thinks)
    with client(state_of(byte_engine(CASES[drafter], template, 1024))) as one:
        bias: dict[str, Any] = {}
        if thinks:
            mark = byte_tokenizer(template).convert_tokens_to_ids("</think>")
            bias = {"logit_bias": {str(mark): 7.0}}
        named = {"type": "function", "function": {"name": "get_weather"}}
        choice = called(one, tool_choice=named, **bias)
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        wanted = call["function"]
        assert wanted["name"] == "get_weather"
        assert {*json.loads(call["function"]["arguments"])} == {*WEATHER["properties"]}  # type: ignore[misc]
        choice = called(one, tool_choice="required", parallel_tool_calls=False, **bias)
        (call,) = choice["message"]["tool_calls"]
        json.loads(call["function"]["arguments"])
        stopped = called(one, tool_choice=named, stop=["unit", "days"], **bias)
        assert stopped["message"]["tool_calls"][0]["function"] == wanted
        for call in called(one, tool_choice="required", **bias)["message"]["tool_calls"][:-1]:
            json.loads(call["function"]["arguments"])


def test_an_answer_may_be_json_or_a_call() -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["sunny", "rainy"]}}}
    kinds = set()
    with client(state_of(byte_engine(CASES["draft_model"], template_of("hermes"), 1024))) as one:
        for seed in range(12):
            choice = called(one, response_format=form, seed=seed, temperature=2.0)
            content = choice["message"]["content"]
            assert content in (None, '"sunny"', '"rainy"')
            kinds.add(content is None)
            if len(kinds) == 2:
                break
    assert kinds == {True, False}


def test_tools_and_calls_are_shown_by_the_template() -> None:
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "f", "arguments": '{"city": "Ulm"}'},
    }
    talk = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    talk.append({"role": "tool", "tool_call_id": "1", "content": "sunny"})
    with client(state_of(byte_engine(None, template_of("hermes"), 1024))) as one:

        def prompt(**body: Any) -> str:
            done = one.chat(messages=talk, max_tokens=1, **body)
            assert "usage" in done, done
            return str(done["usage"]["prompt_tokens"])

        shown = prompt(tools=TOOLS)
        assert prompt(tools=TOOLS, tool_choice="auto") == shown
        assert prompt() == prompt(tools=TOOLS, tool_choice="none") != shown
        told = one.post("/tokenize", json={"messages": talk}).json()["tokens"]
        assert "fUlm" in one.post("/detokenize", json={"tokens": told}).json()["content"]


@pytest.mark.parametrize(
    "body",
    [
        {"tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tools": [{"type": "function", "function": {"name": 'a"b'}}]},
        {"tools": [{"type": "custom", "custom": {"name": "a"}}]},
    ],
    ids=range(4),
)
def test_bad_tools_are_refused(body: dict[str, Any]) -> None:
    with client(state_of(byte_engine(None, template_of("hermes")))) as one:
        assert one.chat(**body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize(
    "properties",
    [{"a": {"type": "string", "maxLength": "x"}}, {"a": {"enum": 3}}, {"a": {"type": 3}}],
    ids=str,
)
def test_parameters_that_are_no_schema_are_refused(name: str, properties: Any) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    tools = [{"type": "function", "function": function}]
    with client(state_of(byte_engine(None, template_of(name)))) as one:
        error = one.chat(tools=tools, tool_choice="required")["error"]
        assert error["type"] == "invalid_request_error"
        assert one.chat(tools=tools, max_tokens=3)["object"] == "chat.completion"


def test_a_template_without_tools_takes_none() -> None:
    with client(state_of(served_engine())) as one:
        assert one.chat(tools=TOOLS)["error"]["param"] == "tools"
        assert not one.get("/v1/models").json()["data"][0]["capabilities"]["tools"]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, True),
        ({"enum": ["a", "b"]}, True),
        ({}, True),
        ({"type": "integer"}, False),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, False),
        ({"$ref": "#/$defs/Place"}, False),
    ],
)
def test_parameters_are_text_only_where_their_schema_says_so(schema: Any, text: bool) -> None:
    assert tools._is_text(schema) is text


def test_a_parameter_keeps_the_definitions_that_it_refers_to() -> None:
    schema = {
        "$defs": {"Place": {"type": "integer"}},
        "properties": {"to": {"$ref": "#/$defs/Place"}},
    }
    words: Any = SimpleNamespace(literal=json.dumps)
    assert '"$defs": {"Place": {"type": "integer"}}' in tools._xml(words, "go", schema)
