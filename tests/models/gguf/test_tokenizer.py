"""The tokenizer in a GGUF file splits text as the model learnt it."""

from __future__ import annotations

import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun.errors import CheckpointError
from forerun.models import Checkpoint
from tests.helpers.gguf_files import write_model
from tests.helpers.real_model import needs_smollm2

LETTERS = {"cjk": [(0x4E00, 0x9FFF), (0x3040, 0x30FF), (0xAC00, 0xD7A3), (0x20, 0x7F)]}
LETTERS["emoji"] = [(0x1F300, 0x1F6FF), (0x1F900, 0x1F9FF), (0x2600, 0x27BF), (0x200D, 0x200E)]
LETTERS["emoji"] += [(0xFE0F, 0xFE10), (0x1F3FB, 0x1F3FF), (0x20, 0x7F)]


def invented(kind: str, count: int) -> Iterator[str]:
    dice = random.Random(kind)
    for _ in range(count):
        ranges = [dice.choice(LETTERS[kind]) for _ in range(dice.randint(2, 40))]
        yield "".join(chr(dice.randrange(*letters)) for letters in ranges)


def lines() -> list[str]:
    """10,000 of code, prose, emoji and CJK."""
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = (file.read_text("utf-8") for file in sorted(library.glob("*.py"))[:60])
    code = [line for source in sources for line in source.splitlines() if line.strip()]
    prose = [line for line in code if re.search(r"[a-z]+ [a-z]+ [a-z]+ [a-z]+", line)]
    return [*code[:6000], *prose[:1000], *invented("cjk", 1500), *invented("emoji", 1500)]


@needs_smollm2
def test_a_real_one_reads_as_transformers_does_but_for_digits_after_spaces() -> None:
    """That transformers leaves out a rule of this family is the only difference."""
    from transformers import PreTrainedTokenizerFast

    opened = Checkpoint.open("smollm2")
    path = opened.location.file
    assert path is not None
    theirs = PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)
    everything = lines()
    assert len(everything) == 10_000
    different = 0
    for line in everything:
        ids = opened.tokenizer.encode(line)
        assert opened.tokenizer.decode(ids) == line
        if ids != theirs.encode(line):
            assert re.search(r"\s{2,}\d", line), line
            different += 1
    assert different > 0
    # As llama.cpp does.
    assert opened.tokenizer.encode("  2 and   512: ") == [256, 34, 284, 333, 37, 33, 34, 42, 216]


def tokens_of(path: Path, text: str) -> list[str]:
    tokenizer = Checkpoint.open(path).tokenizer
    found: list[str] = tokenizer.convert_ids_to_tokens(tokenizer.encode(text))
    return found


SPACES = {"tokenizer.ggml.merges": ["\u0120 \u0120"]}


@pytest.mark.parametrize(
    ("way", "expected"),
    [("gpt-2", ["\u0120", "\u0120", "2"]), ("smollm", ["\u0120\u0120", "2"])],
)
def test_digits_may_be_split_off_first(way: str, expected: list[str], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, num_hidden_layers=1)
    tokens: list[str] = list(Checkpoint.open(path).stored.header.metadata["tokenizer.ggml.tokens"])  # type: ignore[attr-defined]
    tokens[-1] = "\u0120\u0120"
    changed: dict[str, Any] = {**SPACES, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.pre": way}
    write_model(path, num_hidden_layers=1, metadata=changed)
    assert tokens_of(path, "  2") == expected


def test_an_unknown_way_of_splitting_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for way, told in (("smollm", False), ("llama-bpe", False), ("frobnicate", True)):
        write_model(path, num_hidden_layers=1, metadata={"tokenizer.ggml.pre": way})
        notes = Checkpoint.open(path).notes
        assert bool(notes) == told
        assert all("(frobnicate) is not known" in note for note in notes)


def test_a_file_without_one(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, num_hidden_layers=1, metadata={"tokenizer.ggml.model": "no_vocab"})
    with pytest.raises(CheckpointError, match="has no tokenizer that transformers can read"):
        _ = Checkpoint.open(path).tokenizer
