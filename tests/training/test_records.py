"""Records of answers come back as they were, and their lines hold nothing that goes without saying."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forerun.measure.ledger import Ledger
from forerun.training.conversations import RECORDS, Record


def record(item: int, **own: Any) -> Record:
    made = {"source": "s", "category": "c", "prompt_ids": [1, 2], "answer_ids": [3, 0], "seed": 7}
    drawn = {"temperature": 0.0, "finish": "stop", "prompt": "é", "answer": "w"}
    return Record(**{**made, **drawn, "item": item, **own})


def test_records_come_back(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    made = [record(0), record(1, more=True), record(1, turn=1), record(5, skipped={"empty": 3})]
    with Ledger(path, RECORDS, {"model": "toy"}) as ledger:
        ledger.append(made)
    assert list(RECORDS.read(path)) == made
    header, line, *_ = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(header) == {"forerun_data": 1, "model": "toy"}
    assert list(json.loads(line)) == [
        *("source", "category", "prompt_ids", "answer_ids", "temperature", "finish", "seed"),
        *("prompt", "answer", "item"),
    ]
