"""A text in the draft's tokens is the same text, however it came."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import (
    decoders,
    normalizers,
    pre_tokenizers,
)

from tests.helpers.made_tokenizers import (
    CODE,
    HARD,
    PROSE,
    TOKENIZERS,
    WORDS,
    byte_level,
    decode,
    encode,
    opening,
    pairs,
    retokenizer_of,
    spelled,
    texts,
    vocabulary_of,
    words,
)


@pairs
@settings(max_examples=25)
@given(data=st.data(), text=texts)
def test_a_text_in_the_drafts_tokens_is_the_same_text(
    target: str, draft: str, data: st.DataObject, text: str
) -> None:
    """And is what the draft's tokenizer makes of it, however the text has come about."""
    retokenizer = retokenizer_of(TOKENIZERS[target], TOKENIZERS[draft])
    tokens = encode(target, text)
    assume(decode(target, tokens) == text)
    end = 0
    while end < len(tokens):
        end = min(len(tokens), end + data.draw(st.integers(1, 12)))
        found = retokenizer.ids(7, tokens[:end])
        so_far = decode(target, tokens[:end])
        if "\ufffd" in so_far and "\ufffd" not in text:
            assert found is None
        elif so_far and "\ufffd" not in so_far:
            assert found == [*opening(draft), *encode(draft, so_far)]
            assert decode(draft, found) == so_far


@pairs
@settings(max_examples=8)
@given(data=st.data())
def test_long_texts_are_no_other(target: str, draft: str, data: st.DataObject) -> None:
    pieces = st.sampled_from([" " + word for word in WORDS] + HARD)
    text = "The" + "".join(data.draw(st.lists(pieces, min_size=60, max_size=100)))
    tokens, retokenizer = (
        encode(target, text),
        retokenizer_of(TOKENIZERS[target], TOKENIZERS[draft]),
    )
    for end in sorted({*range(9, len(tokens), data.draw(st.integers(3, 40))), len(tokens)}):
        found = retokenizer.ids(0, tokens[:end])
        if "\ufffd" not in decode(target, tokens[:end]):
            assert found is not None
            assert decode(draft, found) == decode(target, tokens[:end])
    assert found == [*opening(draft), *encode(draft, text)]


@pairs
@settings(max_examples=15)
@given(data=st.data())
def test_tokens_that_no_tokenizer_would_choose(
    target: str, draft: str, data: st.DataObject
) -> None:
    """Any tokens at all, as a model may emit them: the same text, or none if they are not text."""
    ordinary = sorted(vocabulary_of(TOKENIZERS[target]).ordinary.values())
    tokens = data.draw(st.lists(st.sampled_from(ordinary), min_size=1, max_size=80))
    retokenizer = retokenizer_of(TOKENIZERS[target], TOKENIZERS[draft])
    retokenizer.ids(0, tokens[: len(tokens) // 2])
    found, text = retokenizer.ids(0, tokens), decode(target, tokens)
    # A space that decoding drops is all that there may be.
    assert (found is None) == ("\ufffd" in text) or not text
    assert found is None or decode(draft, found) == text


@pytest.mark.parametrize("draft", ["more bytes", "more marks"])
@pytest.mark.parametrize("text", ["the dog sleeps. " * 400, "日本語naïve" * 400, "\n" * 3000])
def test_a_round_costs_the_end_of_the_text(draft: str, text: str) -> None:
    retokenizer = retokenizer_of(TOKENIZERS["bytes"], TOKENIZERS[draft])
    asked: list[int] = []
    inner = retokenizer._tokenizer

    class Counting:
        def encode(self, text: str, **options: bool) -> Any:
            asked.append(len(text))
            return inner.encode(text, **options)

    retokenizer._tokenizer = Counting()  # type: ignore[assignment]
    tokens = encode("bytes", text)
    for end in range(len(tokens) - 300, len(tokens) + 1):
        retokenizer.ids(0, tokens[:end])
    found = retokenizer.ids(0, tokens)
    assert found is not None
    assert decode(draft, found) == text
    assert max(asked[1:]) < 400


def test_half_a_character_waits_for_the_rest() -> None:
    retokenizer = retokenizer_of(TOKENIZERS["bytes"], TOKENIZERS["marks"])
    tokens = encode("bytes", "so 🙂")
    found = [retokenizer.ids(0, tokens[:end]) for end in range(len(tokens) - 4, len(tokens) + 1)]
    assert [one is None for one in found] == [False, True, True, True, False]


def test_a_mark_that_a_draft_reads_as_a_space_ends_drafting_for_that_text() -> None:
    retokenizer = retokenizer_of(TOKENIZERS["bytes"], TOKENIZERS["marks"])
    assert retokenizer.ids(0, encode("bytes", "the ▁ dog")) is None


def test_bytes_that_are_no_text_end_drafting_for_that_text_alone() -> None:
    retokenizer = retokenizer_of(TOKENIZERS["bytes"], TOKENIZERS["marks"])
    half = encode("bytes", "🙂")[:2]
    broken = half + encode("bytes", "the dog")
    assert retokenizer.ids(0, half) is None
    for end in range(3, len(broken)):
        assert retokenizer.ids(0, broken[:end]) is None
    assert retokenizer.ids(1, encode("bytes", "the dog")) is not None
    # A special token does not mend it.
    end = TOKENIZERS["bytes"].eos_token_id
    assert retokenizer.ids(2, [*half, end, *encode("bytes", "the dog")]) is None


def prefixing(kind: str) -> Any:
    """Tokenizers that put a space before each text that they are given."""
    if kind == "bytes":
        made = byte_level(300, PROSE, "<eos>")
        made.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        # Left over from training, as it is in some published ones.
        made.backend_tokenizer.enable_truncation(8)
        return made
    made = spelled(150, PROSE)
    made.backend_tokenizer.normalizer = None
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind)
    made.backend_tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=kind)]
    )
    return made


