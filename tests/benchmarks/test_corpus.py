"""What a corpus gains is measured beside the same without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import forerun
from benchmarks.cold_homes import empty_home
from benchmarks.corpus import answered_before, engines, measure, table
from forerun.bench.runs import EncodedPrompt


@pytest.mark.zoo
def test_answers_given_before_are_the_corpus(tmp_path: Path) -> None:
    with empty_home(), forerun.load("zoo", False) as plain:
        assert plain.tokenizer is not None
        texts = ("def add(first, second):\n", "class Queue:\n")
        prompts = [
            EncodedPrompt(text, text[:3], tuple(plain.tokenizer.encode(text))) for text in texts
        ]
        path = answered_before(plain, prompts, 8, tmp_path / "answers.jsonl")
        answers = [json.loads(line)["answer"] for line in path.read_text().splitlines()]
        assert len(answers) == 4
        with engines("zoo", [str(path)]) as both:
            assert [one.config.method for one in both] == ["cascade", "cascade"]
            rows = list(measure(both, prompts, 1.0, 12))
    assert [row.category for row in rows] == ["def", "cla"]
    assert all(row.identical for row in rows)
    assert "| all (2) |" in table(rows)
