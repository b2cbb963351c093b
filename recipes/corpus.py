"""The zoo's text: the source of the Python standard library, split by module.

Whole modules are held out by a hash of their path, so the split is the same on every machine and
no held-out module is seen in training. Tables of data that happen to be Python files (character
maps, the pydoc topics) are left out: they are not code and would eat a tenth of the budget.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from forerun.errors import TrainingError
from forerun.files import atomic_path

END_OF_TEXT = "<|endoftext|>"
HELD_OUT_ONE_IN = 32
SKIPPED_FOLDERS = frozenset({"site-packages", "encodings", "pydoc_data", "__pycache__", "data"})

# The split of Qwen2's tokenizer: words with one leading sign, single digits, punctuation with the
# line breaks after it, runs of spaces less the last. Any engine that runs Qwen models knows it.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Module:
    """One source file: its path relative to the standard library, and its text."""

    path: str
    text: str

    @property
    def held_out(self) -> bool:
        digest = hashlib.sha256(self.path.encode()).digest()
        return int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0


def standard_library() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def read_modules(root: Path | None = None) -> list[Module]:
    """All modules under `root` (the standard library if None) that are UTF-8, by path.

    Raises:
        TrainingError: where there are none.
    """
    folder = root or standard_library()
    modules = []
    for file in sorted(folder.rglob("*.py")):
        relative = file.relative_to(folder)
        if SKIPPED_FOLDERS.intersection(relative.parts):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # test files in other encodings
        if text.strip():
            modules.append(Module(relative.as_posix(), text))
    if not modules:
        raise TrainingError(f"no Python source under {folder}: give a folder that holds some.")
    return modules


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer that reproduces every byte of its input; id 0 ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, modules: list[Module]) -> np.ndarray:
    """The token ids of all modules, each ended by `END_OF_TEXT`, as one uint16 array."""
    encoded = tokenizer.encode_batch([module.text for module in modules])
    end = tokenizer.token_to_id(END_OF_TEXT)
    return np.concatenate([np.array([*text.ids, end], dtype=np.uint16) for text in encoded])


def save_tokens(path: Path, tokens: np.ndarray) -> None:
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, tokens)
