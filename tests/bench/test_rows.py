"""Rows come back from a file as they were, with the keys that serving engines use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forerun.bench.pairs import ROWS, MeasuredPair
from forerun.measure.ledger import Ledger
from tests.helpers.bench_rows import failed_row, made_row


def test_rows_come_back(tmp_path: Path) -> None:
    made = [made_row("a", n, 1.5) for n in range(3)] + [failed_row("a", 9, "it broke")]
    with Ledger(tmp_path / "rows.jsonl", ROWS, {"model": "m"}) as ledger:
        ledger.append(made)
    assert list(ROWS.read(tmp_path / "rows.jsonl")) == made


def test_serving_keys_count_the_same_rounds() -> None:
    row = made_row("a", 0, 1.5)
    assert row.stats is not None
    content: dict[str, Any] = json.loads(json.dumps(row.as_dict()))
    assert content["spec_decode_num_drafts"] == row.stats.num_drafts
    assert content["spec_decode_draft_tokens"] == row.stats.num_draft_tokens
    assert content["spec_decode_accepted_tokens"] == row.stats.num_accepted_tokens
    assert content["spec_decode_acceptance_rate"] == pytest.approx(100 * 7 / 9)
    assert content["spec_decode_acceptance_length"] == pytest.approx(1 + 7 / 3)
    rates = content["spec_decode_per_position_acceptance_rates"]
    assert rates == pytest.approx([1, 2 / 3, 2 / 3])
    assert MeasuredPair.from_dict(content) == row
