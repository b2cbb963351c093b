"""Chat templates: rendered as transformers renders them, BOS once, and every fault a typed error."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.engine.chat import ChatTemplate, check_messages
from forerun.engine.engine import Engine
from forerun.errors import CheckpointError, ConfigError, PromptError, UnknownNameError
from forerun.params import SamplingParams
from forerun.testing import ToyModel
from tests.helpers.chat_templates import ASKED, GEMMA_2, PUBLISHED, chat_tokenizer, tokenizer_of

published = pytest.mark.parametrize("name", PUBLISHED)
USER = [{"role": "user", "content": "Hi"}]
ONE = SamplingParams(temperature=0.0, max_tokens=1)


def template(source: str) -> ChatTemplate:
    made = ChatTemplate.of(chat_tokenizer(source))
    assert made is not None
    return made


def of_model(name: str) -> tuple[Any, ChatTemplate]:
    tokenizer = tokenizer_of(PUBLISHED[name])
    made = ChatTemplate.of(tokenizer)
    assert made is not None
    return tokenizer, made


@published
def test_a_prompt_is_the_published_one_and_that_of_transformers(name: str) -> None:
    tokenizer, made = of_model(name)
    model = PUBLISHED[name]
    variables = {"date_string": "1 Jan 2026"} if "date_string" in model.variables else {}
    text = made.render(model.messages, variables)
    assert text == model.prompt
    assert text == tokenizer.apply_chat_template(
        model.messages, tokenize=False, add_generation_prompt=True, **variables
    )


@published
def test_tokens_are_those_of_transformers_with_one_bos(name: str) -> None:
    tokenizer, made = of_model(name)
    model = PUBLISHED[name]
    token_ids = made.encode(model.messages)
    assert token_ids == tokenizer.apply_chat_template(
        model.messages, add_generation_prompt=True, return_dict=False
    )
    if model.prompt.startswith(model.special.get("bos_token", "\0")):
        assert token_ids[0] == tokenizer.bos_token_id != token_ids[1]


@published
def test_a_rendered_prompt_as_text_has_one_bos(name: str) -> None:
    tokenizer, made = of_model(name)
    text = made.render(PUBLISHED[name].messages)
    engine = Engine(ToyModel(len(tokenizer), max_context=1024), tokenizer=tokenizer)
    [completion] = engine.generate([text], ONE)
    assert list(completion.prompt_ids) == made.encode(PUBLISHED[name].messages)


def test_other_texts_are_opened_as_the_tokenizer_does() -> None:
    tokenizer = tokenizer_of(PUBLISHED["mistral"])
    engine = Engine(ToyModel(len(tokenizer), max_context=64), tokenizer=tokenizer)
    bos = tokenizer.bos_token_id
    starts = {"dog": [bos], "<s>dog": [bos], "<s><s>dog": [bos, bos], "dog<s>": [bos]}
    for text, start in starts.items():
        [completion] = engine.generate([text], ONE)
        rest = tokenizer.encode(text, add_special_tokens=False)
        assert list(completion.prompt_ids) == start + rest[text.startswith("<s>") * len(start) :]


def test_a_template_that_opens_twice_is_opened_once() -> None:
    tokenizer = chat_tokenizer("{{ bos_token }}{{ bos_token }}Hi", {"bos_token": "<s>"}, opens=True)
    made = ChatTemplate.of(tokenizer)
    assert made is not None
    assert made.encode(USER).count(tokenizer.bos_token_id) == 1


@published
def test_the_variables_of_a_template(name: str) -> None:
    _, made = of_model(name)
    assert made.variables == PUBLISHED[name].variables


def test_a_variable_changes_the_prompt() -> None:
    _, made = of_model("qwen3")
    thinking, quick = made.render(ASKED), made.render(ASKED, {"enable_thinking": False})
    assert quick == thinking + "<think>\n\n</think>\n\n"


def test_a_variable_that_nobody_reads_is_refused() -> None:
    _, made = of_model("qwen3")
    with pytest.raises(UnknownNameError, match="Did you mean 'enable_thinking'"):
        made.render(ASKED, {"enable_thinkin": False})
    _, made = of_model("chatml")
    with pytest.raises(ConfigError, match="reads no variables"):
        made.render(ASKED, {"enable_thinking": False})
    with pytest.raises(ConfigError, match="mapping"):
        made.render(ASKED, ["enable_thinking"])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tokenize", "chat_template", "add_generation_prompt", "messages"])
def test_no_variable_reaches_the_library(name: str) -> None:
    with pytest.raises(ConfigError):
        template("{{ messages }}{{ add_generation_prompt }}").render(USER, {name: True})


@pytest.mark.parametrize("parts", [["a", "b"], ({"type": "text", "text": "a"}, {"text": "b"})])
@published
def test_text_parts_are_joined(name: str, parts: Any) -> None:
    _, made = of_model(name)
    joined = made.render([{"role": "user", "content": "a\nb"}])
    assert made.render([{"role": "user", "content": parts}]) == joined


def test_tools_reach_a_template_that_reads_them() -> None:
    tool = {"type": "function", "function": {"name": "weather"}}
    text = template("{{ tools[0].function.name }}").render(USER, {"tools": [tool]})
    assert text == "weather"


def test_what_a_template_says_is_the_message() -> None:
    made = template(GEMMA_2)
    with pytest.raises(PromptError, match="refuses the messages: System role not supported"):
        made.render([{"role": "system", "content": "Be brief."}, *USER])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[7].content }}",
        "{{ messages + 1 }}",
        "{{ raise_exception('first\nsecond') }}",
        "{{ 1 // 0 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_that_fails_is_a_typed_error_in_one_line(source: str) -> None:
    with pytest.raises(PromptError) as refusal:
        template(source).render(USER)
    assert "\n" not in str(refusal.value)


def test_a_broken_template_is_named() -> None:
    made = template("{% for %}")
    with pytest.raises(CheckpointError, match="chat template is not valid"):
        made.render(USER)
    with pytest.raises(CheckpointError, match="not valid"):
        made.render(USER, {"a": 1})


def test_tokenizers_without_a_template() -> None:
    assert ChatTemplate.of(None) is None
    assert ChatTemplate.of(chat_tokenizer(None)) is None


def test_of_several_templates_the_default_is_used() -> None:
    tokenizer = chat_tokenizer(None)
    tokenizer.chat_template = {"default": "one", "tool_use": "two"}
    made = ChatTemplate.of(tokenizer)
    assert made is not None
    assert made.render(USER) == "one"
    tokenizer.chat_template = {"rag": "one", "tool_use": "two"}
    with pytest.raises(CheckpointError, match="rag, tool_use"):
        ChatTemplate.of(tokenizer)


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        (None, "messages are None"),
        ("Hi", "messages are 'Hi'"),
        ({"role": "user", "content": "Hi"}, "give a list"),
        ([], "empty"),
        (7, "messages are 7"),
        (["Hi"], "message 1 is 'Hi'"),
        ([{"content": "Hi"}], "has no role"),
        ([{"role": 7, "content": "Hi"}], "the role 7"),
        ([*USER, {"role": "user"}], "message 2 .* has no content"),
        ([{"role": "user", "content": 7}], "the content 7"),
        ([{"role": "user", "content": [7]}], "the content"),
        ([{"role": "user", "content": [{"type": "image"}]}], "only text"),
        ([{"role": "user", "content": [{"type": "text"}]}], "must be text"),
        ([{"role": "user", "content": {"type": "text", "text": "Hi"}}], "put it into a list"),
        ([USER, USER], "several conversations"),
        ([{"role": "user", "content": "a\udcff"}], "UTF-8"),
    ],
)
def test_what_is_no_conversation_is_refused(messages: Any, problem: str) -> None:
    with pytest.raises(PromptError, match=problem):
        check_messages(messages)
    with pytest.raises(PromptError, match=problem):
        template("{{ messages }}").render(messages)


def test_a_role_is_one_of_the_usual_ones_or_one_that_the_template_names() -> None:
    messages = [{"role": "usr", "content": "Hi"}]
    with pytest.raises(PromptError, match="the role 'usr' is unknown; use one of system,"):
        template("{{ messages[0].content }}").render(messages)
    made = template("{% if messages[0].role == 'usr' %}{{ messages[0].content }}{% endif %}")
    assert made.render(messages) == "Hi"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "weather"}]},
        {"role": "assistant", "content": "Hi", "reasoning_content": "Hm"},
    ],
)
def test_what_is_a_message_is_taken_as_it_is(message: dict[str, Any]) -> None:
    assert check_messages([message]) == [message]
