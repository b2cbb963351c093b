"""Models in GGUF files: the numbers of the file, whoever reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

import forerun
from forerun import _native
from forerun.errors import CheckpointError, UnsupportedModelError
from forerun.models import Checkpoint, Placement
from forerun.models.architecture import for_context, read_architecture
from forerun.models.layouts import layout_of
from forerun.models.rope import frequencies
from tests.helpers.forwards import run
from tests.helpers.gguf_files import (
    BLOCKS,
    EXACT,
    FAMILIES,
    KINDS,
    OTHERS,
    SIZES,
    VOCAB,
    read_by_transformers,
    write_model,
)
from tests.helpers.kernel_models import needs_kernels
from tests.helpers.tiny_models import random_model

TEXT = [5, 9, 200, 31, 77, 5, 9, 254, 13, 13, 90, 101]
CASES = [("llama", kind, kind is Kind.Q8_0) for kind in KINDS]
CASES += [(family, kind, False) for family in FAMILIES[1:] for kind in (Kind.Q8_0, Kind.Q4_K)]
MORE = [(family, kind, True) for family in FAMILIES[1:] for kind in KINDS]


def cases() -> list[Any]:
    slow = [pytest.param(*case, marks=pytest.mark.slow) for case in MORE]
    return [*CASES, *slow]


def logits_of(path: Path, dtype: str, backend: str = "auto") -> Tensor:
    opened = Checkpoint.open(path)
    model = opened.load(opened.run_config(Placement(dtype, "cpu", backend)))
    return run(model, model.new_cache(1, 32), [TEXT]).logits


def error_of(path: Path, dtype: str, backend: str = "auto") -> float:
    """How far logits are from those of the file's numbers in float32, by their root mean square."""
    difference = logits_of(path, dtype, backend) - logits_of(path, "fp32")
    return difference.square().mean().sqrt().item()


@pytest.mark.parametrize(("family", "kind", "tied"), cases())
def test_logits_are_those_of_transformers(
    family: str, kind: Kind, tied: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    config = write_model(path, family, kind, tied=tied)
    with torch.no_grad():
        expected = read_by_transformers(path, config)(torch.tensor([TEXT])).logits
    for backend in ("torch", "kernels") if _native.AVAILABLE else ("torch",):
        logits = logits_of(path, "fp32", backend)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 * expected.std().item())


@pytest.mark.parametrize("family", OTHERS)
def test_families_with_numbers_of_their_own(family: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    config = write_model(path, family, Kind.F32, tied=True)
    with torch.no_grad():
        expected = random_model(config)(torch.tensor([TEXT])).logits
    for backend in ("torch", "kernels") if _native.AVAILABLE else ("torch",):
        logits = logits_of(path, "fp32", backend)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 * expected.std().item())


@needs_kernels
@pytest.mark.parametrize("kind", [*EXACT, *BLOCKS])
def test_blocks_on_the_kernels_are_those_of_the_file(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, kind=kind)
    opened = Checkpoint.open(path)
    placed = opened.run_config(Placement(device="cpu"))
    assert placed.precision == "stored"
    model = opened.load(placed)
    needed = opened.summary.weight_bytes["stored"]
    assert needed == pytest.approx(model.weight_bytes, rel=0.01)  # type: ignore[attr-defined]
    # The embedding is looked into, so its very numbers come out.
    tensor = opened.header.tensors["token_embd.weight"]  # type: ignore[attr-defined]
    expected = torch.from_numpy(gguf.dequantize(tensor.bytes(), kind))
    found = model.embed(torch.arange(VOCAB)[None])[0]
    assert torch.equal(found, expected)
    # Activations are quantized to 8 bits, by groups.
    assert error_of(path, "auto") < 6 * error_of(path, "bf16", "torch")


@needs_kernels
@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.F32])
def test_floats_run_in_the_precision_that_holds_them(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, kind=kind)
    expected = {Kind.F16: "stored", Kind.BF16: "bf16", Kind.F32: "fp32"}[kind]
    assert Checkpoint.open(path).run_config(Placement(device="cpu")).precision == expected
    assert error_of(path, "auto") < 2 * error_of(path, "bf16", "torch")


