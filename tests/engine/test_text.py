"""Text comes out whole: what the tokens decode to, no broken characters, no beginnings of stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.engine.text import Decoder, TextStream
from tests.helpers.made_tokenizers import TOKENIZERS


class Bytes:
    """A tokenizer of one byte a token: every character beyond ASCII takes several."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return bytes(token_ids).decode(errors="replace")


ALL = {"plain": Bytes(), **TOKENIZERS}
SIZES = {name: 256 if name == "plain" else len(tokenizer) for name, tokenizer in TOKENIZERS.items()}
SIZES["plain"] = 256
BROKEN = "\N{REPLACEMENT CHARACTER}"
every_tokenizer = pytest.mark.parametrize("name", list(ALL))


def decoded(name: str, token_ids: Sequence[int]) -> str:
    return str(ALL[name].decode(list(token_ids), skip_special_tokens=True))


def run(
    tokenizer: Any,
    token_ids: Sequence[int],
    stop: tuple[str, ...] = (),
    sizes: Sequence[int] = (1,),
    marks: tuple[str, ...] = (),
) -> tuple[list[str], TextStream]:
    """Commit the tokens, so many at once in turns; a piece for each token."""
    stream, start = TextStream(Decoder(tokenizer, marks), stop, marks), 0
    pieces: list[str] = []
    while start < len(token_ids) and not stream.state.stopped:
        chunk = token_ids[start : start + sizes[start % len(sizes)]]
        preview = stream.preview(chunk, final=start + len(chunk) == len(token_ids))
        stream.state = preview.state
        pieces += preview.texts
        start += len(chunk)
    return pieces, stream


@st.composite
def token_lists(draw: st.DrawFn, name: str) -> list[int]:
    """Any tokens, often the first ones: those are single bytes and special tokens."""
    size = SIZES[name]
    token = st.integers(0, size - 1) | st.integers(0, min(size, 260) - 1)
    return draw(st.lists(token, max_size=14))


@every_tokenizer
@given(data=st.data())
def test_the_text_is_what_all_tokens_decode_to(name: str, data: st.DataObject) -> None:
    """At the end and, with what is held back, before; whatever is tried and thrown away meanwhile."""
    token_ids = data.draw(token_lists(name))
    stream, shown = TextStream(Decoder(ALL[name])), ""
    for count, token in enumerate(token_ids, start=1):
        stream.preview(data.draw(token_lists(name)), final=data.draw(st.booleans()))
        preview = stream.preview([token], final=count == len(token_ids))
        stream.state = preview.state
        shown += preview.texts[0]
        assert stream.text == decoded(name, token_ids[:count])
        assert stream.text.startswith(shown)
    assert shown == decoded(name, token_ids)


@every_tokenizer
@given(data=st.data())
def test_tokens_at_once_are_tokens_one_by_one(name: str, data: st.DataObject) -> None:
    token_ids = data.draw(token_lists(name))
    stop = tuple(data.draw(st.lists(st.text("ab th�\n", min_size=1, max_size=3), max_size=2)))
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    pieces, stream = run(ALL[name], token_ids, stop)
    others, other = run(ALL[name], token_ids, stop, sizes)
    assert others == pieces
    assert other.text == stream.text == "".join(pieces)


@every_tokenizer
@given(data=st.data())
def test_the_first_stop_that_is_complete_ends_the_text(name: str, data: st.DataObject) -> None:
    """As soon as what all tokens decode to has one, and at its beginning."""
    text = data.draw(st.text("abTHE dog日é", max_size=20))
    stops = tuple(data.draw(st.lists(st.text("abTHE dog日é", min_size=1, max_size=3), max_size=3)))
    token_ids = ALL[name].encode(text, add_special_tokens=False)
    pieces, stream = run(ALL[name], token_ids, stops)
    for count in range(1, len(token_ids) + 1):
        whole = decoded(name, token_ids[:count])
        found = [whole.index(stop) for stop in stops if stop in whole]
        if found:
            assert (len(pieces), stream.state.stopped) == (count, True)
            assert stream.text == whole[: min(found)] == "".join(pieces)
            return
    assert (len(pieces), stream.state.stopped) == (len(token_ids), False)
    assert stream.text == decoded(name, token_ids) == "".join(pieces)


