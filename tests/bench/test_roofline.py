"""The roofline counts, places and pairs correctly, whatever the times."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, MambaConfig, MixtralConfig

from benchmarks import shapes
from benchmarks.shapes import RANDOM_SHAPES, RandomSource, build, config_of
from forerun import _native
from forerun.bench.forwards import (
    Forwards,
    Machine,
    forward_bytes,
    multiply_adds,
    traffic_of,
    weight_bytes,
)
from forerun.bench.roofline import RooflineRequest
from forerun.bench.roofline.measured import (
    TimedModel,
    hardware_called,
    limits_of,
    load_models,
    measure,
    time_forwards,
)
from forerun.bench.roofline.report import (
    DRAFT,
    FREE_UP_TO,
    TARGET,
    Forward,
    PlacedModel,
    Roofline,
    Turn,
    experts_note,
    free_tokens,
    report_of,
    roof,
)
from forerun.core import Batch, ForwardOutput
from forerun.costs.forwards import Limits, Traffic
from forerun.costs.hardware import HARDWARE
from forerun.costs.shapes import SHAPES, read_shape
from forerun.engine.options import ModelOptions
from forerun.errors import CheckpointError, ConfigError, UnknownNameError
from forerun.models.architecture import read_architecture
from forerun.placement import Placement
from forerun.report.plot import figure_of
from tests.helpers.forwards import run
from tests.helpers.gguf_files import write_model

pytestmark = [
    pytest.mark.skipif(not _native.AVAILABLE, reason="no compiled kernels"),
    pytest.mark.usefixtures("tiny_shapes"),
]
LIMITS = Limits(bandwidth=1e9, peak=1e11)
SMALL = RooflineRequest(
    ModelOptions("tiny", threads=1),
    draft_model="tiny-tied",
    tokens=(4,),
    contexts=(16, 64),
    rounds=2,
)


def test_bytes_of_a_forward() -> None:
    """All numbers by hand: every size is a multiple of the kernels' blocks."""
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128
    parameters = 2 * layer + 96 * 64
    for name in ("tiny", "tiny-tied"):
        bf16, int8 = build(name, "bf16"), build(name, "int8")
        assert traffic_of(bf16).shape.active_parameters == parameters
        assert weight_bytes(bf16) == 2 * parameters
        # One scale of two bytes for each 64 columns; 64 columns fill half of a line of scales.
        assert parameters * (1 + 2 / 64) <= weight_bytes(int8) <= parameters * (1 + 4 / 64)
        cache = 2 * 2 * 2 * 16 * 2
        # The mean of what three tokens see behind ten others.
        assert forward_bytes(bf16, 3, 10) == pytest.approx(2 * parameters + 12 * cache)
    assert weight_bytes(build("tiny", "fp32")) == 4 * parameters
    untied, tied = build("tiny", "bf16"), build("tiny-tied", "bf16")
    assert untied.weight_bytes - tied.weight_bytes == 2 * 96 * 64


def test_multiply_adds_of_a_forward() -> None:
    model = build("tiny", "bf16")
    matrices = traffic_of(model).shape.active_parameters
    # Three tokens behind three others see 4, 5 and 6; keys and values are multiplied once each.
    attention = 2 * 2 * 4 * 16 * (4 + 5 + 6)
    assert multiply_adds(model, 3, 3) == 3 * matrices + attention
    assert multiply_adds(model, 3, 3, head=False) == 3 * (matrices - 96 * 64) + attention


def test_shapes_are_those_of_configs() -> None:
    gpt2 = read_shape(GPT2Config(), "gpt2")
    assert gpt2.parameters == pytest.approx(124.4e6, rel=0.01)
    mixtral = read_shape(MixtralConfig(num_key_value_heads=8), "mixtral-8x7b")
    assert replace(mixtral, name="mixtral-8x7b") == SHAPES["mixtral-8x7b"]
    with pytest.raises(CheckpointError, match=r"mamba.*num_attention_heads"):
        read_shape(MambaConfig(), "mamba")


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("draft-15m", 15.2),
        ("draft-50m", 50.9),
        ("llama-110m", 134.1),
        ("llama-350m", 373.9),
        ("experts-1b", 1000.6),
        ("qwen3-0.6b", 596.0),
    ],
)
def test_shapes_have_their_size(name: str, millions: float) -> None:
    source = RandomSource(read_architecture(config_of(RANDOM_SHAPES[name])))
    sizes = [math.prod(shape) for shape in source.shapes.values()]
    assert sum(sizes) / 1e6 == pytest.approx(millions, abs=0.1)


