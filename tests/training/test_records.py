"""A file of records is whole whatever ends a run: a full disk, a kill, another run."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from forerun.errors import TrainingError
from forerun.training.records import Record, RecordFile, read_header, read_records

HEADER = {"model": "toy", "temperature": 1.0}


def record(item: int, **own: Any) -> Record:
    made = {"source": "s", "category": "c", "prompt_ids": [1, 2], "answer_ids": [3, 0], "seed": 7}
    drawn = {"temperature": 0.0, "finish": "stop", "prompt": "é", "answer": "w"}
    return Record(**{**made, **drawn, "item": item, **own})


def write(path: Path, *conversations: list[Record]) -> list[Record]:
    """Add conversations, and return what was there before."""
    there: list[Record] = []
    with RecordFile(path, HEADER, there.append) as file:
        for conversation in conversations:
            file.add(conversation)
    return there


def test_records_come_back(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    two = [record(1, more=True), record(1, turn=1)]
    skipped = [record(5, skipped={"empty": 3})]
    assert write(path, [record(0)], two) == []
    assert write(path, skipped) == [record(0), *two]
    assert list(read_records(path)) == [record(0), *two, *skipped]
    assert read_header(path) == {"forerun_data": 1, **HEADER}
    lines = path.read_text(encoding="utf-8").splitlines()
    assert list(json.loads(lines[1])) == [
        *("source", "category", "prompt_ids", "answer_ids", "temperature", "finish", "seed"),
        *("prompt", "answer", "item"),
    ]


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_half_a_line_is_dropped(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "data.jsonl"
    write(path, [record(0)])
    whole = path.read_bytes()
    write(path, [record(1, answer_ids=list(range(99)))])
    path.write_bytes(path.read_bytes()[: len(whole) + cut])
    assert list(read_records(path)) == [record(0)]
    assert write(path) == [record(0)]
    assert path.read_bytes() == whole


def test_half_a_conversation_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    write(path, [record(0)], [record(1, more=True)])
    assert write(path, [record(2)]) == [record(0)]
    assert list(read_records(path)) == [record(0), record(2)]


def test_half_a_header_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    write(path)
    whole = path.read_bytes()
    for content in (b"", whole[:9]):
        path.write_bytes(content)
        write(path)
        assert path.read_bytes() == whole


def test_a_full_disk_leaves_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    with RecordFile(path, HEADER) as file:
        file.add([record(0)])
        whole, disk = path.read_bytes(), Full(file._file)
        file._file = disk  # type: ignore[assignment]
        with pytest.raises(
            TrainingError, match="takes no more: no space left on device; what is there"
        ):
            file.add([record(1, more=True), record(1, turn=1)])
        assert path.read_bytes() == whole
        disk.room = 10**6
        file.add([record(1)])
    assert list(read_records(path)) == [record(0), record(1)]


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


def test_another_making_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    write(path, [record(0)])
    before = path.read_bytes()
    with pytest.raises(TrainingError, match=r"was made with temperature 1.0, not 0.5"):
        RecordFile(path, {**HEADER, "temperature": 0.5})
    path.write_text('{"question": "mine"}\n')
    with pytest.raises(TrainingError, match="is not a file of `forerun train data`"):
        RecordFile(path, HEADER)
    assert path.read_text() == '{"question": "mine"}\n'
    path.write_bytes(before + b'{"source": "s"}\n')
    with pytest.raises(TrainingError, match="line 3 holds no record"):
        list(read_records(path))


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    with RecordFile(path, HEADER), pytest.raises(TrainingError, match="another run is writing"):
        RecordFile(path, HEADER)
    write(path, [record(0)])


@pytest.mark.parametrize("name", ["", "absent/data.jsonl", "x" * 300, "a\0b"])
def test_files_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(TrainingError, match="cannot be written"):
        RecordFile(f"{tmp_path}/{name}", HEADER)
    with pytest.raises(TrainingError, match="cannot be read"):
        read_header(f"{tmp_path}/absent.jsonl")
