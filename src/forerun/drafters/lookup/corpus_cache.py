"""Indexes of corpora on disk: each is made once and stored under a hash of its texts."""

from __future__ import annotations

import hashlib
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from forerun.contracts import DrafterSetup
from forerun.drafters.lookup.corpus import Corpus, sorted_positions, with_separators
from forerun.drafters.lookup.corpus_files import Texts
from forerun.errors import ConfigError
from forerun.files import atomic_path, cache_folder
from forerun.options import FileName, option, options
from forerun.progress import report

if TYPE_CHECKING:
    from numpy import int32
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

# Version of the files' format.
FORM = "1"
# Most bytes of all stored indexes; the most recently used ones stay.
MOST_KEPT = 2**29
_ENDING = ".corpus"


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


def open_corpus(setup: DrafterSetup) -> Corpus | None:
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
    path = _path(texts, setup.tokenizer_id())
    arrays = _read(path)
    if arrays is None:
        token_ids = with_separators(_encoded(list(texts), setup.encode))
        arrays = token_ids, sorted_positions(token_ids)
        _write(path, *arrays)
    corpus = Corpus(*arrays)
    if corpus.vocab_size > setup.target.vocab_size:
        raise ConfigError(
            f"the tokenizer makes token {corpus.vocab_size - 1} of the corpus and {setup.target.name} "
            f"has {setup.target.vocab_size}; give the target's own tokenizer."
        )
    return corpus


@cache
def _note(text: str) -> None:
    """Log a warning once, however many engines are made."""
    logger.warning("%s", text)


def _encoded(texts: list[str], encode: Callable[[str], list[int]]) -> Iterator[list[int]]:
    total, done = sum(map(len, texts)), 0
    for text in texts:
        yield encode(text)
        done += len(text)
        report("indexing the corpus", done, total)


def _path(texts: Iterable[str], tokenizer_id: str | None) -> Path | None:
    """Path of the stored index of some texts; None for a tokenizer that cannot be recognized."""
    if tokenizer_id is None:
        return None
    digest = hashlib.sha256(f"{FORM} {tokenizer_id}".encode())
    for text in texts:
        content = text.encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return cache_folder("corpora") / f"{digest.hexdigest()[:32]}{_ENDING}"


def _read(path: Path | None) -> tuple[NDArray[int32], NDArray[int32]] | None:
    """A stored index; None if it is missing or broken."""
    from safetensors import SafetensorError, safe_open

    if path is None or not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            token_ids, order = file.get_tensor("token_ids"), file.get_tensor("order")
            if file.metadata()["sum"] != _sum(token_ids, order):
                raise ValueError("another sum")
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as problem:
        logger.warning("%s cannot be used (%s); the corpus is indexed anew", path, problem)
        return None
    with suppress(OSError):  # A folder that may only be read.
        os.utime(path)
    return token_ids, order


def _write(path: Path | None, token_ids: NDArray[int32], order: NDArray[int32]) -> None:
    """Store an index, and remove the least recently used ones; with a full disk nothing is stored."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    if path is None:
        return
    try:
        with atomic_path(path) as temporary:
            content = {"token_ids": token_ids, "order": order}
            save_file(content, temporary, {"sum": _sum(token_ids, order)})
    except (OSError, SafetensorError) as problem:
        logger.warning("the corpus's index cannot be kept in %s (%s)", path, problem)
        return
    with suppress(OSError):  # Another process prunes too.
        _prune(path)


def _prune(newest: Path) -> None:
    kept = newest.stat().st_size
    others = (path for path in newest.parent.glob(f"*{_ENDING}") if path != newest)
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True):
        kept += path.stat().st_size
        if kept > MOST_KEPT:
            path.unlink(missing_ok=True)


def _sum(token_ids: NDArray[int32], order: NDArray[int32]) -> str:
    return str(zlib.crc32(order.data, zlib.crc32(token_ids.data)))
