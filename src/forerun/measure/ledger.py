"""Files of JSON lines that only grow: a header, then records, each whole or not there at all.

They can be read while they grow, and a run that was interrupted goes on from its file.
"""

from __future__ import annotations

import gzip
import json
import os
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from forerun.errors import ForerunError, shown
from forerun.files import decode, lock, parse_json, printable, reason

T = TypeVar("T")
Lines = BinaryIO | gzip.GzipFile

# A device such as /dev/zero never ends a line.
_LONGEST_HEADER = 2**20


@dataclass(frozen=True)
class Format(Generic[T]):
    """Format of the ledgers of a command.

    Args:
        mark: key of the version in the header, by which a file is recognized.
        version: version of the format.
        command: command that writes such files, for messages.
        error: type of the errors raised.
        content: function from a record to the content of its line. Records with a true `more` belong
            with the next one: they count once all of them are there.
        parse: function from the content of a line to the record; its KeyError, TypeError, ValueError or
            AttributeError says that the line is no record.
    """

    mark: str
    version: int
    command: str
    error: type[ForerunError]
    content: Callable[[T], Mapping[str, Any]]
    parse: Callable[[Any], T]

    def read_header(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Read the settings that the records of a file were made with.

        Raises:
            ForerunError: of this format's type, for a file that cannot be read or has other content.
        """
        with self._reading(path) as file:
            return self._header(file, path)

    def read(self, path: str | os.PathLike[str]) -> Iterator[T]:
        """Read the records of a file, which may still grow; an incomplete end is ignored.

        A file named `.gz` is unpacked.

        Raises:
            ForerunError: of this format's type, for a file that cannot be read or has other content; names
                the line.
        """
        with self._reading(path) as file:
            self._header(file, path)
            for group, _ in self._groups(file, path):
                yield from group

    def _header(self, file: Lines, path: str | os.PathLike[str]) -> dict[str, Any]:
        try:
            content = json.loads(file.readline(_LONGEST_HEADER))
            version = content.pop(self.mark)
        except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
            raise self.error(
                f"{printable(path)} is not a file of `{self.command}`; name another."
            ) from None
        if version != self.version:
            raise self.error(
                f"{printable(path)} has version {shown(version)} of its format, but `{self.command}` "
                f"writes version {self.version}; name another."
            )
        settings: dict[str, Any] = content
        return settings

    def _groups(self, file: Lines, path: str | os.PathLike[str]) -> Iterator[tuple[list[T], int]]:
        """Records that belong together, and the position in the file after them."""
        group: list[T] = []
        for number, line in enumerate(file, start=2):
            if not line.endswith(b"\n"):
                break
            where = f"{printable(path)}, line {number}"
            content = parse_json(decode(line, where, self.error), where, self.error)
            try:
                group.append(self.parse(content))
                whole = not content.get("more")
            except (KeyError, TypeError, ValueError, AttributeError) as problem:
                raise self.error(f"{where} holds no record ({problem}).") from problem
            if whole:
                yield group, file.tell()
                group = []

    @contextmanager
    def _reading(self, path: str | os.PathLike[str]) -> Iterator[Lines]:
        packed = os.fspath(path).endswith(".gz")
        try:
            with gzip.open(path) if packed else Path(path).open("rb") as file:
                yield file
        except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
            raise self.error(f"{printable(path)} is not a whole gzip file.") from problem
        except OSError as problem:
            raise self.error(
                f"{printable(path)} cannot be read: {reason(problem)}; give what `{self.command}` wrote."
            ) from problem


class Ledger(Generic[T]):
    """A file that one run at a time appends records to. An incomplete end is cut off.

    Args:
        path: path of the file, which is created if it is missing.
        form: format of the file.
        header: settings that the records depend on. A file with other ones is refused.
        see: called with each record already in the file.

    Raises:
        ForerunError: of the format's type, for a file of another kind or with other settings, a file that
            another run appends to, a line that is no record, and a file that cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        form: Format[T],
        header: Mapping[str, Any],
        see: Callable[[T], object] = lambda _: None,
    ) -> None:
        self.path, self._form = Path(path), form
        line = _line({form.mark: form.version, **header})
        try:
            # Unbuffered, so that a failed write leaves nothing in a buffer.
            self._file = self.path.open("ab", buffering=0)
        except (OSError, ValueError) as problem:
            raise self._unwritable(problem) from problem
        self._close = weakref.finalize(self, self._file.close)
        try:
            self._lock()
            self._end = self._read(line, see)
            self._file.truncate(self._end)
            if not self._end:
                self._write(line)
        except OSError as problem:
            self.close()
            raise self._unwritable(problem) from problem
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Ledger[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, so that another run can append to it."""
        self._close()

    def append(self, records: Sequence[T]) -> None:
        """Append all of the records, or none of them.

        Raises:
            ForerunError: of the format's type, if the disk is full; the file is then as before.
        """
        try:
            self._write(b"".join(_line(self._form.content(record)) for record in records))
        except OSError as problem:
            raise self._form.error(
                f"{printable(self.path)} takes no more: {reason(problem)}; what is there is whole, and a "
                "later run goes on from it."
            ) from problem

    def _write(self, content: bytes) -> None:
        left = memoryview(content)
        try:
            while left:
                left = left[self._file.write(left) :]
        except BaseException:
            self._file.truncate(self._end)
            raise
        self._end += len(content)

    def _read(self, line: bytes, see: Callable[[T], object]) -> int:
        """Read the file; returns the length of its complete records in bytes."""
        form = self._form
        with self.path.open("rb") as file:
            first = file.readline(len(line))
            if not first.endswith(b"\n") and line.startswith(first):
                return 0
            file.seek(0)
            there, wanted = form._header(file, self.path), json.loads(line)
            del wanted[form.mark]
            for name in {**wanted, **there}:
                if there.get(name) != wanted.get(name):
                    raise form.error(
                        f"{printable(self.path)} was made with {name} {shown(there.get(name))}, not "
                        f"{shown(wanted.get(name))}; ask for the same, or for another output file."
                    )
            whole = file.tell()
            for group, end in form._groups(file, self.path):
                for record in group:
                    see(record)
                whole = end
        return whole

    def _lock(self) -> None:
        if not lock(self._file):
            raise self._form.error(
                f"another run is writing {printable(self.path)}; give another output file."
            )

    def _unwritable(self, problem: Exception) -> ForerunError:
        detail = reason(problem) if isinstance(problem, OSError) else str(problem)
        return self._form.error(f"{printable(self.path)} cannot be written: {detail}.")


def _line(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    # Half a character, as in a name that is not UTF-8, becomes its escape in JSON.
    return f"{text}\n".encode(errors="backslashreplace")
