"""Questions of every format, in turns by category, and what is wrong with the others."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.bench.workloads import BUILT_IN, built_in, in_turns, read_workload
from forerun.errors import PromptError, UnknownNameError
from forerun.training.questions import Question


def lines(*content: Any) -> str:
    return "".join(json.dumps(line) + "\n" for line in content)


def test_every_format_is_read(tmp_path: Path) -> None:
    (tmp_path / "common.jsonl").write_text(
        lines(
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
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(lines(human).encode()))
    (tmp_path / "a text.md").write_text("A prompt\nof two lines.")
    questions = {question.turns: question for question in read_workload([tmp_path])}
    assert questions["one", "two"].question_id == "7"
    assert questions["one", "two"].category == "maths"
    assert questions[("a",)].system == "Be brief."
    assert questions[("p",)].prediction == "expected"
    assert questions[("def f():",)].question_id == "HumanEval/0"
    assert questions[("A prompt\nof two lines.",)].category == tmp_path.name
    assert len(questions) == 5
    by_file = read_workload([tmp_path], by_file=True)
    assert {q.category for q in by_file} == {"common", "HumanEval", tmp_path.name}
    alone = tmp_path / "prompts.txt"
    alone.write_text("first\n\nsecond\n")
    assert [q.turns[0] for q in read_workload([alone])] == ["first", "second"]


@pytest.mark.parametrize(
    "bad",
    ["nonsense", "[]", "{}", '{"turns": []}', '{"prompt": " "}', '{"prompt": 7}', '{"p": "x"}'],
)
def test_bad_lines_are_named_or_counted(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(lines({"prompt": "good"}) + bad + "\n" + lines({"prompt": "too"}))
    with pytest.raises(PromptError, match=r"mine\.jsonl, line 2"):
        read_workload([path])
    errors: list[PromptError] = []
    assert [q.turns[0] for q in read_workload([path], errors.append)] == ["good", "too"]
    assert len(errors) == 1


def test_nothing_to_run_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PromptError, match="empty"):
        read_workload([tmp_path / "empty.jsonl"])
    with pytest.raises(PromptError, match="holds no prompt"):
        read_workload([tmp_path / "folder"])
    with pytest.raises(PromptError, match="cannot be read"):
        read_workload([tmp_path / "absent.jsonl"])
    all_bad = tmp_path / "bad.jsonl"
    all_bad.write_text("x\n")
    with pytest.raises(PromptError, match="empty"):
        read_workload([all_bad], lambda _: None)


def test_what_is_built_in() -> None:
    counts = Counter(question.category for question in built_in())
    assert set(counts) == set(BUILT_IN)
    assert min(counts.values()) >= 6
    assert {q.category for q in built_in(["json", "xml"])} == {"json", "xml"}
    texts = [question.text for question in built_in()]
    assert len(set(texts)) == len(texts)
    with pytest.raises(UnknownNameError, match="summary"):
        built_in(["sumary"])


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