@pytest.mark.parametrize("kind", ["bytes", "first", "always"])
@pytest.mark.parametrize(
    "text", ["the dog\nsleeps, and then " * 20, "she", "日本 🙂the", "語naï" * 40]
)
def test_spaces_put_before_a_text_are_not_put_into_it(kind: str, text: str) -> None:
    other = prefixing(kind)
    to, back = (
        retokenizer_of(TOKENIZERS["bytes"], other),
        retokenizer_of(other, TOKENIZERS["bytes"]),
    )
    tokens = encode("bytes", text)
    for end in [*range(1, len(tokens), 5), len(tokens)]:
        found, so_far = to.ids(0, tokens[:end]), decode("bytes", tokens[:end])
        if "\ufffd" not in so_far:
            assert found is not None
            assert other.decode(found, skip_special_tokens=True) == so_far
    tokens = other.encode(text, add_special_tokens=False)
    found = back.ids(0, tokens)
    assert found is not None
    # Where nothing tells the space before a text from one in it, the text has it.
    assert decode("bytes", found) == (" " if kind == "bytes" else "") + text


@pytest.mark.parametrize("normalizer", [normalizers.NFC(), normalizers.Lowercase()], ids=repr)
def test_what_the_draft_cannot_spell_is_not_drafted_after(normalizer: Any) -> None:
    draft = byte_level(300, PROSE, "<eos>")
    draft.backend_tokenizer.normalizer = normalizer
    retokenizer = retokenizer_of(TOKENIZERS["bytes"], draft)
    assert retokenizer.ids(0, encode("bytes", "the dog")) is not None
    assert retokenizer.ids(1, encode("bytes", "THE DOG e\u0301")) is None


def test_words_that_the_draft_does_not_know_neither() -> None:
    target = words(["?", "the", "dog", "sleeps", "fox"])
    draft = words(["?", "fox", "dog", "the"])
    retokenizer = retokenizer_of(target, draft)
    assert retokenizer.ids(0, [1, 2]) == [3, 2]
    assert retokenizer.ids(0, [1, 2, 4]) == [3, 2, 1]
    assert retokenizer.ids(0, [1, 2, 4, 3]) is None


@pairs
def test_no_text_has_no_tokens_but_the_opening(target: str, draft: str) -> None:
    retokenizer = retokenizer_of(TOKENIZERS[target], TOKENIZERS[draft])
    assert retokenizer.ids(0, []) == (opening(draft) or None)
    assert retokenizer.ids(1, opening(target)) == (opening(draft) or None)
    # The target's own beginning of text is not text.
    text = "the dog"
    found = retokenizer.ids(2, [*opening(target), *encode(target, text)])
    assert found == [*opening(draft), *encode(draft, text)]


def test_special_tokens_become_each_other_or_are_spelled_out() -> None:
    target, draft = byte_level(400, PROSE, "<|end|>"), byte_level(300, CODE, "<eos>")
    for one, names in ((target, ["<turn>", "<think>"]), (draft, ["<turn>", "<|end|>"])):
        one.add_special_tokens({"additional_special_tokens": names})
    retokenizer = retokenizer_of(target, draft)
    number = {name: n for name, n in draft.get_vocab().items() if name.startswith("<")}
    found = retokenizer.ids(0, target.encode("<turn>the dog<|end|><think>"))
    assert found is not None
    assert found[0] == number["<turn>"]
    # The end of text is the draft's, though it has another token that is written like the target's.
    assert number["<eos>"] in found
    assert number["<|end|>"] not in found
    assert draft.decode(found) == "<turn>the dog<eos><think>"
    # What a text merely says is not a special token.
    written = target.backend_tokenizer
    written.encode_special_tokens = True
    said = retokenizer.ids(1, written.encode("<turn>").ids)
    written.encode_special_tokens = False
    assert said is not None
    assert number["<turn>"] not in said
    assert draft.decode(said) == "<turn>"


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2), texts, st.booleans()), max_size=8))
def test_what_it_has_seen_before_does_not_matter(history: list[tuple[int, str, bool]]) -> None:
    used = retokenizer_of(TOKENIZERS["marks"], TOKENIZERS["bytes"])
    for request, text, released in history:
        tokens = encode("marks", text)
        fresh = retokenizer_of(TOKENIZERS["marks"], TOKENIZERS["bytes"])
        assert used.ids(request, tokens) == fresh.ids(request, tokens)
        if released:
            used.release(request)
            assert request not in used._texts
