"""The index of a corpus is made once and kept by the content of its texts."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from forerun.contracts import DrafterSetup
from forerun.drafters.lookup import corpus_cache as module
from forerun.drafters.lookup.corpus import Corpus
from forerun.drafters.lookup.corpus_cache import open_corpus
from forerun.errors import ConfigError
from forerun.files import CACHE_VARIABLE
from forerun.testing import ToyModel

VOCAB = 11


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "corpora"


class Encoder:
    """Counts the texts that it makes tokens of."""

    def __init__(self, size: int = VOCAB) -> None:
        self.size, self.texts = size, 0

    def __call__(self, text: str) -> list[int]:
        self.texts += 1
        return [ord(letter) % self.size for letter in text]


def open_with(encode: Any, *paths: Path, tokenizer: str | None = "one") -> Corpus | None:
    def no_model() -> Any:
        raise AssertionError("no draft model is needed")

    options = {"corpus": tuple(map(str, paths))}
    setup = DrafterSetup(
        ToyModel(VOCAB), 1, 64, options, no_model, encode=encode, tokenizer_id=lambda: tokenizer
    )
    return open_corpus(setup)


def chain(corpus: Corpus | None, text: str) -> list[int]:
    assert corpus is not None
    return corpus.chain(corpus.match(Encoder()(text))[0], 9, frozenset())


def test_the_second_start_reads_what_the_first_kept(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefgh")
    encode = Encoder()
    first = open_with(encode, tmp_path / "a.txt")
    again = open_with(encode, tmp_path / "a.txt")
    assert encode.texts == 1
    assert chain(first, "abc") == chain(again, "abc") == Encoder()("defgh")
    # The content counts, not its name.
    (tmp_path / "b.txt").write_text("abcdefgh")
    open_with(encode, tmp_path / "b.txt")
    assert encode.texts == 1
    assert len(list(folder.iterdir())) == 1


def test_another_content_or_tokenizer_is_indexed_anew(tmp_path: Path, folder: Path) -> None:
    path, encode = tmp_path / "a.txt", Encoder()
    path.write_text("abcdefgh")
    open_with(encode, path)
    path.write_text("abcdhgfe")
    assert chain(open_with(encode, path), "abc") == Encoder()("dhgfe")
    open_with(encode, path, tokenizer="another")
    assert (encode.texts, len(list(folder.iterdir()))) == (3, 3)
    # A tokenizer that is not known again is asked at every start.
    open_with(encode, path, tokenizer=None)
    open_with(encode, path, tokenizer=None)
    assert (encode.texts, len(list(folder.iterdir()))) == (5, 3)


@pytest.mark.parametrize("damage", ["cut", "empty", "changed", "other"])
def test_a_broken_file_is_written_anew(
    tmp_path: Path, folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, encode = tmp_path / "a.txt", Encoder()
    path.write_text("abcdefgh")
    open_with(encode, path)
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    broken = {
        "cut": whole[:-3],
        "empty": b"",
        "changed": whole[:-1] + bytes([whole[-1] ^ 1]),
        "other": b"no index at all",
    }
    kept.write_bytes(broken[damage])
    with caplog.at_level(logging.WARNING):
        assert chain(open_with(encode, path), "abc") == Encoder()("defgh")
    assert "is indexed anew" in caplog.text
    assert encode.texts == 2
    assert kept.read_bytes() == whole


def test_a_folder_that_takes_nothing_is_named(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.parent.mkdir()
    folder.write_text("a file where the folder should be")
    (tmp_path / "a.txt").write_text("abcdefgh")
    with caplog.at_level(logging.WARNING):
        assert chain(open_with(Encoder(), tmp_path / "a.txt"), "abc") == Encoder()("defgh")
    assert "cannot be kept" in caplog.text


def test_what_was_not_used_for_longest_is_removed(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, encode = tmp_path / "a.txt", Encoder()
    kept: dict[str, Path] = {}
    for number, text in enumerate(("first text", "other text", "third text")):
        path.write_text(text)
        open_with(encode, path)
        (new,) = set(folder.iterdir()) - set(kept.values())
        kept[text] = new
        os.utime(new, (number, number))
    path.write_text("first text")
    open_with(encode, path)
    size = kept["first text"].stat().st_size
    monkeypatch.setattr(module, "MOST_KEPT", 2 * size + size // 2)
    path.write_text("a new text")
    open_with(encode, path)
    assert kept["first text"].exists()
    assert not kept["other text"].exists()
    assert not kept["third text"].exists()


def test_what_was_left_out_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_text("abcdefgh")
    (tmp_path / "b.bin").write_bytes(b"\0")
    module._note.cache_clear()
    with caplog.at_level(logging.WARNING):
        open_with(Encoder(), tmp_path)
        open_with(Encoder(), tmp_path)
    assert caplog.text.count("corpus: left out: 1 file (1 binary)") == 1


def test_texts_need_the_targets_tokenizer(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefgh")
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        open_with(None, tmp_path)
    with pytest.raises(ConfigError, match="has 11; give the target's own"):
        open_with(Encoder(101), tmp_path)
    assert open_with(None) is None
