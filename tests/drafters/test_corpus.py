"""Which files and folders make a corpus, and what of them is left out."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from forerun.drafters import corpus as module
from forerun.drafters.corpus import Texts
from forerun.errors import ConfigError


def test_folders_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.py", "sub/deep/d.md", "another/e"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    found = Texts([str(tmp_path)])
    assert list(found) == ["a.txt", "b.txt", "another/e", "sub/c.py", "sub/deep/d.md"]
    assert found.left_out == ""


def test_what_is_hidden_empty_or_there_already_is_left_out(tmp_path: Path) -> None:
    for name, text in {
        ".git/config": "hidden",
        ".env": "secret",
        "empty": "",
        "one": "a text",
        "two": "a text",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert list(Texts([str(tmp_path), str(tmp_path / "one")])) == ["a text"]
    # A file that is named is meant.
    assert list(Texts([str(tmp_path / ".env")])) == ["secret"]


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    found = Texts([str(tmp_path)])
    assert list(found) == ["a text"]
    assert found.left_out == "2 files that are not text, too long or unreadable"
    # The folder that is named may be a link.
    assert list(Texts([str(tmp_path / "again")])) == ["a text"]


def test_files_in_folders_that_are_no_text_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "b.bin").write_bytes(b"\0" * 200)
    (tmp_path / "c.txt").write_bytes("naïve".encode("latin-1"))
    (tmp_path / "d.txt").write_text("x" * 101)
    (tmp_path / "e.gz").write_bytes(b"no gzip")
    (tmp_path / "f.txt.gz").write_bytes(gzip.compress(b"another"))
    os.mkfifo(tmp_path / "g")
    found = Texts([str(tmp_path)])
    assert list(found) == ["a text", "another"]
    assert found.left_out == "4 files that are not text, too long or unreadable"


def test_what_is_too_much_is_left_out_from_there_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        (tmp_path / name).write_text(name * 40)
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    found = Texts([str(tmp_path)])
    assert list(found) == ["a" * 40, "b" * 40]
    assert found.left_out.startswith(f"{tmp_path}/c and all after it, as 100 B")
    monkeypatch.setattr(module, "MOST_FILES", 1)
    assert list(Texts([str(tmp_path)])) == ["a" * 40]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe", "not UTF-8"),
        (b"a\0b", "is a binary file"),
        (b"x" * 101, "is longer than 100 B"),
    ],
)
def test_a_named_file_must_be_text(
    tmp_path: Path, content: bytes | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    path = tmp_path / "named"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        Texts([str(path)])


def test_folders_without_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is empty; give"):
        Texts([str(tmp_path)])
    (tmp_path / "a.bin").write_bytes(b"\0")
    with pytest.raises(ConfigError, match=r"is empty \(left out: 1 file that is no"):
        Texts([str(tmp_path)])


def test_answers_are_taken_out_of_json_lines(tmp_path: Path) -> None:
    lines = [
        {"forerun_data": 1},
        {"prompt": "a question", "answer": "an answer"},
        {"text": "a text"},
        {
            "messages": [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": "hi"},
            ]
        },
        {"answer": 3},
        "a string",
        {"answer": "half \ud800"},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n\n".join(map(json.dumps, lines)))
    assert list(Texts([str(path)])) == ["an answer", "a text", "hello", "hi", "half ?"]
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(Texts([str(packed)])) == list(Texts([str(path)]))


@pytest.mark.parametrize("text", ["no JSON\n{}", '{"other": 1}', "[" * 100_000])
def test_other_lines_are_taken_as_they_are(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    assert list(Texts([str(path)])) == [text]
