"""Shared tokens stand for the same bytes, and rows hold the draft's logits in the target's places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
)

from forerun.drafters.translation import SharedVocabulary, SpelledVocabulary, Translation
from forerun.errors import IncompatibleDraftError
from tests.helpers.made_tokenizers import (
    CODE,
    PROSE,
    TOKENIZERS,
    byte_level,
    decode,
    encode,
    fast,
    pairs,
    retokenizer_of,
    words,
)


def shared_by(target: Any, draft: Any, *sizes: int) -> SharedVocabulary:
    return SharedVocabulary(
        SpelledVocabulary(target), SpelledVocabulary(draft), *(sizes or (999, 999))
    )


@pairs
def test_shared_tokens_stand_for_the_same_text(target: str, draft: str) -> None:
    """Held against the tokenizers' own decoding, with a letter before: it may drop a first space."""

    def meanings(name: str) -> dict[int, str]:
        tokenizer, letter = TOKENIZERS[name], encode(name, "x")
        ordinary = set(range(len(tokenizer))) - set(tokenizer.all_special_ids)
        return {one: decode(name, [*letter, one])[1:] for one in ordinary}

    ours, theirs = meanings(target), meanings(draft)
    ends = TOKENIZERS[target].eos_token_id, TOKENIZERS[draft].eos_token_id
    found = list(shared_by(TOKENIZERS[target], TOKENIZERS[draft]).draft_id_of.items())
    assert ends in found
    found.remove(ends)
    assert len(found) > 100
    assert all(ours[one] == theirs[other] for one, other in found)
    assert len({one for one, _ in found}) == len({other for _, other in found}) == len(found)
    whole = {text for text in {*ours.values()} & {*theirs.values()} if "\ufffd" not in text}
    assert whole <= {ours[one] for one, _ in found}


def test_a_fallback_for_a_byte_stands_for_nothing_that_has_a_token() -> None:
    draft = shared_by(TOKENIZERS["bytes"], TOKENIZERS["marks"]).draft_id_of
    names = TOKENIZERS["marks"].get_vocab()
    [letter] = encode("bytes", "q")
    assert draft[letter] == names["q"] != names["<0x71>"]
    [newline] = encode("bytes", "\n")
    assert draft[newline] == names["<0x0A>"]


def test_added_tokens_that_are_not_special_are_text() -> None:
    target, draft = byte_level(300, PROSE, "<end>"), byte_level(310, CODE, "<end>")
    for one, more in ((target, ["   ", "<think>"]), (draft, ["<think>", "<tool>", "   "])):
        one.add_tokens(more)
    found = shared_by(target, draft).draft_id_of
    for name in ("   ", "<think>"):
        assert found[target.get_vocab()[name]] == draft.get_vocab()[name]
    ids = retokenizer_of(target, draft).ids(0, target.encode("the<think>   dog"))
    assert ids == draft.encode("the<think>   dog")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_hold_the_drafts_logits_in_the_targets_places(dtype: torch.dtype) -> None:
    target, draft = TOKENIZERS["bytes"], TOKENIZERS["more marks"]
    # The draft model lacks the last tokens of its tokenizer and has no use for some columns.
    shared = shared_by(target, draft, 450, len(draft) - 20)
    logits = torch.randn(3, len(draft) - 20, generator=torch.Generator().manual_seed(0)).to(dtype)
    rows = shared.to_target(logits)
    assert rows.shape == (3, 450)
    assert rows.dtype == dtype
    whole = shared_by(target, draft).draft_id_of
    found = [pair for pair in whole.items() if pair[1] < len(draft) - 20]
    assert len(found) == len(shared.target_ids) < len(whole)
    for one, other in found:
        assert shared.draft_id_of[one] == other
        assert torch.equal(rows[:, one], logits[:, other])
    assert int(rows.isinf().sum()) == 3 * (450 - len(found))


def test_a_vocabulary_is_wholly_in_itself() -> None:
    one = TOKENIZERS["bytes"]
    whole = shared_by(one, one, 400, 400)
    assert whole.sizes == (whole.num_ordinary,) * 2
    half = shared_by(one, one, len(one) // 2, 400)
    assert half.num_ordinary == pytest.approx(whole.num_ordinary / 2, rel=0.01)


WORD = "w{}".format
TOO_LITTLE: dict[str, Callable[[], tuple[Any, Any]]] = {
    "nothing in common": lambda: (TOKENIZERS["bytes"], words(["?", "bonjour", "monde"])),
    "23 of its 100": lambda: (
        words([*map(WORD, range(200))]),
        words([*map(WORD, range(177, 277))]),
    ),
    "19 of its 19 tokens": lambda: (
        words([*map(WORD, range(400))]),
        words([*map(WORD, range(19))]),
    ),
}


@pytest.mark.parametrize("what", TOO_LITTLE)
def test_too_little_in_common_is_refused_with_numbers(what: str) -> None:
    target, draft = TOO_LITTLE[what]()
    numbers = what if what[0].isdigit() else "0 of its 3 tokens are among the target's 315"
    with pytest.raises(IncompatibleDraftError, match=rf"some/draft .*{numbers}.*'ngram'"):
        Translation(target, draft, "some/draft", 1000, 1000)


@pairs
def test_enough_in_common_is_not(target: str, draft: str) -> None:
    shared_by(TOKENIZERS[target], TOKENIZERS[draft]).check("some/draft")


def test_just_enough_is_enough() -> None:
    for size, kept in ((200, range(175, 275)), (380, range(19))):
        pair = words([*map(WORD, range(size))]), words([*map(WORD, kept)])
        shared_by(*pair).check("some/draft")


def test_tokenizers_that_cannot_be_read_are_refused() -> None:
    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    pieces.decoder = decoders.WordPiece()
    with pytest.raises(IncompatibleDraftError, match=r"WordPiece .*'ngram'"):
        SpelledVocabulary(fast(pieces))
    with pytest.raises(IncompatibleDraftError, match=r"object .*tokenizer\.json"):
        SpelledVocabulary(object())
