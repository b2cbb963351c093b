"""Files of rows: whole lines or none, whatever happens, and only what compares is gone on with."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from forerun.bench.rows import Row
from forerun.bench.rows_file import RowsFile
from forerun.bench.serving_keys import acceptance_histogram
from forerun.errors import ConfigError
from tests.helpers.bench_rows import failed_row, made_row

HEADER = {"model": "m", "machine": "c"}
ROWS = [made_row("a", n, 1.5) for n in range(3)] + [failed_row("a", 9, "it broke")]


def write(path: Path) -> None:
    file = RowsFile(path, HEADER, resume=False)
    assert all(file.append(row) for row in ROWS)


def test_rows_come_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write(path)
    assert RowsFile(path, HEADER, resume=True).rows == ROWS
    with pytest.raises(ConfigError, match="--resume"):
        RowsFile(path, HEADER, resume=False)


@pytest.mark.parametrize("lost", [1, 30, 200])
def test_the_half_of_a_line_is_left_out(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "rows.jsonl"
    write(path)
    path.write_bytes(path.read_bytes()[:-lost])
    file = RowsFile(path, HEADER, resume=True)
    kept = file.rows
    assert kept == ROWS[: len(kept)]
    assert len(kept) >= 2
    assert all(file.append(row) for row in ROWS[len(kept) :])
    assert RowsFile(path, HEADER, resume=True).rows == ROWS


def test_what_does_not_compare_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write(path)
    with pytest.raises(ConfigError, match="machine 'c', and this run has 'd'"):
        RowsFile(path, {**HEADER, "machine": "d"}, resume=True)
    lines = path.read_text().splitlines()
    for bad in ("nonsense", "{}", "[]", '{"key": 1}'):
        path.write_text("\n".join([*lines[:2], bad, *lines[3:]]) + "\n")
        with pytest.raises(ConfigError, match="line 3"):
            RowsFile(path, HEADER, resume=True)
    path.write_text('{"something": "else"}\n')
    with pytest.raises(ConfigError, match="no rows"):
        RowsFile(path, HEADER, resume=True)
    with pytest.raises(ConfigError, match="cannot be written"):
        RowsFile(tmp_path / "absent" / "rows.jsonl", HEADER, resume=True)


def test_a_full_disk_costs_only_the_rows_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    file = RowsFile(path, HEADER, resume=False)
    assert file.append(ROWS[0])

    def half(line: bytes) -> None:
        with path.open("ab") as other:
            other.write(line[: len(line) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file, "_put", half)
    assert not file.append(ROWS[1])
    assert "no space left" in file.problem
    assert not file.append(ROWS[2])
    assert RowsFile(path, HEADER, resume=True).rows == ROWS[:1]


def test_serving_keys_count_the_same_rounds() -> None:
    row = ROWS[0]
    assert row.stats is not None
    content: dict[str, Any] = json.loads(row.as_json())
    histogram = acceptance_histogram(row.stats)
    assert sum(histogram.values()) == row.stats.num_drafts == content["spec_decode_num_drafts"]
    accepted = sum(int(length) * rounds for length, rounds in histogram.items())
    assert accepted == row.stats.num_accepted_tokens == content["spec_decode_accepted_tokens"]
    assert content["spec_decode_acceptance_rate"] == pytest.approx(100 * 7 / 9)
    assert content["spec_decode_acceptance_length"] == pytest.approx(1 + 7 / 3)
    rates = content["spec_decode_per_position_acceptance_rates"]
    assert rates == pytest.approx([1, 2 / 3, 2 / 3])
    assert content["speculative_decoding"]["acceptance_histogram"] == histogram
    assert Row.from_dict(content) == row
