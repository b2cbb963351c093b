"""Every command that takes questions takes the same files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from forerun.bench.request import BenchRequest
from forerun.bench.run import questions_of
from forerun.measure.questions import read_questions
from forerun.proof.request import ProveRequest, texts_of

KINDS = {
    "turns": {"turns": ["turns", "a second one"]},
    "messages": {"messages": [{"role": "user", "content": "messages"}]},
    "question": {"question": "question"},
    "prompt": {"prompt": "prompt", "prediction": "an answer"},
    "text": {"text": "text", "category": "named"},
    "string": "string",
}
READERS: dict[str, Callable[[list[str]], list[str]]] = {
    "bench": lambda paths: [q.turns[0] for q in questions_of(BenchRequest(prompts=tuple(paths)))],
    "prove": lambda paths: texts_of(ProveRequest(prompts=tuple(paths))),
    "train data": lambda paths: [q.turns[0] for q in read_questions(paths)],
}


@pytest.mark.parametrize("command", READERS)
def test_all_kinds_of_lines(command: str, tmp_path: Path) -> None:
    lines = "".join(json.dumps(line) + "\n" for line in KINDS.values())
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "plain.txt").write_text(" one line \n\nanother\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "lines.jsonl").write_text('"of a folder"\n')
    (folder / "whole.md").write_text("one\ntext\n")
    paths = [str(tmp_path / name) for name in ("packed.jsonl.gz", "plain.txt", "folder")]
    expected = {*KINDS, "one line", "another", "of a folder", "one\ntext\n"}
    assert sorted(READERS[command](paths)) == sorted(expected)
