"""What tells tokenizers apart."""

from __future__ import annotations

from forerun.models.tokenizer import tokenizer_id
from tests.helpers.made_tokenizers import PROSE, byte_level


def test_an_id_is_that_of_the_content() -> None:
    first, same = (byte_level(300, PROSE, "<end>") for _ in range(2))
    assert tokenizer_id(first) == tokenizer_id(same)
    assert tokenizer_id(first) != tokenizer_id(byte_level(290, PROSE, "<end>"))
    same.add_tokens(["forerun"])
    assert tokenizer_id(first) != tokenizer_id(same)


def test_others_have_none() -> None:
    assert tokenizer_id(None) is None
    assert tokenizer_id(object()) is None
