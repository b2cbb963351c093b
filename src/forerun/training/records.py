"""What a model has answered, as a file: a line of JSON about its making, then a line for each answer.

The file only grows, a whole conversation at a time, so that it can be read while it grows and a run that
was interrupted goes on from it.
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
# Left out of a line where they say nothing.
_OPTIONAL = ("turn", "more", "skipped")


@dataclass(frozen=True)
class Record:
    """An answer and what it answers.

    Args:
        source: the file of the question, or `magpie` (`sampled` for a base model) where the model wrote it.
        category: of the question.
        prompt_ids, answer_ids: as they were run, with the template's tokens and the end of the answer.
        temperature: 0 for greedy.
        finish: why the answer ended: `stop`, or `length` where it was cut.
        seed: of the request.
        prompt, answer: the user's text and the answer's.
        item: the number of the conversation, counted with those that were skipped.
        turn: of the conversation, from 0.
        more: whether the conversation goes on with the next record.
        skipped: why conversations were skipped since the last record, and how many.
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
    """A file of records that one run at a time adds to; what was half written when a run ended is cut off.

    Args:
        path: of the file; it is made where there is none.
        header: how its records are made. A file with another header is refused.
        see: called with each record that is there already.

    Raises:
        TrainingError: for a file of another kind or another making, one that another run adds to, and one
            that cannot be written.
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
            # Not buffered: what a write leaves behind when it fails is in the file alone.
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
        """Leave the file to others."""
        self._file.close()

    def add(self, conversation: Sequence[Record]) -> None:
        """Append the records of a conversation, all or none.

        Raises:
            TrainingError: where the disk takes no more.
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
        """Read what is there; the length of its whole conversations in bytes."""
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
        """Say what differs in the first line."""
        there, wanted = _header(first, printable(self.path)), json.loads(header)
        name = next(name for name in {**wanted, **there} if there.get(name) != wanted.get(name))
        raise TrainingError(
            f"{printable(self.path)} was made with {name} {shown(there.get(name))}, not "
            f"{shown(wanted.get(name))}; ask for the same, or for another output file."
        )


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """How the records of a file were made.

    Raises:
        TrainingError: for a file that cannot be read or holds something else.
    """
    with _reading(path) as file:
        return _header(file.readline(), printable(path))


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """The records of a file, also while it grows: without a last one that is half written.

    Raises:
        TrainingError: for a file that cannot be read, or holds something else, naming the line.
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
    """What is not at its default."""
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
    """Keep other runs from adding to the file, where the system can."""
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
