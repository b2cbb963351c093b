"""Conversations of `forerun train data` as packed token files, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from forerun.errors import TrainingError
from forerun.files import atomic_path
from forerun.training.conversations import RECORDS, Record

PART_BYTES = 16_000_000
_LARGEST = np.iinfo(np.uint16).max


def pack(paths: Sequence[str], file: Path, part_bytes: int = PART_BYTES) -> list[Path]:
    """Write conversations as arrays, in as many files as their size takes.

    Args:
        paths: files of `forerun train data`.
        file: to write; further ones have a number before the suffix.
        part_bytes: of a file at most.

    Returns:
        The files.

    Raises:
        TrainingError: for files without conversations, and tokens that 16 bits do not hold.
    """
    records = [record for path in paths for record in RECORDS.read(path)]
    if not records:
        raise TrainingError(f"there are no conversations in {', '.join(paths)}; give others.")
    largest = max(max((*r.prompt_ids, *r.answer_ids), default=0) for r in records)
    if largest > _LARGEST:
        raise TrainingError(
            f"token {largest} does not fit into 16 bits; models of up to {_LARGEST + 1} tokens are packed."
        )
    sizes = [2 * (len(r.prompt_ids) + len(r.answer_ids)) + 20 for r in records]
    # Arrays are stored as they are: the size is known before.
    total, most = sum(sizes), max(part_bytes - 4096 - _names_bytes(records), 1)
    count = -(-total // most)
    ends = np.searchsorted(np.cumsum(sizes), [total * part / count for part in range(count + 1)])
    files = []
    for number, (start, stop) in enumerate(pairwise(map(int, [*ends[:-1], len(records)]))):
        path = file if count == 1 else file.with_name(f"{file.stem}-{number}{file.suffix}")
        _write(records[start:stop], path)
        files.append(path)
    return files


def unpack(paths: Sequence[Path], file: Path) -> int:
    """Write packed conversations as JSON lines that training reads; their number.

    Raises:
        TrainingError: for a file that `pack` has not written.
    """
    count = 0
    with atomic_path(file) as temporary, temporary.open("w", encoding="utf-8") as lines:
        lines.write(f"{json.dumps({RECORDS.mark: RECORDS.version})}\n")
        for path in paths:
            for record in _read(path):
                lines.write(f"{json.dumps(record)}\n")
                count += 1
    return count


def _names_bytes(records: Sequence[Record]) -> int:
    """Bytes of the categories' names in a file at most."""
    return sum(8 + 4 * len(name) for name in {record.category for record in records})


def _write(records: Sequence[Record], path: Path) -> None:
    names = sorted({record.category for record in records})
    texts = [(*record.prompt_ids, *record.answer_ids) for record in records]
    arrays = {
        "tokens": np.concatenate([np.array(text, np.uint16) for text in texts]),
        "prompt_lengths": np.array([len(r.prompt_ids) for r in records], np.int32),
        "answer_lengths": np.array([len(r.answer_ids) for r in records], np.int32),
        "categories": np.array([names.index(r.category) for r in records], np.int32),
        "category_names": np.array(names, np.str_),
        "temperatures": np.array([r.temperature for r in records], np.float64),
    }
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _read(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with np.load(path, allow_pickle=False) as packed:
            arrays = {name: packed[name] for name in packed.files}
        tokens, names = arrays["tokens"], arrays["category_names"]
        columns = ("prompt_lengths", "answer_lengths", "categories", "temperatures")
        rows = list(zip(*(arrays[name].tolist() for name in columns), strict=True))
    except (OSError, ValueError, KeyError) as error:
        raise TrainingError(f"{path} cannot be read ({error}); give what `pack` wrote.") from error
    start = 0
    for prompt, answer, category, temperature in rows:
        ids = tokens[start : start + prompt + answer].tolist()
        start += prompt + answer
        yield {
            "prompt_ids": ids[:prompt],
            "answer_ids": ids[prompt:],
            "category": str(names[category]),
            "temperature": temperature,
        }