@pytest.mark.parametrize("kind", [Kind.F16, Kind.Q8_0])
def test_on_a_gpu_halves_stay_what_they_are(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As far as placing a model goes.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    path = tmp_path / "model.gguf"
    write_model(path, kind=kind)
    placed = Checkpoint.open(path).run_config(Placement(device="cuda"))
    assert placed.precision == ("fp16" if kind is Kind.F16 else "bf16")


@needs_kernels
@pytest.mark.parametrize(
    ("kind", "expected"), [(Kind.F16, "int8"), (Kind.F32, "int8"), (Kind.Q4_1, "stored")]
)
def test_a_draft_of_floats_is_quantized(kind: Kind, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, kind=kind)
    opened = Checkpoint.open(path)
    target = opened.run_config(Placement("fp32", "cpu"))
    run = opened.draft_run_config(Placement(), target)
    assert run.precision == expected
    assert opened.load(run).vocab_size == VOCAB


@needs_kernels
@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 6e4])
@pytest.mark.parametrize(("kind", "place"), [(Kind.Q4_1, 2), (Kind.Q4_K, 0), (Kind.Q6_K, 208)])
def test_scales_that_are_not_finite(factor: float, kind: Kind, place: int, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, kind=kind)
    start = Checkpoint.open(path).header.tensors["blk.0.attn_k.weight"].start  # type: ignore[attr-defined]
    content = bytearray(path.read_bytes())
    content[start + place : start + place + 2] = np.float16(factor).tobytes()
    path.write_bytes(content)
    opened = Checkpoint.open(path)
    if factor == 6e4:
        opened.load(opened.run_config(Placement(device="cpu")))
        return
    with pytest.raises(CheckpointError, match=r"qkv\.weight: a scale is not finite"):
        opened.load(opened.run_config(Placement(device="cpu")))
    if kind is not Kind.Q4_1:
        with pytest.raises(CheckpointError, match=r"k_proj\.weight is not finite"):
            _ = opened.held


def mixed(name: str) -> Kind:
    """As in common files: values and the second half of the MLP are finer than the rest."""
    if "attn_v" in name or "ffn_down" in name:
        return Kind.Q6_K
    others = {"token_embd": Kind.Q5_1, "blk.1.attn_q": Kind.F16, "blk.1.ffn_up": Kind.Q8_0}
    return others.get(name.removesuffix(".weight"), Kind.Q4_K)


@needs_kernels
def test_types_may_be_mixed_also_in_one_product(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, kind=mixed)
    opened = Checkpoint.open(path)
    formats = opened.source().formats(layout_of(opened.architecture))  # type: ignore[attr-defined]
    kinds = {"q": "q4_k", "k": "q4_k", "v": "q6_k"}
    for name, precision in kinds.items():
        assert formats[f"model.layers.0.self_attn.{name}_proj.weight"] == precision
    model = opened.load(opened.run_config(Placement(device="cpu")))
    held = sum(entry.held_bytes for entry in opened.held)
    assert model.weight_bytes == pytest.approx(held, rel=0.02)  # type: ignore[attr-defined]
    for entry in opened.held:
        # Five bits with an offset take eight.
        assert entry.held_bytes <= 1.03 * entry.file_bytes or entry.stored == "Q5_1"
    assert error_of(path, "auto") < 6 * error_of(path, "bf16", "torch")


@needs_kernels
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", [Kind.Q4_1, Kind.Q5_0, mixed])
def test_speculation_changes_nothing(kind: Any, tied: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, kind=kind, tied=tied)
    config = forerun.SpeculativeConfig(method="prediction", policy="fixed")
    engine = forerun.load(str(path), config, backend="kernels")
    usual = forerun.SamplingParams(max_tokens=40, ignore_eos=True)
    for params in (replace(usual, temperature=0.0), replace(usual, seed=5)):
        plain = [event.token_id for event in engine.stream_plain(TEXT, params)]
        hints = forerun.Hints(prediction=(*plain[:9], 7, *plain[9:20], 8, 9, *plain[20:]))
        stream = engine.stream(TEXT, params, hints=hints)
        assert [event.token_id for event in stream] == plain
        assert stream.completion.stats.num_accepted_tokens > 10


