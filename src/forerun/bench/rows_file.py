"""Rows in a file: JSON lines that grow while a run goes on, and from which another goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from forerun.bench.rows import Row
from forerun.errors import ConfigError
from forerun.files import parse_json, printable, read_text, reason

VERSION = 1
_HEADER = "forerun_bench"
# Rows of a day; a file of another kind is soon found out.
_MOST_BYTES = 2**31


class RowsFile:
    """A file of rows. Where it cannot be written any more, the run goes on without it.

    Args:
        path: created, or gone on with.
        header: of the run: what makes its figures comparable with each other.
        resume: whether rows of an earlier run are kept.

    Raises:
        ConfigError: for a file that exists and is not to be gone on with, one of another kind or of
            another run, a broken line (with its number), and where it cannot be written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], *, resume: bool) -> None:
        self.path, self.problem = path, ""
        self.rows: list[Row] = []
        if path.exists() and not resume:
            raise ConfigError(
                f"{printable(path)} exists; go on with --resume {printable(path)}, or name another file."
            )
        whole = self._read(header) if path.exists() else b""
        begin = whole or (json.dumps({_HEADER: VERSION, **header}) + "\n").encode()
        try:
            with path.open("ab") as file:
                # A line that an earlier run has not ended goes.
                file.truncate(len(whole))
            if not whole:
                self._put(begin)
        except OSError as error:
            raise ConfigError(f"{printable(path)} cannot be written: {reason(error)}.") from error

    def append(self, row: Row) -> bool:
        """Add a row, whole or not at all; whether the file goes on."""
        if self.problem:
            return False
        end = 0
        try:
            end = self.path.stat().st_size
            self._put((row.as_json() + "\n").encode())
        except OSError as error:
            self.problem = (
                f"{printable(self.path)} could not be written any more ({reason(error)}); it holds the "
                "rows until then"
            )
            self._cut(end)
        return not self.problem

    def _put(self, line: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(line)

    def _cut(self, end: int) -> None:
        """Leave out the half of a line; a later run would as well."""
        with suppress(OSError), self.path.open("r+b") as file:
            file.truncate(end or file.seek(0, 2))

    def _read(self, header: Mapping[str, Any]) -> bytes:
        """Take the rows of an earlier run; its file without a line that was not ended."""
        where = printable(self.path)
        text = read_text(self.path, "rows file", ConfigError, most_bytes=_MOST_BYTES)
        text = text[: text.rfind("\n") + 1]
        lines = text.splitlines()
        if not lines:
            return b""
        first = parse_json(lines[0], f"{where}, line 1", ConfigError)
        if not isinstance(first, dict) or first.pop(_HEADER, None) != VERSION:
            raise ConfigError(f"{where} holds no rows of this version of 'forerun bench'.")
        for name, value in json.loads(json.dumps(header)).items():
            if first.get(name) != value:
                raise ConfigError(
                    f"{where} was measured with {name} {first.get(name)!r}, and this run has {value!r}: "
                    "their rows do not compare; name another file."
                )
        for number, line in enumerate(lines[1:], start=2):
            content = parse_json(line, f"{where}, line {number}", ConfigError)
            try:
                self.rows.append(Row.from_dict(content))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ConfigError(f"{where}, line {number} is no row: {error}.") from error
        return text.encode()
