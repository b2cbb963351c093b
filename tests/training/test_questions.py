"""Questions are read from every common kind of file, and what is wrong with one is said by line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from forerun.errors import PromptError
from forerun.training.questions import Question, read_questions


def lines(path: Path, *contents: Any) -> Path:
    path.write_text("".join(json.dumps(content) + "\n" for content in contents))
    return path


def test_every_kind_of_line(tmp_path: Path) -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "not the target's own"},
        {"role": "user", "content": [{"type": "text", "text": "two"}]},
    ]
    path = lines(
        tmp_path / "set.jsonl",
        {"question_id": 1, "category": "writing", "turns": ["Write.", "Again."]},
        {"question": "How many?", "answer": "#### 7"},
        {"task_id": "x/0", "prompt": "def f():\n"},
        {"messages": chat, "category": "chat"},
        "a text",
    )
    assert read_questions(path) == [
        Question(("Write.", "Again."), "writing", "set"),
        Question(("How many?",), "set", "set"),
        Question(("def f():\n",), "set", "set"),
        Question(("one", "two"), "chat", "set", "Be brief."),
        Question(("a text",), "set", "set"),
    ]


def test_plain_lines_and_packed_files(tmp_path: Path) -> None:
    path = tmp_path / "asked.txt.gz"
    path.write_bytes(gzip.compress(b'first\n\n  {"question": "as it is"}  \n'))
    assert [q.turns[0] for q in read_questions(path)] == ["first", '{"question": "as it is"}']
    assert {q.source for q in read_questions(path)} == {"asked"}


def test_what_the_command_writes_can_be_read_again(tmp_path: Path) -> None:
    path = lines(tmp_path / "made.jsonl", {"forerun_data": 1}, {"prompt": "w1 w2", "category": "c"})
    assert read_questions(path) == [Question(("w1 w2",), "c", "made")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"question": ', "line 2 is not JSON"),
        ('{"answer": "7"}', "line 2 holds no question; give one under any of turns"),
        ('{"turns": []}', "holds no question"),
        ('{"turns": ["x", 7]}', "holds no question"),
        ("[1]", "line 2 is no object"),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "holds the role 'tool'"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "no message of a user"),
        ('{"messages": "hello"}', "line 2: messages are"),
        ('{"question": "half \\ud800"}', "line 2 is not valid UTF-8"),
    ],
)
def test_what_is_wrong_is_said_by_line(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f'{{"question": "fine"}}\n{line}\n')
    with pytest.raises(PromptError, match=said):
        read_questions(path)


def test_files_that_hold_nothing(tmp_path: Path) -> None:
    empty, torn = tmp_path / "empty.jsonl", tmp_path / "torn.jsonl.gz"
    empty.write_text("\n \n")
    torn.write_bytes(gzip.compress(b'{"question": "x"}\n' * 99)[:-12])
    with pytest.raises(PromptError, match="is empty"):
        read_questions(empty)
    with pytest.raises(PromptError, match="not a whole gzip file"):
        read_questions(torn)
    with pytest.raises(PromptError, match="no such file"):
        read_questions(tmp_path / "absent.jsonl")