def test_factors_on_the_rotary_frequencies_are_those_of_llama_3(tmp_path: Path) -> None:
    """llama.cpp stores what the scaling of Llama 3 does to each frequency as a tensor."""
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled = {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    plain, scaling = (
        AutoConfig.for_model("llama", **SIZES, rope_parameters=rope)
        for rope in ({"rope_type": "default", "rope_theta": 1e4}, scaled)
    )
    wanted, _ = ROPE_INIT_FUNCTIONS["llama3"](scaling, torch.device("cpu"))
    usual, _ = frequencies(read_architecture(plain))
    path = tmp_path / "model.gguf"
    write_model(path, kind=Kind.F32, more={"rope_freqs.weight": (usual / wanted).numpy()})
    found, _ = frequencies(Checkpoint.open(path).architecture)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)
    assert not torch.allclose(found, usual)


def test_a_phi_3_file_has_factors_for_short_and_for_long_texts(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    published = read_architecture(write_model(path, "phi3-long", Kind.F32))
    read = Checkpoint.open(path).architecture
    short, long = (
        [frequencies(for_context(shape, length)) for shape in (read, published)]
        for length in (48, 49)
    )
    for (found, scale), (wanted, wanted_scale) in (short, long):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)
        assert scale == pytest.approx(wanted_scale)
    assert not torch.allclose(short[0][0], long[0][0])
    write_model(path, "phi3-long", Kind.F32, metadata={"phi3.rope.scaling.attn_factor": 1.5})
    assert frequencies(Checkpoint.open(path).architecture)[1] == 1.5


def test_sampling_parameters_that_the_file_recommends(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    said = {"temp": 0.7, "top_k": 20, "penalty_repeat": 1.1}
    write_model(path, metadata={f"general.sampling.{key}": value for key, value in said.items()})
    assert Checkpoint.open(path).sampling_defaults == {
        "temperature": 0.7,
        "top_k": 20,
        "repetition_penalty": 1.1,
    }
    write_model(path, metadata={"general.sampling.temp": -1.0})
    with pytest.raises(CheckpointError, match=r"model\.gguf: temperature is -1"):
        _ = Checkpoint.open(path).sampling_defaults


def test_tokens_that_end_a_text_or_a_turn(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    more = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 9}
    write_model(path, metadata=more)
    assert Checkpoint.open(path).eos_token_ids == {1, 7, 9}


def test_what_becomes_of_the_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, kind=mixed)
    held = {(entry.stored, entry.precision): entry for entry in Checkpoint.open(path).held}
    assert held["Q5_1", "int8_offset"].error == 0
    assert held["F32", "fp32"].error == 0
    # q and k beside a v in Q6_K, and a gate beside its values in Q8_0.
    assert (
        held["Q4_K", "q4_k"].error == held["Q6_K", "q6_k"].error == held["Q8_0", "int8"].error == 0
    )
    assert 0 < held["F16", "bf16"].error < 0.003
    total = sum(entry.parameters for entry in held.values())
    assert total == Checkpoint.open(path).summary.parameters


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("a-Q8_0.gguf", Kind.Q8_0, False),
        ("a-Q4_K_M.gguf", Kind.Q4_K, False),
        # Rows that are no blocks of 256.
        ("a.q4_k_m.gguf", Kind.Q5_0, False),
        ("qq4_1-model.gguf", Kind.Q8_0, False),
        ("a-bf16.gguf", Kind.BF16, False),
        ("a-Q4_K_M.gguf", Kind.Q8_0, True),
        ("a-IQ2_XXS.gguf", Kind.Q4_0, True),
        ("a-F16.gguf", Kind.Q8_0, True),
        ("a-Q8_0.gguf", Kind.F32, True),
    ],
)
def test_a_name_that_says_another_quantization(
    name: str, kind: Kind, told: bool, tmp_path: Path
) -> None:
    write_model(tmp_path / name, kind=kind)
    notes = [note for note in Checkpoint.open(tmp_path / name).notes if "matrices" in note]
    assert [(name in note, kind.name in note) for note in notes] == [(True, True)] * told


def test_a_tensor_of_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, more={"blk.0.more.weight": np.ones((4, 32), np.int8)})
    opened = Checkpoint.open(path)
    with pytest.raises(UnsupportedModelError, match=f"{path}: blk.0.more.weight is stored as I8"):
        opened.load(opened.run_config(Placement("fp32", "cpu")))