def test_random_weights_are_the_same_in_parts() -> None:
    source = RandomSource(read_architecture(config_of(RANDOM_SHAPES["llama-110m"])))
    for key in ("model.norm.weight", "lm_head.weight"):
        whole = source.read(key)
        assert tuple(whole.shape) == source.shapes[key]
        for start, stop in ((0, 1), (5, 700), (len(whole) - 3, len(whole))):
            assert torch.equal(source.slice(key, 0, start, stop), whole[start:stop])
    assert torch.equal(
        source.slice("lm_head.weight", 1, 3, 9), source.read("lm_head.weight")[:, 3:9]
    )


def row_of(subject: PlacedModel, n: int, context: int, ratio: float = 1.0) -> Forward:
    """A row of one turn, in which a forward took `ratio` seconds, and one token a second."""
    return subject.row(n, context, LIMITS, [Turn({n: ratio}, {n: ratio}, LIMITS)])


@given(st.sampled_from(sorted(SHAPES)), st.floats(0.5, 4.0), st.integers(0, 65536))
def test_predicted_rows_obey_the_roof(name: str, width: float, context: int) -> None:
    """Decoding computes two FLOP for each weight that it reads, times rise with tokens, no forward is
    above the roof, and memory bounds what is below the ridge."""
    subject = PlacedModel(TARGET, name, "bf16", Traffic(SHAPES[name], width, 2.0))
    rows = [row_of(subject, n, context) for n in (1, 2, 8, 64, 512)]
    layers, _ = subject.traffic.alone(1, context)
    assert layers.intensity == pytest.approx(2 / width)
    times = [row.predicted_seconds for row in rows]
    assert times == sorted(times)
    ratios = [row.predicted_ratio for row in rows]
    assert ratios == pytest.approx([time / times[0] for time in times])
    for row in rows:
        roofed = min(LIMITS.peak, row.intensity * LIMITS.bandwidth)
        assert row.flops / row.predicted_seconds <= roofed * (1 + 1e-9)
        assert (row.bound == "memory") == (row.intensity < LIMITS.ridge_point)
    assert LIMITS.ridge_point == LIMITS.peak / LIMITS.bandwidth


def test_a_row_pairs_times_turn_by_turn() -> None:
    """A turn at half the speed counts like any other."""
    subject = PlacedModel(TARGET, "tiny", "bf16", traffic_of(build("tiny", "bf16")))
    turns = [
        Turn({1: 1.0 * slow, 4: 1.5 * slow}, {4: 1.5}, Limits(1e9 / slow, 1e11 / slow))
        for slow in (1, 2, 2)
    ]
    row = subject.row(4, 16, LIMITS, turns)
    assert (row.seconds, row.ratio) == (3.0, 1.5)
    assert row.share_of_bandwidth == pytest.approx(row.bytes / 1.5 / 1e9)
    assert row.share_of_peak == pytest.approx(row.flops / 1.5 / 1e11)


@pytest.mark.parametrize(
    ("ratios", "most"),
    [
        ({1: 1.0, 2: 1.02, 4: 1.19, 8: 1.3}, 4),
        ({1: 1.0, 2: 1.21, 4: 1.05, 8: 1.3}, 1),
        ({1: 1.0, 2: 1.0, 8: FREE_UP_TO}, 8),
    ],
)
def test_checking_is_free_until_it_is_not(ratios: dict[int, float], most: int) -> None:
    subject = PlacedModel(TARGET, "tiny", "bf16", traffic_of(build("tiny", "bf16")))
    rows = [row_of(subject, n, 16, ratio) for n, ratio in ratios.items()]
    assert free_tokens(rows) == most


def measured(**changes: Any) -> Roofline:
    request = replace(SMALL, **changes)
    return measure(request, *load_models(request))


