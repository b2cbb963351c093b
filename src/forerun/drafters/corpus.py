"""Texts to quote from: read from named files and folders, and indexed."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import Annotated, Any

from pydantic import BeforeValidator

from forerun.contracts import DrafterSetup
from forerun.drafters.automaton import SuffixAutomaton
from forerun.errors import ConfigError
from forerun.files import is_regular, printable, read_text, size_text
from forerun.options import FileName, option, options
from forerun.progress import report

logger = logging.getLogger(__name__)

# Most bytes of all texts together: half a million tokens, which are indexed in two seconds.
MOST_BYTES = 2 * 2**20
# Most files of folders that are opened.
MOST_FILES = 50_000
# Number of first bytes by which a binary file is recognized.
_SNIFFED = 8192
_WHAT = "corpus"
# Keys of JSON lines that hold an answer or another text.
_KEYS = ("answer", "text", "content")


def _listed(paths: Any) -> Any:
    return (paths,) if isinstance(paths, str) else paths


@options
class CorpusOptions:
    """Texts to quote from."""

    corpus: Annotated[tuple[FileName, ...], BeforeValidator(_listed)] = option(
        default=(),
        description="A text file, or a folder of them, to quote from beside the text itself.",
        repeat=True,
    )


def open_corpus(setup: DrafterSetup) -> SuffixAutomaton | None:
    """The index of the texts that the options name; None if they name none.

    Raises:
        ConfigError: for a path that cannot be read or holds no text, and without a fitting
            tokenizer.
    """
    paths = setup.read(CorpusOptions).corpus
    if not paths:
        return None
    if setup.encode is None:
        raise ConfigError("corpus is text and needs a tokenizer; use forerun.load.")
    texts = Texts(paths)
    if texts.left_out:
        _note(f"corpus: left out: {texts.left_out}")
    index, vocab_size = SuffixAutomaton(), setup.target.vocab_size
    for done, text in enumerate(texts):
        report("indexing the corpus", done, len(texts))
        token_ids = setup.encode(text)
        largest = max(token_ids, default=0)
        if largest >= vocab_size:
            raise ConfigError(
                f"the tokenizer makes token {largest} of the corpus and {setup.target.name} has "
                f"{vocab_size}; give the target's own tokenizer."
            )
        index.extend(token_ids)
        index.end_text()
    report("indexing the corpus", len(texts), len(texts))
    return index


@cache
def _note(text: str) -> None:
    """Log a warning once, however many engines are made."""
    logger.warning("%s", text)


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
        self._skipped, self._stopped_at = 0, ""
        size = files = 0
        for path, named in chain.from_iterable(map(_files_at, paths)):
            try:
                text = _read(path)
            except ConfigError:
                if named:
                    raise
                self._skipped += 1
                continue
            files, size = files + 1, size + (len(text.encode()) if text not in self._texts else 0)
            if size > MOST_BYTES or files > MOST_FILES:
                self._stopped_at = path
                break
            lines = path.removesuffix(".gz").endswith(".jsonl")
            self._texts |= dict.fromkeys(_of_lines(text) if lines else [text])
        if not any(map(str.strip, self._texts)):
            left_out = f" (left out: {self.left_out})" if self.left_out else ""
            raise ConfigError(
                f"{_WHAT} {', '.join(map(printable, paths))} is empty{left_out}; give files or folders "
                "with text."
            )

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    @property
    def left_out(self) -> str:
        """Sentence about the files that were left out; empty if all were read."""
        parts = []
        if self._skipped:
            files = "1 file that is" if self._skipped == 1 else f"{self._skipped} files that are"
            parts.append(f"{files} not text, too long or unreadable")
        if self._stopped_at:
            parts.append(
                f"{printable(self._stopped_at)} and all after it, as {size_text(MOST_BYTES)} in "
                f"{MOST_FILES} files are the most"
            )
        return ", ".join(parts)


def _files_at(path: str) -> Iterator[tuple[str, bool]]:
    """Files at a path, without empty ones of folders; the second value is True for one that was named."""
    if not os.path.isdir(path):
        yield path, True
        return
    for parent, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            file = os.path.join(parent, name)
            if not os.path.exists(file) or (is_regular(file) and os.path.getsize(file)):
                yield file, False


def _read(path: str) -> str:
    """The text of a file.

    Raises:
        ConfigError: for a file that cannot be read or is not text.
    """
    binary = _is_binary(path)
    text = "" if binary else read_text(path, _WHAT, ConfigError, most_bytes=MOST_BYTES)
    if binary or "\0" in text:
        raise ConfigError(
            f"{_WHAT} {printable(path)} is a binary file; give text, or leave it out."
        )
    return text


def _is_binary(path: str) -> bool:
    """True if the first bytes of a file are not text, so that it need not be read."""
    if path.endswith(".gz") or not is_regular(path):
        return False
    with suppress(OSError), open(path, "rb") as file:
        return b"\0" in file.read(_SNIFFED)
    return False


def _of_lines(text: str) -> list[str]:
    """Texts in the fields of JSON lines; the whole text if it is not JSON lines with such fields."""
    texts: list[str] = []
    try:
        for line in text.split("\n"):
            if line.strip():
                texts += _of_object(json.loads(line))
    except (ValueError, RecursionError):
        return [text]
    # JSON can hold half a character (a lone surrogate), which is replaced.
    return [own.encode(errors="replace").decode() for own in texts] or [text]


def _of_object(content: Any) -> Iterator[str]:
    """Values of a JSON object under the keys of texts, including those in its messages."""
    if isinstance(content, Mapping):
        yield from (content[key] for key in _KEYS if isinstance(content.get(key), str))
        messages = content.get("messages")
        for message in messages if isinstance(messages, list) else ():
            yield from _of_object(message)
