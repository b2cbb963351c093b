"""Splitting an answer into reasoning and text, however its rounds cut it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.server.answers import AnswerChoice, AnswerPart, Piece, Thinking
from forerun.server.state import TokenNames
from tests.helpers.made_tokenizers import TOKENIZERS
from tests.helpers.served import USER, client, served_engine, state_of

WHOLE = "\n<think>\nfirst, a < b </thin\n\nthen\n</think>\n\nthe answer </think> stays"


def split(text: str, cuts: list[int], opened: bool) -> tuple[str, str]:
    splitter, ends = Thinking(opened), sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    parts = [
        one for a, b in zip([0, *ends], ends, strict=False) for one in splitter(text[a:b], False)
    ]
    parts += splitter("", True)
    found = {"reasoning": "", "text": ""}
    for part in parts:
        found[part.kind] += part.text
    return found["reasoning"], found["text"]


@given(cuts=st.lists(st.integers(0, 80), max_size=20), opened=st.booleans())
def test_reasoning_stands_between_its_marks(cuts: list[int], opened: bool) -> None:
    text = WHOLE.removeprefix("\n<think>") if opened else WHOLE
    assert split(text, cuts, opened) == (
        "first, a < b </thin\n\nthen",
        "the answer </think> stays",
    )


@given(cuts=st.lists(st.integers(0, 30), max_size=8))
def test_an_answer_without_marks_is_text(cuts: list[int]) -> None:
    for text in ("no marks at all", "  <thin air", "<", ""):
        assert split(text, cuts, opened=False) == ("", text)


def test_a_thought_that_is_cut_off_is_reasoning() -> None:
    assert split("<think>never </thi", [3, 9, 14], opened=False) == ("never </thi", "")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_reasoning_has_its_own_field(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that opens a thought: all is reasoning until its end."""
    template = (
        "{% for message in messages %}<user> {{ message.content }} {% endfor %}"
        "{% if add_generation_prompt %}<reply> w18 {% endif %}{# </think> #}"
    )
    monkeypatch.setattr(Thinking, "START", "w18")
    engine = served_engine(template=template)
    body: dict[str, Any] = {"max_tokens": 6, "temperature": 0.0}
    with client(state_of(engine)) as one:
        if stream:
            deltas = [chunk["choices"][0]["delta"] for chunk in one.chunks(**body)]
            found = "".join(delta.get("reasoning_content", "") for delta in deltas)
            assert not any(delta.get("content") for delta in deltas)
        else:
            answer = one.chat(**body)
            found = answer["choices"][0]["message"]["reasoning_content"]
            assert answer["choices"][0]["message"]["content"] == ""
            assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 6
    alone = engine.chat(USER, **body)
    assert found == alone.text != ""


@pytest.mark.parametrize("name", TOKENIZERS)
def test_bytes_of_tokens_join_to_the_text(name: str) -> None:
    tokenizer, text = TOKENIZERS[name], "naïve ✓ 🙂"
    names, token_ids = TokenNames(tokenizer), tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(names(token)[1] for token in token_ids).decode().strip() == text


def test_blocks_stand_in_the_order_of_the_text() -> None:
    """Also where a round ends a call, and holds a whole one between two texts."""
    choice, begun = AnswerChoice(), AnswerPart("call", "{", 0, "id", "weather")
    whole = (AnswerPart("call", "", 1, "id2", "now"), AnswerPart("call", "{}", 1))
    for parts in (
        [begun],
        [AnswerPart("call", "}"), AnswerPart("text", "a"), *whole, AnswerPart("text", "b")],
    ):
        list(choice.add(Piece(0, parts, ())))
    found = [(block.first.kind, block.text) for block in choice.blocks]
    assert found == [("call", "{}"), ("text", "a"), ("call", "{}"), ("text", "b")]
