"""Questions are read from every common kind of file, and what is wrong with one is said by line."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import PromptError
from forerun.measure.questions import Question, in_turns, read_questions


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
    assert read_questions([path]) == [
        Question(("Write.", "Again."), "writing", "set"),
        Question(("How many?",), "set", "set"),
        Question(("def f():\n",), "set", "set"),
        Question(("one", "two"), "chat", "set", "Be brief."),
        Question(("a text",), "set", "set"),
    ]


def test_plain_lines_and_packed_files(tmp_path: Path) -> None:
    path = tmp_path / "asked.txt.gz"
    path.write_bytes(gzip.compress(b'first\n\n  {"question": "as it is"}  \n'))
    assert [q.turns[0] for q in read_questions([path])] == ["first", '{"question": "as it is"}']
    assert {q.source for q in read_questions([path])} == {"asked"}


def test_what_the_command_writes_can_be_read_again(tmp_path: Path) -> None:
    path = lines(tmp_path / "made.jsonl", {"forerun_data": 1}, {"prompt": "w1 w2", "category": "c"})
    assert read_questions([path]) == [Question(("w1 w2",), "c", "made")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"question": ', "line 2 is not JSON"),
        ('{"answer": "7"}', "line 2 holds no question; give one under any of turns"),
        ('{"turns": []}', "holds no question"),
        ('{"turns": ["x", 7]}', "holds no question"),
        ("[1]", "line 2 is not an object"),
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
        read_questions([path])


def test_files_that_hold_nothing(tmp_path: Path) -> None:
    empty, torn = tmp_path / "empty.jsonl", tmp_path / "torn.jsonl.gz"
    empty.write_text("\n \n")
    torn.write_bytes(gzip.compress(b'{"question": "x"}\n' * 99)[:-12])
    with pytest.raises(PromptError, match="is empty"):
        read_questions([empty])
    with pytest.raises(PromptError, match="not a whole gzip file"):
        read_questions([torn])
    with pytest.raises(PromptError, match="no such file"):
        read_questions([tmp_path / "absent.jsonl"])


def json_lines(*content: Any) -> str:
    return "".join(json.dumps(line) + "\n" for line in content)


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "common.jsonl").write_text(
        json_lines(
            {"question_id": 7, "category": "maths", "turns": ["one", "two"]},
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "a"},
                ]
            },
            {"prompt": "p", "prediction": "expected"},
        )
    )
    human = {
        "task_id": "HumanEval/0",
        "prompt": "def f():",
        "canonical_solution": "pass",
        "test": "",
    }
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(json_lines(human).encode()))
    (tmp_path / "a text.md").write_text("A prompt\nof two lines.")
    questions = {question.turns: question for question in read_questions([tmp_path])}
    assert questions["one", "two"].question_id == "7"
    assert questions["one", "two"].category == "maths"
    assert questions[("a",)].system == "Be brief."
    assert questions[("p",)].prediction == "expected"
    assert questions[("def f():",)].question_id == "HumanEval/0"
    assert questions[("A prompt\nof two lines.",)].category == tmp_path.name
    assert len(questions) == 5
    by_file = read_questions([tmp_path], by_file=True)
    assert {q.category for q in by_file} == {"common", "HumanEval", tmp_path.name}
    alone = tmp_path / "prompts.txt"
    alone.write_text("first\n\nsecond\n")
    assert [q.turns[0] for q in read_questions([alone])] == ["first", "second"]


@pytest.mark.parametrize(
    "bad",
    ["nonsense", "[]", "{}", '{"turns": []}', '{"prompt": " "}', '{"prompt": 7}', '{"p": "x"}'],
)
def test_bad_lines_are_named_or_counted(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json_lines({"prompt": "good"}) + bad + "\n" + json_lines({"prompt": "too"}))
    with pytest.raises(PromptError, match=r"mine\.jsonl, line 2"):
        read_questions([path])
    errors: list[PromptError] = []
    assert [q.turns[0] for q in read_questions([path], errors.append)] == ["good", "too"]
    assert len(errors) == 1


def test_nothing_to_run_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PromptError, match="empty"):
        read_questions([tmp_path / "empty.jsonl"])
    with pytest.raises(PromptError, match="holds no prompt"):
        read_questions([tmp_path / "folder"])
    with pytest.raises(PromptError, match="cannot be read"):
        read_questions([tmp_path / "absent.jsonl"])
    all_bad = tmp_path / "bad.jsonl"
    all_bad.write_text("x\n")
    with pytest.raises(PromptError, match="empty"):
        read_questions([all_bad], lambda _: None)


@given(st.lists(st.sampled_from("abc"), max_size=30), st.none() | st.integers(1, 4))
def test_any_beginning_holds_the_categories_alike(names: list[str], limit: int | None) -> None:
    questions = [
        Question((f"{i}",), name, "file", question_id="same") for i, name in enumerate(names)
    ]
    turns = in_turns(questions, limit)
    whole = Counter(names)
    assert Counter(q.category for q in turns) == {
        name: count if limit is None else min(count, limit) for name, count in whole.items()
    }
    assert len({(q.category, q.question_id) for q in turns}) == len(turns)
    for end in range(len(turns)):
        seen = Counter(q.category for q in turns[:end])
        left = Counter(q.category for q in turns[end:])
        # A category is behind another only where it has no more.
        assert all(seen[a] >= seen[b] - 1 for a in left for b in whole)
