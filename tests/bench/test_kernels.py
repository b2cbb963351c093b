"""The benchmarks count and pair correctly, whatever the times."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun import _native
from forerun.bench import shapes
from forerun.bench.forwards import Forwards
from forerun.bench.kernels import fits, measure
from forerun.bench.request import Request
from forerun.bench.shapes import SHAPES, RandomSource, build
from forerun.bench.traffic import forward_bytes, matrix_parameters, multiply_adds, weight_bytes
from forerun.errors import ConfigError, UnknownNameError
from forerun.models.architecture import read_architecture
from tests.helpers.forwards import run
from tests.helpers.gguf_files import write_model

pytestmark = [
    pytest.mark.skipif(not _native.AVAILABLE, reason="no compiled kernels"),
    pytest.mark.usefixtures("tiny_shapes"),
]


def test_bytes_of_a_forward() -> None:
    """All numbers by hand: every size is a multiple of the kernels' blocks."""
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128
    parameters = 2 * layer + 96 * 64
    for name in ("tiny", "tiny-tied"):
        bf16, int8 = build(name, "bf16"), build(name, "int8")
        assert matrix_parameters(bf16.shape, head=True) == parameters
        assert weight_bytes(bf16) == 2 * parameters
        # One scale of two bytes for each 64 columns; 64 columns fill half of a line of scales.
        assert parameters * (1 + 2 / 64) <= weight_bytes(int8) <= parameters * (1 + 4 / 64)
        cache = 2 * 2 * 2 * 16 * 2
        assert forward_bytes(bf16, 3, 10) == 2 * parameters + 13 * cache
    assert weight_bytes(build("tiny", "fp32")) == 4 * parameters
    untied, tied = build("tiny", "bf16"), build("tiny-tied", "bf16")
    assert untied.weight_bytes - tied.weight_bytes == 2 * 96 * 64


def test_multiply_adds_of_a_forward() -> None:
    shape = read_architecture(SHAPES["tiny"].config())
    matrices = matrix_parameters(shape, head=False)
    assert matrix_parameters(shape, head=True) == matrices + 96 * 64
    # Two tokens behind three others see 4 and 5; keys and values are multiplied once each.
    attention = 2 * 2 * 4 * 16 * (4 + 5)
    assert multiply_adds(shape, 2, 3, head=False) == 2 * matrices + attention


@pytest.mark.parametrize(
    ("name", "millions"),
    [("draft-15m", 15.2), ("llama-110m", 134.1), ("llama-350m", 373.9), ("qwen3-0.6b", 596.0)],
)
def test_shapes_have_their_size(name: str, millions: float) -> None:
    source = RandomSource(read_architecture(SHAPES[name].config()))
    sizes = [math.prod(shape) for shape in source.shapes.values()]
    assert sum(sizes) / 1e6 == pytest.approx(millions, abs=0.1)


def test_random_weights_are_the_same_in_parts() -> None:
    source = RandomSource(read_architecture(SHAPES["llama-110m"].config()))
    for key in ("model.norm.weight", "lm_head.weight"):
        whole = source.read(key)
        assert tuple(whole.shape) == source.shapes[key]
        for start, stop in ((0, 1), (5, 700), (len(whole) - 3, len(whole))):
            assert torch.equal(source.slice(key, 0, start, stop), whole[start:stop])
    assert torch.equal(
        source.slice("lm_head.weight", 1, 3, 9), source.read("lm_head.weight")[:, 3:9]
    )


def test_rows() -> None:
    request = Request(("tiny",), ("bf16", "int8"), (4,), (16, 64), rounds=2)
    heard: list[str] = []
    result = measure(request, heard.append)
    assert heard == ["tiny bf16", "tiny int8"]
    keys = [(row.precision, row.context, row.n) for row in result.rows]
    assert keys == [(p, c, n) for p in ("bf16", "int8") for c in (16, 64) for n in (1, 4)]
    for row in result.rows:
        assert 0 < row.best_milliseconds <= row.milliseconds
        assert row.gigabytes_per_second == pytest.approx(row.bytes / row.milliseconds / 1e6)
        assert row.bytes == forward_bytes(build("tiny", row.precision), row.n, row.context)
        assert row.n > 1 or row.ratio_to_one == 1
        assert not row.from_memory
    content = json.loads(json.dumps(result.as_dict()))
    assert content["machine"]["stream_bytes"] >= 4 * content["machine"]["last_level_cache_bytes"]
    assert [row["precision"] for row in content["prefill"]] == ["bf16", "int8"]
    assert not fits(build("tiny", "bf16"), shapes.MAX_CONTEXT, (1,))


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 0},
        {"tokens": (0,)},
        {"contexts": (-1,)},
        {"models": "tiny"},
    ],
)
def test_bad_requests(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Request(**change)


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match=r"model 'tine'.*tiny"):
        Request(models=("tine",))
    with pytest.raises(UnknownNameError, match="precision 'int9'"):
        Request(models=("tiny",), precisions=("int9",))
    with pytest.raises(UnknownNameError, match="llama-110m"):
        build("llama-111m", "bf16")


def test_a_filled_cache_is_read() -> None:
    """Logits behind a filled cache are finite and differ from those without."""
    model = build("tiny", "fp32")
    timer = Forwards(model, 32, 4)
    assert timer.once(4) > 0
    assert timer.sample(2) > 0
    assert timer.cache.length(0) == 32
    filled = run(model, timer.cache, [[5]]).logits
    empty = run(model, model.new_cache(1, 40), [[5]]).logits
    assert filled.isfinite().all()
    assert not torch.equal(filled, empty)
    with pytest.raises(RuntimeError):
        _native.kernels.fill_cache(timer.cache.native, 0, 10_000)


def test_stored_weights_are_those_of_gguf_files(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path)
    assert build(str(path), "stored").precision == "stored"
    for name in ("zoo", "llama-110m"):
        with pytest.raises(ConfigError, match=f"{name} is not quantized"):
            build(name, "stored")
