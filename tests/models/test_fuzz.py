"""10,000 headers and configs with wrong, missing and contradictory numbers: read, or refused in a line."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType, GGUFValueType

from forerun.errors import ForerunError
from forerun.models import Checkpoint
from forerun.models.layouts import layout_of
from forerun.models.sources import match_keys
from tests.helpers.gguf_files import write_model
from tests.helpers.tiny_models import NATIVE, tiny_config

BLOCKS, HEADERS, CONFIGS = 40, 200, 50
KINDS = ("llama", "gemma3", "granite", "qwen3moe", "gpt-oss")
LETTERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
STRING, ARRAY = GGUFValueType.STRING.value, GGUFValueType.ARRAY.value
TEXTS = (b"", b"x", b"yarn", b"none", b"gpt2", b"\xff\xfe", b"a\x1b[31m\n", b"llama", "é".encode())
SIZES = (0, 1, 2, 3, 7, 255, 300, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, 1.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"))
# Keys that files of some family or version have, by themselves and behind an architecture.
GENERAL = (
    *(
        "general.alignment",
        "general.architecture",
        "general.sampling.temp",
        "split.count",
        "split.no",
    ),
    *("split.tensors.count", "tokenizer.ggml.scores", "tokenizer.ggml.eot_token_id"),
    *("tokenizer.ggml.add_bos_token", "tokenizer.chat_template", "tokenizer.ggml.token_type"),
)
OWN = (
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scale_linear"),
    *("rope.dimension_count", "rope.freq_base_swa", "rope.scaling.original_context_length"),
    *("attention.sliding_window", "attention.sliding_window_pattern", "attention.key_length"),
    *("attention.value_length", "attention.scale", "attention.causal", "attention.head_count_kv"),
    *("attn_logit_softcapping", "final_logit_softcapping", "embedding_scale", "residual_scale"),
    *("logit_scale", "expert_count", "expert_used_count", "expert_feed_forward_length", "unknown"),
)


@dataclass
class Header:
    """A GGUF file in parts: metadata and tensors are entries that follow their name."""

    metadata: dict[bytes, tuple[int, bytes]]
    tensors: list[tuple[bytes, list[int], int, int]]
    data: bytes
    counts: list[int] = field(default_factory=list)

    def write(self) -> bytes:
        """The file, with its own counts unless others are given."""
        counts = self.counts or [len(self.tensors), len(self.metadata)]
        parts = [b"GGUF", struct.pack("<IQQ", 3, *counts)]
        for key, (kind, value) in self.metadata.items():
            parts += [text(key), struct.pack("<I", kind), value]
        for name, shape, kind, offset in self.tensors:
            parts += [text(name), struct.pack(f"<I{len(shape)}Q", len(shape), *shape)]
            parts.append(struct.pack("<IQ", kind, offset))
        head = b"".join(parts)
        return head + bytes(-len(head) % 32) + self.data


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def parse(content: bytes) -> Header:
    at = 8

    def take(letters: str) -> Any:
        nonlocal at
        found = struct.unpack_from(f"<{letters}", content, at)
        at += struct.calcsize(f"<{letters}")
        return found[0] if len(found) == 1 else found

    def take_text() -> bytes:
        nonlocal at
        length = take("Q")
        at += length
        return content[at - length : at]

    def skip(kind: int) -> None:
        if kind == ARRAY:
            entry, count = take("I"), take("Q")
            for _ in range(count):
                skip(entry)
        else:
            take_text() if kind == STRING else take(LETTERS[kind])

    num_tensors, num_keys = take("QQ")
    metadata = {}
    for _ in range(num_keys):
        key, kind, start = take_text(), take("I"), at
        skip(kind)
        metadata[key] = (kind, content[start:at])
    tensors = []
    for _ in range(num_tensors):
        name, dimensions = take_text(), take("I")
        shape = [take("Q") for _ in range(dimensions)]
        tensors.append((name, shape, take("I"), take("Q")))
    return Header(metadata, tensors, content[-(-at // 32) * 32 :])


def some_value(dice: random.Random) -> tuple[int, bytes]:
    kind = dice.choice([*LETTERS, STRING, STRING, ARRAY, ARRAY])
    if kind == STRING:
        return kind, text(dice.choice(TEXTS))
    if kind != ARRAY:
        return kind, some_number(dice, LETTERS[kind])
    entry, count = dice.choice([*LETTERS, STRING, ARRAY]), dice.choice((0, 1, 2, 300))
    entries = [
        text(dice.choice(TEXTS)) if entry == STRING else some_number(dice, LETTERS.get(entry, "B"))
        for _ in range(count)
    ]
    return kind, struct.pack("<IQ", entry, count) + b"".join(entries)


def some_number(dice: random.Random, letter: str) -> bytes:
    if letter in "fd":
        return struct.pack(f"<{letter}", dice.choice(FLOATS))
    size = struct.calcsize(letter)
    return (dice.choice(SIZES) % 2 ** (8 * size)).to_bytes(size, "little")


def spoil(header: Header, architecture: str, dice: random.Random) -> None:
    """One wrong number, somewhere."""
    place = dice.randrange(100)
    if place < 60:
        extra = [key.encode() for key in (*GENERAL, *(f"{architecture}.{own}" for own in OWN))]
        known = [*header.metadata, *extra]
        header.metadata[dice.choice(known)] = some_value(dice)
    elif place < 68:
        header.metadata.pop(dice.choice([*header.metadata]), None)
    elif place < 72:
        header.counts = [dice.choice(SIZES), dice.choice(SIZES)]
    elif header.tensors:
        at = dice.randrange(len(header.tensors))
        name, shape, kind, offset = header.tensors.pop(at)
        if place < 77:
            return
        if place < 87:
            shape = dice.choice(
                ([], [0], [dice.choice(SIZES)] * 4, shape[:1], shape[::-1], [*shape, 2])
            )
        elif place < 93:
            kind = dice.choice([250, *(each.value for each in GGMLQuantizationType)])
        elif place < 96:
            offset = dice.choice(SIZES)
        else:
            name = dice.choice(
                (b"", b"\xff", b"output.weight", b"rope_freqs.weight", b"blk.0.attn_q.bias")
            )
        header.tensors.insert(at, (name, shape, kind, offset))


def read_all(path: Path) -> None:
    """Everything that is known of a model before its weights are loaded."""
    opened = Checkpoint.open(path)
    assert opened.summary.parameters > 0
    _ = opened.eos_token_ids, opened.sampling_defaults, opened.notes
    if path.is_file():
        match_keys(opened.source(), layout_of(opened.architecture))


def refused_in_a_line(path: Path) -> bool:
    """Whether it is refused, by an error of our own on one line that names the file."""
    try:
        read_all(path)
    except ForerunError as error:
        said = str(error)
        assert not {"\n", "\x1b"} & set(said)
        assert path.name in said
        return True
    return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory, files = tmp_path_factory.mktemp("whole"), {}
    for kind in KINDS:
        write_model(directory / kind, kind, tied=True)
        files[kind] = (directory / kind).read_bytes()
        assert parse(files[kind]).write() == files[kind]
    return files


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, BLOCKS))]
)
def test_headers_are_read_or_refused(block: int, whole: dict[str, bytes], tmp_path: Path) -> None:
    path, refused = tmp_path / "model.gguf", 0
    for number in range(HEADERS):
        dice = random.Random(HEADERS * block + number)
        architecture = dice.choice(KINDS)
        header = parse(whole[architecture])
        for _ in range(dice.choice((1, 1, 2, 3))):
            spoil(header, architecture, dice)
        content = bytearray(header.write())
        for _ in range(dice.choice((0, 0, 0, 0, 0, 3))):
            content[dice.randrange(5000)] = dice.randrange(256)
        path.write_bytes(content[: dice.choice((len(content),) * 30 + (dice.randrange(9000),))])
        refused += refused_in_a_line(path)
    assert HEADERS // 2 < refused < HEADERS


def some_json(dice: random.Random, deep: int = 0) -> Any:
    kind = dice.randrange(9 if deep < 3 else 6)
    if kind == 6:
        return [some_json(dice, deep + 1) for _ in range(dice.randrange(4))]
    if kind in (7, 8):
        keys = ("rope_type", "factor", "full_attention", "rope_theta", "type", "x")
        return {dice.choice(keys): some_json(dice, deep + 1) for _ in range(dice.randrange(4))}
    words = (
        "",
        "silu",
        "relu",
        "yarn",
        "longrope",
        "full_attention",
        "gpt2",
        "\x1b[31m\n",
        "a" * 500,
    )
    scalars = (None, True, False, dice.choice(words), dice.choice((*SIZES, -1, 10**400)))
    return dice.choice((*scalars, dice.choice(FLOATS)))


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, BLOCKS))]
)
def test_configs_are_read_or_refused(block: int, tmp_path: Path) -> None:
    refused = 0
    for number in range(CONFIGS):
        dice = random.Random(CONFIGS * block + number)
        content = json.loads(tiny_config(dice.choice(NATIVE)).to_json_string())
        for _ in range(dice.choice((1, 1, 2))):
            keys = [
                *content,
                "layer_types",
                "is_causal",
                "sliding_window",
                "rope_scaling",
                "num_experts",
            ]
            content[dice.choice(keys)] = some_json(dice)
        if dice.randrange(8) == 0:
            content.pop(dice.choice([*content]))
        (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
        refused += refused_in_a_line(tmp_path)
    assert CONFIGS // 8 < refused < CONFIGS
