"""GGUF files that are broken, unknown or incomplete: one typed error each, and nothing else."""

from __future__ import annotations

import contextlib
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from forerun.errors import CheckpointError, ForerunError, UnsupportedModelError
from forerun.models import Checkpoint, Placement
from tests.helpers.gguf_files import write_model

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "model.gguf"
    write_model(path, num_hidden_layers=1)
    return path.read_bytes()


@pytest.fixture
def written(tmp_path: Path) -> Write:
    def write(content: bytes | None = None, **options: Any) -> Path:
        path = tmp_path / "model.gguf"
        if content is None:
            write_model(path, num_hidden_layers=1, **options)
        else:
            path.write_bytes(content)
        return path

    return write


def load(path: Path) -> None:
    opened = Checkpoint.open(path)
    _ = opened.eos_token_ids, opened.summary
    opened.load(opened.run_config(Placement(device="cpu")))


def test_a_file_that_is_cut_off(whole: bytes, written: Write) -> None:
    for length in (0, 3, 10, 40, 300, 4000, len(whole) // 2, len(whole) - 1):
        with pytest.raises(
            CheckpointError, match=r"is cut off|does not begin with GGUF|cannot be read"
        ):
            load(written(whole[:length]))


@pytest.mark.parametrize("start", [4, 8, 24, 400, 3000])
def test_wrong_bytes_are_found_or_harmless(start: int, whole: bytes, written: Write) -> None:
    dice = random.Random(start)
    for _ in range(40):
        content = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            content[dice.randrange(start, start + 500)] = dice.randrange(256)
        with contextlib.suppress(ForerunError):
            load(written(bytes(content)))


@pytest.mark.parametrize(
    ("version", "advice"), [(1, "convert it"), (4, "update"), (3 << 24, "order")]
)
def test_another_version(version: int, advice: str, whole: bytes, written: Write) -> None:
    content = whole[:4] + struct.pack("<I", version) + whole[8:]
    with pytest.raises(UnsupportedModelError, match=advice):
        load(written(content))


def test_an_unknown_type_of_tensor(whole: bytes, written: Write) -> None:
    name = b"blk.0.ffn_down.weight"
    at = whole.index(name) + len(name) + 4 + 16
    for number, message in ((250, "type 250, which is not known"), (41, "type")):
        content = whole[:at] + struct.pack("<I", number) + whole[at + 4 :]
        with pytest.raises((UnsupportedModelError, CheckpointError), match=message):
            load(written(content))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "mamba2"}, r"architecture 'mamba2'.* llama, .*qwen2, qwen3"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope'; none, linear, yarn are read"),
    ],
)
def test_models_that_are_not_read(metadata: dict[str, Any], message: str, written: Write) -> None:
    path = written(metadata={k: v for k, v in metadata.items() if not k.startswith("general.")})
    architecture = metadata.get("general.architecture")
    if architecture:
        # Of the same length as the writer's own.
        content = path.read_bytes().replace(
            b"\x05\0\0\0\0\0\0\0llama", b"\x06\0\0\0\0\0\0\0mamba2", 1
        )
        path = written(content)
    with pytest.raises(UnsupportedModelError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("token_embd.weight", "has no token_embd.weight"),
        ("blk.0.ffn_up.weight", r"lacks .*up_proj.* of shape \[512, 256\]"),
        ("output_norm.weight", "lacks model.norm.weight"),
    ],
)
def test_missing_tensors(without: str, message: str, written: Write) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(written(without=(without,)))


@pytest.mark.parametrize(
    "metadata",
    [
        {"llama.embedding_length": 0},
        {"llama.embedding_length": 255},
        {"llama.attention.head_count_kv": 3},
        {"llama.block_count": 2000},
        {"llama.context_length": 0},
        {"llama.feed_forward_length": 511},
        {"tokenizer.ggml.eos_token_id": 300},
        {"llama.attention.layer_norm_rms_epsilon": "no number"},
    ],
)
def test_wrong_metadata(metadata: dict[str, Any], written: Write) -> None:
    with pytest.raises(CheckpointError, match=r"model\.gguf"):
        load(written(metadata=metadata))


