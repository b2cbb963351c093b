"""Files of a model's answers: a JSON line with the settings, and then a JSON line for each answer.

The file only grows, a whole conversation at a time. So it can be read while it grows, and a run that was
interrupted can continue it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from forerun.errors import TrainingError, shown
from forerun.files import decode, parse_json, printable, reason

FORMAT = 1
_MARK = "forerun_data"
# Fields that are left out of a line if they have their default.
_OPTIONAL = ("turn", "more", "skipped")


@dataclass(frozen=True)
class Record:
    """An answer with its prompt.

    Args:
        source: file of the question, or `magpie` (`sampled` for a base model) if the model wrote it.
        category: category of the question.
        prompt_ids, answer_ids: token ids as they were run, with the template's tokens and the end of the
            answer.
        temperature: temperature of the answer; 0 for greedy.
        finish: finish reason: `stop`, or `length` for an answer that was cut.
        seed: seed of the request.
        prompt, answer: text of the user and text of the answer.
        item: number of the conversation, skipped ones counted.
        turn: turn of the conversation, from 0.
        more: True if the conversation continues with the next record.
        skipped: number of conversations skipped since the last record, by reason.
    """

    source: str
    category: str
    prompt_ids: list[int]
    answer_ids: list[int]
    temperature: float
    finish: str
    seed: int
    prompt: str
    answer: str
    item: int
    turn: int = 0
    more: bool = False
    skipped: dict[str, int] = field(default_factory=dict)


class RecordFile:
    """A file of records that one run at a time appends to; an incomplete conversation is cut off.

    Args:
        path: path of the file, which is created if it is missing.
        header: settings that the records are made by. A file with another header is refused.
        see: called with each record already in the file.

    Raises:
        TrainingError: for a file of another kind or with other settings, a file that another run appends
            to, and a file that cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: Mapping[str, Any],
        see: Callable[[Record], None] = lambda _: None,
    ) -> None:
        self.path = Path(path)
        line = _line({_MARK: FORMAT, **header})
        try:
            # Unbuffered, so that a failed write leaves nothing in a buffer.
            self._file = self.path.open("ab", buffering=0)
        except (OSError, ValueError) as error:
            raise _unwritable(self.path, error) from error
        try:
            _lock(self._file, self.path)
            self._end = self._read(line, see)
            self._file.truncate(self._end)
            if not self._end:
                self._write(line)
        except OSError as error:
            self._file.close()
            raise _unwritable(self.path, error) from error
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, so that another run can append to it."""
        self._file.close()

    def add(self, conversation: Sequence[Record]) -> None:
        """Append the records of a conversation, all or none.

        Raises:
            TrainingError: if the disk is full.
        """
        try:
            self._write(b"".join(_line(_content(record)) for record in conversation))
        except OSError as error:
            raise TrainingError(
                f"{printable(self.path)} takes no more: {reason(error)}; what is there is whole, and the "
                "same command goes on from it."
            ) from error

    def _write(self, content: bytes) -> None:
        left = memoryview(content)
        try:
            while left:
                left = left[self._file.write(left) :]
        except BaseException:
            self._file.truncate(self._end)
            raise
        self._end += len(content)

    def _read(self, header: bytes, see: Callable[[Record], None]) -> int:
        """Read the file; returns the length of its complete conversations in bytes."""
        with self.path.open("rb") as file:
            first = file.readline()
            if not first.endswith(b"\n") and header.startswith(first):
                return 0
            if first != header:
                self._refuse(first, header)
            end = whole = len(first)
            conversation: list[Record] = []
            for number, line in enumerate(file, start=2):
                if not line.endswith(b"\n"):
                    break
                end += len(line)
                conversation.append(_record(line, f"{printable(self.path)}, line {number}"))
                if not conversation[-1].more:
                    for record in conversation:
                        see(record)
                    conversation, whole = [], end
        return whole

    def _refuse(self, first: bytes, header: bytes) -> NoReturn:
        """Raise the error that says what differs in the first line."""
        there, wanted = _header(first, printable(self.path)), json.loads(header)
        name = next(name for name in {**wanted, **there} if there.get(name) != wanted.get(name))
        raise TrainingError(
            f"{printable(self.path)} was made with {name} {shown(there.get(name))}, not "
            f"{shown(wanted.get(name))}; ask for the same, or for another output file."
        )


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the settings that the records of a file were made by.

    Raises:
        TrainingError: for a file that cannot be read or has other content.
    """
    with _reading(path) as file:
        return _header(file.readline(), printable(path))


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Read the records of a file, which may still grow; an incomplete last line is ignored.

    Raises:
        TrainingError: for a file that cannot be read or has other content; names the line.
    """
    with _reading(path) as file:
        _header(file.readline(), printable(path))
        for number, line in enumerate(file, start=2):
            if line.endswith(b"\n"):
                yield _record(line, f"{printable(path)}, line {number}")


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    try:
        with Path(path).open("rb") as file:
            yield file
    except OSError as error:
        raise TrainingError(f"{printable(path)} cannot be read: {reason(error)}.") from error


def _header(line: bytes, where: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
        if isinstance(content, dict) and _MARK in content:
            return content
    except ValueError:
        pass
    raise TrainingError(f"{where} is not a file of `forerun train data`; name another.")


def _record(line: bytes, where: str) -> Record:
    content = parse_json(decode(line, where, TrainingError), where, TrainingError)
    try:
        return Record(**content)
    except TypeError as error:
        raise TrainingError(f"{where} holds no record ({error}).") from error


def _content(record: Record) -> dict[str, Any]:
    """Fields of a record, without optional ones that have their default."""
    content = vars(record)
    return {
        each.name: content[each.name]
        for each in fields(record)
        if not (each.name in _OPTIONAL and not content[each.name])
    }


def _line(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return f"{text}\n".encode()


def _lock(file: FileIO, path: Path) -> None:
    """Lock the file against other runs, except on Windows."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TrainingError(
            f"another run is writing {printable(path)}; give another output file."
        ) from None


def _unwritable(path: Path, error: Exception) -> TrainingError:
    detail = reason(error) if isinstance(error, OSError) else str(error)
    return TrainingError(f"{printable(path)} cannot be written: {detail}.")
