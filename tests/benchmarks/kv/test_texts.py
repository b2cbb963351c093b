"""Needles lie where they should, and can be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.kv.request import KvRequest
from benchmarks.kv.texts import Haystack, haystack, prose
from forerun.errors import ConfigError

# No letter of a needle is among them.
PROSE = list(range(1000, 6000))


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def made(**changes: Any) -> Haystack:
    options = {"depths": (0.0, 0.5, 1.0), "needles": 2, "seed": 1, "size": 2000, **changes}
    prose_ids, size = options.pop("prose_ids", PROSE), options.pop("size")
    request = KvRequest(scored_tokens=50, **options)
    return haystack(request, encode, prose_ids, size)


def test_the_prompt_has_its_size_and_holds_every_answer_at_its_depth() -> None:
    stack = made()
    assert len(stack.token_ids) == 2000
    text = "".join(map(chr, stack.token_ids))
    assert [needle.depth for needle in stack.needles] == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    for needle in stack.needles:
        question = "".join(map(chr, needle.question))
        statement = question.rpartition("? ")[2]
        answer = "".join(map(chr, needle.answer))
        assert text.count(statement) == 1
        at = text.index(statement + answer + ".")
        # The other needles move it a little.
        assert abs(at / len(text) - needle.depth) < 0.2
    assert len({tuple(needle.question) for needle in stack.needles}) == 6


def test_what_goes_on_is_the_text_behind_the_prompt() -> None:
    stack = made()
    kept = [token for token in stack.token_ids if token >= 1000]
    assert kept + stack.rest == PROSE[: len(kept) + 50]
    assert 1000 < len(kept) < 2000


def test_a_seed_repeats_it_and_another_does_not() -> None:
    assert made() == made()
    assert made() != made(seed=2)


def test_what_does_not_fit_names_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"12 needles take \d+ of 300 tokens"):
        made(size=300, needles=4)
    with pytest.raises(ConfigError, match=r"the text has 100 tokens; a context of 2000 with 50"):
        made(prose_ids=PROSE[:100])
    with pytest.raises(ConfigError, match="3 depths of 64 needles are more than 125"):
        made(needles=64)


def test_the_prose_is_long_enough_for_long_contexts() -> None:
    assert len(prose()) > 8 * 32768


def test_without_the_prose_a_text_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.kv.texts.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="give a text with --text"):
        prose()