def test_a_split_file(tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    write_model(whole)
    parts = split(whole, tmp_path / "parts")
    for part in parts:
        opened = Checkpoint.open(part)
        assert opened.summary.parameters == Checkpoint.open(whole).summary.parameters
        opened.load(opened.run_config(Placement(device="cpu")))
    parts[1].unlink()
    with pytest.raises(CheckpointError, match=r"3 parts and model-00002-of-00003\.gguf is missing"):
        Checkpoint.open(parts[0])
    alone = parts[0].rename(tmp_path / "alone.gguf")
    with pytest.raises(
        CheckpointError, match="is part of a split file of 3 parts, but is not called"
    ):
        Checkpoint.open(alone)


def test_parts_of_different_models(tmp_path: Path) -> None:
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    write_model(first)
    write_model(second, num_hidden_layers=1)
    parts, others = split(first, tmp_path / "parts"), split(second, tmp_path / "others")
    last = parts[2].read_bytes()
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(CheckpointError, match=r"00003-of-00003\.gguf is not part 3 of 3"):
        Checkpoint.open(parts[0])
    parts[2].write_bytes(last)
    own = parts[1].read_bytes()
    parts[1].write_bytes(others[1].read_bytes())
    with pytest.raises(CheckpointError, match=r"hold 18 tensors instead of 21|second time"):
        Checkpoint.open(parts[0])
    # Numbered as the second, with tensors of the first.
    number = b"split.no" + struct.pack("<IH", 2, 1)
    first_part = parts[0].read_bytes().replace(b"split.no" + struct.pack("<IH", 2, 0), number)
    parts[1].write_bytes(first_part)
    with pytest.raises(CheckpointError, match="a second time; it is of another model"):
        Checkpoint.open(parts[0])
    parts[1].write_bytes(own)
    assert Checkpoint.open(parts[0]).summary.parameters > 0


@pytest.mark.parametrize("alignment", [8, 4096])
def test_tensors_begin_where_the_alignment_says(alignment: int, written: Write) -> None:
    path = written(alignment=alignment)
    header = Checkpoint.open(path).header  # type: ignore[attr-defined]
    places = {tensor.name: tensor.data_offset for tensor in gguf.GGUFReader(path).tensors}
    assert {name: tensor.start for name, tensor in header.tensors.items()} == places


def test_a_key_twice(whole: bytes, written: Write) -> None:
    key = b"\x14\0\0\0\0\0\0\0general.architecture"
    at = whole.index(key)
    value = whole[at : at + len(key) + 4 + 8 + len("llama")]
    count = struct.unpack_from("<Q", whole, 16)[0] + 1
    content = whole[:16] + struct.pack("<Q", count) + value + whole[24:]
    with pytest.raises(CheckpointError, match=r"says 'general\.architecture' twice"):
        load(written(content))


def test_names_of_tensors_reach_no_terminal(written: Write) -> None:
    path = written(more={"x\x1b[31my": np.zeros(32, np.float32)})
    with pytest.raises(CheckpointError, match=re.escape(r"holds x\x1b[31my, which its config")):
        load(path)


def split(path: Path, directory: Path) -> list[Path]:
    """The same model in three parts, as llama.cpp's gguf-split writes them."""
    directory.mkdir()
    reader = gguf.GGUFReader(path)
    parts = [directory / f"model-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    for number, part in enumerate(parts):
        writer = gguf.GGUFWriter(part, "llama")
        writer.add_uint16("split.count", 3)
        writer.add_uint16("split.no", number)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for name, field in reader.fields.items() if number == 0 else ():
            if not name.startswith("GGUF.") and name != "general.architecture":
                writer.add_key_value(name, field.contents(), *field.types[:1], *field.types[1:2])
        for tensor in reader.tensors[number::3]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return parts


def test_files_on_the_hub_are_named_by_model_and_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("model.gguf", "owner/model.gguf", "./owner/model/file.gguf"):
        with pytest.raises(CheckpointError, match=re.escape("OWNER/MODEL/FILE.gguf")):
            Checkpoint.open(name)
    asked: list[Any] = []

    def download(name: str, **options: Any) -> str:
        asked.append((name, options["revision"], options["allow_patterns"]))
        return "/no/such/directory"

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    patterns = {
        "model.gguf": "model.gguf",
        "big-00001-of-00002.gguf": "big-*-of-00002.gguf",
        "Q8_0/big-00002-of-00002.gguf": "Q8_0/big-*-of-00002.gguf",
    }
    for file in patterns:
        with pytest.raises(CheckpointError, match=f"owner/model has no file {file}"):
            Checkpoint.open(f"owner/model/{file}", "v1")
    assert asked == [("owner/model", "v1", [pattern]) for pattern in patterns.values()]