def test_measured_rows() -> None:
    roofline = measured()
    keys = [(row.role, row.context, row.n) for row in roofline.rows]
    assert keys == [
        *((TARGET, context, n) for context in (16, 64) for n in (1, 4)),
        *((DRAFT, context, 1) for context in (16, 64)),
    ]
    for row in roofline.rows:
        assert row.seconds > 0
        assert row.n > 1 or row.ratio == 1
        assert row.predicted_seconds > 0
    assert {row.precision for row in roofline.rows} == {"bf16", "int8"}
    assert set(roofline.peaks) == {"bf16", "int8"}
    assert Machine().stream_bytes >= 4 * roofline.facts["last_level_cache_bytes"]
    assert roofline.draft_in_round is not None
    assert roofline.draft_in_round > 0


def test_the_result_is_json() -> None:
    roofline = measured()
    result = report_of(roofline)
    content = json.loads(json.dumps({**result.facts, "rows": result.rows}, allow_nan=False))
    assert set(content["rows"][0]) == set(Forward.__dataclass_fields__)
    one, four = roofline.rows[2:4]
    assert (one.n, four.n, one.context, four.context) == (1, 4, 64, 64)
    assert roofline.seconds(four) == one.seconds * four.ratio
    limits = content["limits"]
    assert limits["ridge_point"] == pytest.approx(
        limits["peak_flops"] / limits["bandwidth_bytes_per_second"]
    )


@pytest.mark.parametrize("backend", ["torch", "kernels"])
def test_every_backend_is_timed(backend: str, tmp_path: Path) -> None:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        vocab_size=96, max_position_embeddings=256,
    )  # fmt: skip
    GPTNeoXForCausalLM(config).save_pretrained(tmp_path / "neox")
    models = ["tiny"] if backend == "kernels" else ["tiny", str(tmp_path / "neox")]
    for name in models:
        model = ModelOptions(name, placement=Placement("fp32", "cpu", backend), threads=1)
        request = replace(SMALL, model=model, draft_model=None, contexts=(16,))
        target, draft = load_models(request)
        roofline = measure(request, target, draft)
        shape = traffic_of(target).shape
        values = shape.shared_parameters + 17 * shape.cache_values_per_token
        assert roofline.rows[0].bytes == pytest.approx(4 * values)
        assert roofline.draft_in_round is None


def test_without_the_instruction_the_peak_is_what_a_prefill_reaches() -> None:
    model, machine = build("tiny", "bf16"), Machine()
    machine.multiply = lambda precision: None  # type: ignore[method-assign]
    rows = time_forwards([TimedModel(TARGET, model, (1, 4))], (16,), 1, limits_of(machine))
    assert 0 < rows[0].peak < math.inf


def test_experts_that_forwards_read() -> None:
    assert experts_note(SHAPES["mixtral-8x7b"], [1, 2, 64]) == [
        "A token calls 2 of the 8 experts of a layer: forwards of 1, 2, 64 tokens read up to "
        "2, 4, 8 of them."
    ]
    assert experts_note(SHAPES["llama-2-7b"], [1, 2]) == []


def test_devices_by_the_names_of_their_drivers() -> None:
    names = {
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA A100-SXM4-80GB": "a100",
        "NVIDIA GeForce RTX 4090": "rtx-4090",
        "NVIDIA L40S": "l40s",
        "NVIDIA L4": "l4",
        "AMD Instinct MI300X": "mi300x",
    }
    assert {name: hardware_called(name).name for name in names} == names
    with pytest.raises(ConfigError, match=r"RTX 5070.*simulate --bandwidth"):
        hardware_called("NVIDIA GeForce RTX 5070")


def on_h100() -> Roofline:
    """Forwards as fast as the limits of an H100 allow, and a draft's."""
    limits = Limits(HARDWARE["h100"].bandwidth, HARDWARE["h100"].peak("bf16"))
    rows = []
    for role, name, tokens in (
        (TARGET, "llama-3.1-8b", (1, 2, 8, 64)),
        (DRAFT, "llama-3.2-1b", (1,)),
    ):
        subject = PlacedModel(role, name, "bf16", Traffic(SHAPES[name], 2.0, 2.0))
        times = {n: float(limits.seconds(*subject.traffic.alone(n, 128))) for n in tokens}
        turn = Turn(times, {n: times[n] / times[1] for n in tokens}, limits)
        rows += [subject.row(n, 128, limits, [turn]) for n in tokens]
    return Roofline("h100", rows, draft_in_round=1e-3)


