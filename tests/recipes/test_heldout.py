"""Prompts from held-out modules, and judging what follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.measure.questions import read_questions
from recipes.corpus import Module
from recipes.heldout import (
    cut_prompts,
    parses_but_for_its_end,
    save_prompts,
)


def test_prompts_begin_at_definitions_and_spread_over_modules(tmp_path: Path) -> None:
    body = "".join(f"    value_{number} = compute({number})\n" for number in range(60))
    text = "".join(f"def function_{number}():\n{body}\n" for number in range(10))
    prompts = cut_prompts([Module("a.py", text), Module("b.py", text)], 6)
    assert [prompt.path for prompt in prompts].count("a.py") == 3
    assert all(prompt.prompt.startswith("def function_") for prompt in prompts)
    assert all(prompt.prompt.endswith("\n") for prompt in prompts)
    assert prompts == cut_prompts([Module("a.py", text), Module("b.py", text)], 6)
    save_prompts(tmp_path / "prompts.jsonl", prompts)
    read = read_questions([tmp_path / "prompts.jsonl"])
    assert [(q.question_id, q.opening) for q in read] == [(p.prompt_id, p.prompt) for p in prompts]


@pytest.mark.parametrize(
    "source",
    [
        "",
        "x = 1\n",
        "x = 1\ny = [1,\n",
        "def f():\n    return 1\n\ndef g(a,\n      b",
        "x = 1\nif x:\n",
        "x = 1\nif x:\n    y = 2\nelse:\n",
        "@decorated\n@twice\ndef f(\n",
        "x = 'unfinished",
    ],
)
def test_an_unfinished_last_statement_is_cut_off(source: str) -> None:
    assert parses_but_for_its_end(source)


@pytest.mark.parametrize(
    "source",
    ["x = = 1\ny = 2\n", "def f(:\n    pass\nx = 1\n", "return )\nx\n", "if x:\ny = 1\nz = 2\n"],
)
def test_mistakes_before_the_end_are_found(source: str) -> None:
    assert not parses_but_for_its_end(source)
