"""Texts of a corpus, read from named files and from folders."""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import Any

from forerun.errors import ConfigError
from forerun.files import printable, read_text, size_text

# Most bytes of all texts together.
MOST_BYTES = 32 * 2**20
# Most files of folders that are opened.
MOST_FILES = 50_000
# Number of first bytes by which a binary file is recognized.
_SNIFFED = 8192
_WHAT = "corpus"
# Keys of JSON lines that hold an answer or another text.
_KEYS = ("answer", "text", "content")


class Texts:
    """Texts of files, each once, and a record of the files in folders that were left out.

    A named file must be UTF-8 text of at most MOST_BYTES; in a folder, others are skipped and
    counted. Folders are read recursively in the order of their names, without hidden files and
    without links to folders. From JSON lines (`.jsonl`) only answers and other texts are taken.

    Args:
        paths: files and folders.

    Raises:
        ConfigError: for a named file that cannot be read or is not text, and if no text is left.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        # In the order of their paths.
        self._texts: dict[str, None] = {}
        self._skipped: Counter[str] = Counter()
        self._stopped_at: str | None = None
        self._bytes_left, self._files_left = MOST_BYTES, MOST_FILES
        for name, text in chain.from_iterable(map(_at, paths)):
            if not self._add(name, text):
                self._stopped_at = name
                break
        if not any(map(str.strip, self._texts)):
            raise ConfigError(
                f"{_WHAT} {', '.join(map(printable, paths))} is empty{_in_brackets(self.left_out)}; "
                "give files or folders with text."
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    @property
    def left_out(self) -> str:
        """Files that were left out, in words; empty if there are none."""
        total, kinds = self._skipped.total(), sorted(self._skipped.items())
        parts = []
        if total:
            listed = ", ".join(f"{count} {kind}" for kind, count in kinds)
            parts.append(f"{total} {'file' if total == 1 else 'files'} ({listed})")
        if self._stopped_at is not None:
            parts.append(
                f"{printable(self._stopped_at)} and all after it, as {size_text(MOST_BYTES)} in "
                f"{MOST_FILES} files are the most"
            )
        return ", ".join(parts)

    def _add(self, name: str, text: str | _Skipped) -> bool:
        """Add a file, unless it exceeds the limits."""
        size = 0 if isinstance(text, _Skipped) or text in self._texts else len(text.encode())
        if size > self._bytes_left or not self._files_left:
            return False
        self._bytes_left -= size
        self._files_left -= 1
        if isinstance(text, _Skipped):
            self._skipped[text.value] += 1
        elif name.removesuffix(".gz").endswith(".jsonl"):
            self._texts.update(dict.fromkeys(_of_lines(text)))
        else:
            self._texts[text] = None
        return True


class _Skipped(Enum):
    """The reason why a file in a folder is not used."""

    BINARY = "binary"
    TOO_LONG = "too long"
    UNREADABLE = "unreadable"


def _at(path: str) -> Iterator[tuple[str, str | _Skipped]]:
    """The file or the files at a path, with their names.

    Raises:
        ConfigError: for a file that cannot be read or is not text.
    """
    if os.path.isdir(path):
        yield from _in_folder(path)
        return
    text = read_text(path, _WHAT, ConfigError, most_bytes=MOST_BYTES)
    if "\0" in text:
        raise ConfigError(
            f"{_WHAT} {printable(path)} is a binary file; give text, or leave it out."
        )
    yield path, text


def _in_folder(folder: str) -> Iterator[tuple[str, str | _Skipped]]:
    """The regular files of a folder that are not empty."""
    unreadable: list[OSError] = []
    for parent, folders, names in os.walk(folder, onerror=unreadable.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path = os.path.join(parent, name)
            try:
                found = os.stat(path)
                if stat.S_ISREG(found.st_mode) and found.st_size:
                    yield path, _read(path)
            except OSError:
                yield path, _Skipped.UNREADABLE
    yield from ((str(problem.filename), _Skipped.UNREADABLE) for problem in unreadable)


def _read(path: str) -> str | _Skipped:
    try:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            content = file.read(_SNIFFED)
            if b"\0" in content:
                return _Skipped.BINARY
            content += file.read(max(MOST_BYTES + 1 - len(content), 0))
    except (EOFError, zlib.error):
        return _Skipped.UNREADABLE
    if len(content) > MOST_BYTES:
        return _Skipped.TOO_LONG
    try:
        return _Skipped.BINARY if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return _Skipped.BINARY


def _in_brackets(text: str) -> str:
    return f" (left out: {text})" if text else ""


def _of_lines(text: str) -> list[str]:
    """The texts of JSON lines; the whole text for other lines, or if there are none."""
    texts: list[str] = []
    try:
        for line in text.split("\n"):
            if line.strip():
                texts += _of_object(json.loads(line))
    except (ValueError, RecursionError):
        return [text]
    # JSON can hold half a character (a lone surrogate), which is replaced.
    return [one.encode(errors="replace").decode() for one in texts] or [text]


def _of_object(content: Any) -> Iterator[str]:
    """Values of a JSON object under the keys of texts, including those in its messages."""
    if isinstance(content, Mapping):
        yield from (content[key] for key in _KEYS if isinstance(content.get(key), str))
        messages = content.get("messages")
        for message in messages if isinstance(messages, list) else ():
            yield from _of_object(message)
