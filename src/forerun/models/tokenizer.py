"""The tokenizer of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers

from forerun.errors import CheckpointError
from forerun.files import is_regular, size_text
from forerun.models.config import one_line

# Files of tokenizers: fast ones, BPE and WordPiece, SentencePiece, tiktoken.
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")
# Other files that tokenizers read.
_MORE_FILES = ("*.json", "*.txt", "*.jinja")
MOST_BYTES = 2**28


def has_tokenizer(directory: Path) -> bool:
    """True if a directory holds a tokenizer of any kind."""
    return any(path for pattern in TOKENIZER_FILES for path in directory.glob(pattern))


def read_tokenizer(directory: Path, config: Any) -> Any:
    """Read the tokenizer of a checkpoint through transformers.

    Raises:
        CheckpointError: if its files are missing or broken.
    """
    from transformers import AutoTokenizer

    # Without any, transformers makes an empty tokenizer of some model types.
    if not has_tokenizer(directory):
        raise CheckpointError(
            f"{directory} has no tokenizer ({', '.join(TOKENIZER_FILES)}); "
            "save the model's tokenizer there."
        )
    for pattern in (*TOKENIZER_FILES, *_MORE_FILES):
        for path in directory.glob(pattern):
            _check_file(path)
    try:
        return AutoTokenizer.from_pretrained(directory, config=config, trust_remote_code=False)
    except Exception as error:
        # The tokenizers library raises bare Exceptions for broken files.
        raise CheckpointError(
            f"{directory} has no tokenizer that transformers can read ({one_line(error)}); "
            "it needs tokenizer.json or the files of a slow tokenizer."
        ) from error


def byte_letters() -> list[str]:
    """The letter that byte-level tokenizers write for each byte: itself if it is visible."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    visible = {letter for letter in letters if ord(letter) < 256}
    others = iter(letters[len(visible) :])
    return [chr(byte) if chr(byte) in visible else next(others) for byte in range(256)]


def _check_file(path: Path) -> None:
    """Refuse a file that has no end, such as a pipe or a device, because the libraries read to the end."""
    if not is_regular(path):
        raise CheckpointError(f"{path} is not a regular file; download it again.")
    if path.stat().st_size > MOST_BYTES:
        raise CheckpointError(
            f"{path} is longer than {size_text(MOST_BYTES)}, which no tokenizer is; "
            "download it again."
        )
