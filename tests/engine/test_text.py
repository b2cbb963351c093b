"""Text comes out whole: no broken characters, no beginnings of stop strings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.engine.text import TextStream


class Bytes:
    """A tokenizer of one byte a token: every character beyond ASCII takes several."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return bytes(token_ids).decode(errors="replace")


def run(text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], str]:
    stream = TextStream(Bytes(), stop)
    pieces = []
    for token in text.encode():
        if stream.push(token):
            break
        pieces.append(stream.release())
    pieces.append(stream.release(finished=True))
    return pieces, stream.text


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=4), max_size=3))
def test_pieces_join_to_the_text_before_the_first_stop(text: str, stops: list[str]) -> None:
    pieces, whole = run(text, tuple(stops))
    # The stop that is complete first ends the text, at its own beginning.
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    first = min(ends, default=None)
    if first is None:
        assert whole == text
    else:
        starts = [text[:first].find(stop) for stop in stops if stop in text[:first]]
        assert whole == text[: min(starts)]
    assert "".join(pieces) == whole


def test_no_piece_holds_half_a_character() -> None:
    pieces, _ = run("naïve 日本 🙂!")
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)


def test_bytes_that_are_no_text_still_come_out() -> None:
    stream = TextStream(Bytes())
    for token in [0xFF] * 10:
        stream.push(token)
    assert len(stream.text) > 0
    assert stream.release(finished=True) == stream.text


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    stream = TextStream(Bytes(), ("END",))
    seen = []
    for token in b"xENyEND":
        stream.push(token)
        seen.append(stream.release())
    assert seen == ["x", "", "", "ENy", "", "", ""]
    assert stream.text == "xENy"


@pytest.mark.parametrize("stop", [(), ("x",)])
def test_without_a_tokenizer_there_is_no_text(stop: tuple[str, ...]) -> None:
    stream = TextStream(None, stop)
    assert not stream.push(1)
    assert stream.release(finished=True) == ""