def test_the_plot_shows_every_forward_below_the_roof() -> None:
    roofline = on_h100()
    chart = roof(roofline)
    shown = [dot for dots in chart.dots.values() for dot in zip(dots.x, dots.y, strict=True)]
    expected = [(row.intensity, row.flops / row.seconds) for row in roofline.rows]
    assert np.allclose(shown, expected, rtol=1e-12)
    figure = figure_of([chart])
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    texts = [text.get_text() for text in axes.texts]
    assert any("ridge 295 FLOP/byte" in text for text in texts)
    assert any("989 TFLOP/s" in text for text in texts)
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "decode",
        "verify n tokens, at most 1.2 x",
        "draft",
    ]
    inside = axes.get_window_extent()
    assert all(
        inside.contains(*text.get_window_extent().get_points().mean(axis=0)) for text in axes.texts
    )


def test_the_words_say_what_the_rows_do() -> None:
    roofline = on_h100()
    answers = " ".join(map(str, report_of(roofline).answers))
    for words in ("memory bounds it", "ridge at 295", "up to 64 tokens", "right after the target"):
        assert words in answers
    dear = [replace(row, ratio=1.0 if row.n == 1 else 2.0) for row in roofline.rows]
    answers = " ".join(map(str, report_of(replace(roofline, rows=dear)).answers))
    assert "for no second token" in answers
    assert "8 tokens cost 2.0 x" in answers


@pytest.mark.parametrize("change", [{"rounds": 0}, {"tokens": (0,)}, {"contexts": (-1,)}])
def test_bad_requests(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RooflineRequest(**change)


def test_bad_models() -> None:
    with pytest.raises(UnknownNameError, match="llama-110m"):
        build("llama-111m", "bf16")
    longer = shapes.MAX_CONTEXT
    with pytest.raises(ConfigError, match=rf"tiny takes {longer} tokens.*--contexts"):
        measured(contexts=(longer,))
    assert str(longer) in measured(contexts=(16, longer)).notes[0]


def test_a_filled_cache_is_read() -> None:
    """Logits behind a filled cache are finite and differ from those without."""
    model = build("tiny", "fp32")
    timer = Forwards(model, 32, 4)
    assert timer.once(4) > 0
    assert timer.cache.length(0) == 32
    filled = run(model, timer.cache, [[5]]).logits
    empty = run(model, model.new_cache(1, 40), [[5]]).logits
    assert filled.isfinite().all()
    assert not torch.equal(filled, empty)
    long = Forwards(model, 600, 4)
    once = run(model, long.cache, [[5]]).logits
    # A row that held more than a segment gives its memory back before it is filled again.
    _native.kernels.fill_cache(long.cache.native, 0, 600)  # type: ignore[attr-defined]
    assert torch.equal(run(model, long.cache, [[5]]).logits, once)
    with pytest.raises(RuntimeError):
        _native.kernels.fill_cache(timer.cache.native, 0, 10_000)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("tiny_shapes")
def test_timed_forwards_draw_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal tokens would call the same experts, in one forward and in the next."""
    model, seen = build("tiny", "fp32"), list[tuple[int, ...]]()
    forward = model.forward

    def watched(batch: Batch, cache: Any) -> ForwardOutput:
        seen.append(tuple(batch.token_ids[0]))
        return forward(batch, cache)

    timer = Forwards(model, 32, 8)
    monkeypatch.setattr(model, "forward", watched)
    timer.pairs(8)
    many = [ids for ids in seen if len(ids) == 8]
    assert min(len(set(ids)) for ids in many) > 4
    assert len(set(many)) == len(many) > 1


def test_stored_weights_are_those_of_gguf_files(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path)
    assert build(str(path), "stored").precision == "stored"
    for name in ("zoo-draft", "llama-110m"):
        with pytest.raises(ConfigError, match=f"{name} is not quantized"):
            build(name, "stored")


def test_rows_are_flat() -> None:
    row = row_of(PlacedModel(TARGET, "tiny", "bf16", traffic_of(build("tiny", "bf16"))), 1, 0)
    assert not any(isinstance(value, dict | list) for value in asdict(row).values())
