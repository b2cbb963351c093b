"""The index of a corpus, from its files and the target's tokenizer."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from forerun.contracts import DrafterSetup
from forerun.drafters import corpus as module
from forerun.drafters.automaton import Match, SuffixAutomaton
from forerun.drafters.corpus import open_corpus
from forerun.errors import ConfigError
from forerun.testing import ToyModel

VOCAB = 11


class Encoder:
    """Counts the texts that it makes tokens of."""

    def __init__(self, size: int = VOCAB) -> None:
        self.size, self.texts = size, 0

    def __call__(self, text: str) -> list[int]:
        self.texts += 1
        return [ord(letter) % self.size for letter in text]


def open_with(encode: Any, *paths: Path) -> SuffixAutomaton | None:
    def no_model() -> Any:
        raise AssertionError("no draft model is needed")

    options = {"corpus": tuple(map(str, paths))}
    setup = DrafterSetup(ToyModel(VOCAB), 1, 64, options, no_model, encode=encode)
    return open_corpus(setup)


def test_texts_are_indexed_each_by_itself(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcd")
    (tmp_path / "b.txt").write_text("efgh")
    encode = Encoder()
    corpus = open_with(encode, tmp_path)
    assert corpus is not None
    assert (encode.texts, corpus.num_tokens) == (2, 8)

    def after(text: str) -> list[int]:
        state, _ = Match(corpus, encode(text)).longest()
        return corpus.chain(state, 9, frozenset())

    assert after("ab") == encode("cd")
    assert after("cd") != encode("efgh")


def test_what_was_left_out_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_text("abcdefgh")
    (tmp_path / "b.bin").write_bytes(b"\0")
    module._note.cache_clear()
    with caplog.at_level(logging.WARNING):
        open_with(Encoder(), tmp_path)
        open_with(Encoder(), tmp_path)
    assert caplog.text.count("corpus: left out: 1 file that is not text") == 1


def test_texts_need_the_targets_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefgh")
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        open_with(None, tmp_path)
    with pytest.raises(ConfigError, match="has 11; give the target's own"):
        open_with(Encoder(101), tmp_path)
    assert open_with(None) is None
