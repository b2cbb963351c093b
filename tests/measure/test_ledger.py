"""A ledger is whole whatever ends a run: a full disk, a kill, another run."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forerun.errors import TrainingError
from forerun.measure.ledger import Format, Ledger

HEADER = {"model": "toy", "temperature": 1.0, "layers": (1, 2)}


@dataclass(frozen=True)
class Record:
    name: str
    value: int = 0
    more: bool = False


FORMAT = Format("toys", 3, "make toys", TrainingError, vars, lambda content: Record(**content))


def record(value: int, more: bool = False) -> Record:
    return Record("é\udcff", value, more)


def write(path: Path, *groups: list[Record]) -> list[Record]:
    """Add records, and return those that were there before."""
    there: list[Record] = []
    with Ledger(path, FORMAT, HEADER, there.append) as ledger:
        for group in groups:
            ledger.append(group)
    return there


def test_records_come_back(tmp_path: Path) -> None:
    path = tmp_path / "toys.jsonl"
    two = [record(1, more=True), record(2)]
    assert write(path, [record(0)], two) == []
    assert write(path, [record(5)]) == [record(0), *two]
    assert list(FORMAT.read(path)) == [record(0), *two, record(5)]
    assert FORMAT.read_header(path) == {"model": "toy", "temperature": 1.0, "layers": [1, 2]}


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_half_a_line_is_dropped(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "toys.jsonl"
    write(path, [record(0)])
    whole = path.read_bytes()
    write(path, [record(10**250)])
    path.write_bytes(path.read_bytes()[: len(whole) + cut])
    assert list(FORMAT.read(path)) == [record(0)]
    assert write(path) == [record(0)]
    assert path.read_bytes() == whole


def test_half_a_group_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "toys.jsonl"
    write(path, [record(0)], [record(1, more=True)])
    assert list(FORMAT.read(path)) == [record(0)]
    assert write(path, [record(2)]) == [record(0)]
    assert list(FORMAT.read(path)) == [record(0), record(2)]


def test_half_a_header_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "toys.jsonl"
    write(path)
    whole = path.read_bytes()
    for content in (b"", whole[:9]):
        path.write_bytes(content)
        write(path)
        assert path.read_bytes() == whole


def test_a_full_disk_leaves_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "toys.jsonl"
    with Ledger(path, FORMAT, HEADER) as ledger:
        ledger.append([record(0)])
        whole, disk = path.read_bytes(), Full(ledger._file)
        ledger._file = disk  # type: ignore[assignment]
        with pytest.raises(
            TrainingError, match="takes no more: no space left on device; what is there"
        ):
            ledger.append([record(1, more=True), record(2)])
        assert path.read_bytes() == whole
        disk.room = 10**6
        ledger.append([record(1)])
    assert list(FORMAT.read(path)) == [record(0), record(1)]


class Full:
    """A file on a disk that has room for a few bytes more."""

    def __init__(self, file: Any) -> None:
        self.file, self.room = file, 50

    def write(self, content: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written: int = self.file.write(content[: self.room])
        self.room -= written
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "toys.jsonl"
    write(path, [record(0)])
    before = path.read_bytes()
    with pytest.raises(TrainingError, match=r"was made with temperature 1.0, not 0.5"):
        Ledger(path, FORMAT, {**HEADER, "temperature": 0.5})
    with pytest.raises(TrainingError, match=r"was made with layers \[1, 2\], not None"):
        Ledger(path, FORMAT, {"model": "toy", "temperature": 1.0})
    for content in (b'{"question": "mine"}\n', b"[]\n", b"\xff\n", b"no line"):
        path.write_bytes(content)
        with pytest.raises(TrainingError, match="is not a file of `make toys`; name another"):
            Ledger(path, FORMAT, HEADER)
        assert path.read_bytes() == content
    path.write_bytes(before.replace(b'"toys":3', b'"toys":2'))
    with pytest.raises(TrainingError, match="has version 2 of its format, but `make toys` writes"):
        Ledger(path, FORMAT, HEADER)


@pytest.mark.parametrize("line", ['{"value": 1}', "[]", "7", '{"name": "a", "colour": 1}', "{"])
def test_what_is_no_record_is_refused_by_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "toys.jsonl"
    write(path, [record(0)])
    with path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(TrainingError, match="line 3"):
        list(FORMAT.read(path))
    with pytest.raises(TrainingError, match="line 3"):
        Ledger(path, FORMAT, HEADER)


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "toys.jsonl"
    with Ledger(path, FORMAT, HEADER), pytest.raises(TrainingError, match="another run is writing"):
        Ledger(path, FORMAT, HEADER)
    write(path, [record(0)])
    # A ledger that is not used any more lets go of its file.
    Ledger(path, FORMAT, HEADER).append([record(1)])
    assert write(path) == [record(0), record(1)]


@pytest.mark.parametrize("name", ["", "absent/toys.jsonl", "x" * 300, "a\0b"])
def test_files_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(TrainingError, match="cannot be written"):
        Ledger(f"{tmp_path}/{name}", FORMAT, HEADER)
    with pytest.raises(TrainingError, match="cannot be read"):
        FORMAT.read_header(f"{tmp_path}/absent.jsonl")