def test_no_piece_holds_half_a_character() -> None:
    pieces, _ = run(Bytes(), "naïve 日本 🙂!".encode())
    assert all(BROKEN not in piece for piece in pieces)


def test_a_character_after_bytes_that_are_none_is_not_lost() -> None:
    token_ids = [0xFF, 0xFF, 0xFF, *"日本".encode()]
    pieces, stream = run(Bytes(), token_ids)
    assert stream.text == "".join(pieces) == f"{3 * BROKEN}日本"


def test_bytes_that_are_no_text_still_come_out() -> None:
    pieces, stream = run(Bytes(), [0xFF] * 10)
    assert stream.text == "".join(pieces) == BROKEN * 10


def test_what_is_held_back_belongs_to_the_text_of_an_interrupted_request() -> None:
    stream = TextStream(Decoder(Bytes()))
    preview = stream.preview("aé".encode()[:2])
    stream.state = preview.state
    assert "".join(preview.texts) == "a"
    assert stream.text == f"a{BROKEN}"


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    pieces, stream = run(Bytes(), b"xENyEND", ("END",))
    assert pieces == ["x", "", "", "ENy", "", "", ""]
    assert stream.text == "xENy"


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_behind_a_mark_no_stop_string_counts(sizes: list[int]) -> None:
    for text, left in (
        ("a CALL END EN", "a CALL END EN"),
        ("an END CALL", "an "),
        ("CAL END", "CAL "),
    ):
        pieces, stream = run(Bytes(), text.encode(), ("END", "NEVER"), sizes, ("CALL",))
        assert "".join(pieces) == stream.text == left


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_that_are_marks_stay_in_the_text(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    mark, *others = tokenizer.all_special_tokens
    ids = [tokenizer.convert_tokens_to_ids(one) for one in (mark, *others, mark)]
    token_ids = [*ids, *tokenizer.encode("é a", add_special_tokens=False)]
    assert "".join(run(tokenizer, token_ids, marks=(mark,))[0]).startswith(mark + mark)
    assert mark not in "".join(run(tokenizer, token_ids)[0])


def test_a_preview_changes_nothing() -> None:
    stream = TextStream(Decoder(Bytes()), ("END",))
    before = stream.state
    assert stream.preview(b"END", final=True).stopped
    assert stream.state is before
    assert stream.preview(b"a").texts == ("a",)


@pytest.mark.parametrize("stop", [(), ("x",)])
def test_without_a_tokenizer_there_is_no_text(stop: tuple[str, ...]) -> None:
    stream = TextStream(None, stop)
    preview = stream.preview([1, 2], final=True)
    assert preview.texts == ("", "")
    assert not preview.stopped
    assert stream.text == ""


@every_tokenizer
def test_a_token_is_decoded_once(name: str) -> None:
    """But for tokens that end inside a character, and for what has to be decoded again beside them."""
    decoder, calls = Decoder(ALL[name]), list[tuple[int, ...]]()
    original = decoder.decode

    def counting(token_ids: Sequence[int]) -> str:
        calls.append(tuple(token_ids))
        return original(token_ids)

    decoder.decode = counting
    text = "the text of all, and the text of all the others, " * 4
    token_ids = ALL[name].encode(text, add_special_tokens=False)
    stream = TextStream(decoder)
    for token_id in token_ids:
        stream.state = stream.preview([token_id]).state
    assert stream.text.strip() == text.strip()
    again = 0 if decoder.joins else len(set(token_ids))
    # The last decoding is that of `stream.text`.
    assert len(calls) <= len(token_ids) + again + 1
