"""The comparison of policy auto with the best fixed length."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.near_the_best import cells, found_in, main, overall
from forerun.bench.pairs import PLAIN, ROWS, MeasuredPair, PairKey
from forerun.bench.runs import Side
from forerun.measure.ledger import Ledger


def row(setting: str, prompt: int, speedup: float, category: str = "chat") -> MeasuredPair:
    side = Side(100, 1.0 / speedup, None, (), {})
    plain = Side(100, 1.0, None, (), {})
    return MeasuredPair(PairKey(setting, 0.0, 1, category, (str(prompt),)), "of it", side, plain)


MADE = [
    row(f"suffix, {name}", prompt, speedup)
    for prompt in range(4)
    for name, speedup in {"2 tokens": 1.25, "4 tokens": 0.8 + 0.1 * prompt, "auto": 1.2}.items()
]


def test_what_is_best_is_chosen_on_one_half_and_compared_on_the_other() -> None:
    made = cells(found_in(MADE))
    assert [cell.best for cell in made] == ["2 tokens"] * 2
    assert [cell.share for cell in made] == pytest.approx([0.96, 0.96])
    assert overall(found_in(MADE))["suffix, auto"] == pytest.approx(1.2)


def test_where_every_length_loses_plain_decoding_is_the_best() -> None:
    rows = [row("suffix, 2 tokens", n, 0.7) for n in range(4)]
    rows += [row("suffix, auto", n, 0.99) for n in range(4)]
    made = cells(found_in(rows))
    assert [(cell.best, cell.fixed) for cell in made] == [(PLAIN, 1.0)] * 2
    assert [cell.share for cell in made] == pytest.approx([0.99, 0.99])


def test_it_reads_what_bench_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    with Ledger(path, ROWS, {}) as ledger:
        ledger.append(MADE)
    main([str(path)])
    printed = capsys.readouterr().out
    assert "| suffix | chat | 0 | 1 | 2 tokens | 1.25 | 1.20 | 96.0% |" in printed
    assert "2 of 2 at 95 % or more" in printed
