"""The config in a GGUF file, with llama.cpp's defaults for what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor
from transformers import AutoConfig

from forerun.errors import CheckpointError, ModelError, UnsupportedModelError
from forerun.models import Checkpoint, Placement
from tests.helpers.forwards import run
from tests.helpers.gguf_files import SIZES, write_model
from tests.helpers.tiny_models import random_model

TEXT = [5, 9, 200, 31, 77, 5, 9, 254, 13, 13, 90, 101]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def logits_of(path: Path) -> Tensor:
    opened = Checkpoint.open(path)
    model = opened.load(opened.run_config(Placement("fp32", "cpu")))
    return run(model, model.new_cache(1, 32), [TEXT]).logits


def published_logits(**values: Any) -> Tensor:
    """Of the model that `write_model` stores, with a config as it is published."""
    with torch.no_grad():
        found: Tensor = random_model(AutoConfig.for_model("llama", **SIZES | values))(
            torch.tensor([TEXT])
        ).logits
    return found


def check(logits: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 * expected.std().item())


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}


@pytest.mark.parametrize(
    "values",
    [
        {"rms_norm_eps": 0.05},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"head_dim": 32},
        {"tie_word_embeddings": True},
    ],
)
def test_numbers_are_those_of_the_file(values: dict[str, Any], path: Path) -> None:
    sizes = {key: value for key, value in values.items() if key != "tie_word_embeddings"}
    write_model(path, kind=Kind.F32, tied="tie_word_embeddings" in values, **sizes)
    check(logits_of(path), published_logits(**values))
    assert not torch.allclose(logits_of(path), published_logits(), atol=1e-2)


@pytest.mark.parametrize(
    ("metadata", "rope"),
    [
        ({"factor": 4.0}, {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
        ({"type": "linear", "factor": 0.0}, {"rope_type": "default", "rope_theta": 1e4}),
        ({"type": "none", "factor": 4.0}, {"rope_type": "default", "rope_theta": 1e4}),
        (
            {"type": "yarn", "factor": 4.0, "attn_factor": 1.0},
            YARN | {"original_max_position_embeddings": 128},
        ),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32, "yarn_beta_fast": 16.0},
            YARN | {"original_max_position_embeddings": 32, "beta_fast": 16.0},
        ),
    ],
)
def test_scaling_of_the_rotary_embedding(
    metadata: dict[str, Any], rope: dict[str, Any], path: Path
) -> None:
    scaling = {f"llama.rope.scaling.{key}": value for key, value in metadata.items()}
    write_model(path, kind=Kind.F32, metadata=scaling)
    check(logits_of(path), published_logits(rope_parameters=rope))


def test_scaling_by_its_old_key(path: Path) -> None:
    write_model(path, kind=Kind.F32, metadata={"llama.rope.scale_linear": 4.0})
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    check(logits_of(path), published_logits(rope_parameters=rope))


@pytest.mark.parametrize(
    "biases", [("attention_bias",), ("mlp_bias",), ("attention_bias", "mlp_bias")]
)
def test_models_with_biases(biases: tuple[str, ...], path: Path) -> None:
    values: dict[str, Any] = dict.fromkeys(biases, True)
    write_model(path, kind=Kind.F32, **values)
    check(logits_of(path), published_logits(**values))


def test_biases_of_queries_keys_and_values_alone(path: Path) -> None:
    outputs = tuple(f"blk.{layer}.attn_output.bias" for layer in range(2))
    write_model(path, kind=Kind.F32, attention_bias=True, without=outputs)
    model = random_model(AutoConfig.for_model("llama", **SIZES, attention_bias=True))
    for layer in model.model.layers:
        layer.self_attn.o_proj.bias = None
    with torch.no_grad():
        expected = model(torch.tensor([TEXT])).logits
    check(logits_of(path), expected)


@pytest.mark.parametrize(
    "key",
    [
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_what_has_no_default(key: str, path: Path) -> None:
    write_model(path, without=(f"llama.{key}",))
    with pytest.raises(CheckpointError, match=f"lacks llama.{key}"):
        Checkpoint.open(path)


@pytest.mark.parametrize("value", ["2", 2.0, [2, 2], 2**32 - 1])
def test_a_number_of_layers_that_no_model_has(value: object, path: Path) -> None:
    """Nothing is allocated for it."""
    write_model(path, metadata={"llama.block_count": value})
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        Checkpoint.open(path)


@pytest.mark.parametrize("family", ["llama", "phi3", "phi3-long"])
@pytest.mark.parametrize("key", ["attention.head_count", "rope.dimension_count"])
@pytest.mark.parametrize("value", ["x", [4, 4], 2**31, float("nan")])
def test_numbers_of_heads_that_no_model_has(
    family: str, key: str, value: object, path: Path
) -> None:
    """The rotary embedding is computed with them, whatever they are."""
    write_model(path, family, metadata={f"{family.partition('-')[0]}.{key}": value})
    with pytest.raises(ModelError, match=r"^.*model\.gguf.*$"):
        Checkpoint.open(path)


def test_as_many_key_heads_as_heads_by_default(path: Path) -> None:
    for family in ("llama", "qwen2", "qwen3"):
        write_model(
            path, family, num_key_value_heads=4, without=(f"{family}.attention.head_count_kv",)
        )
        assert Checkpoint.open(path).architecture.num_kv_heads == 4


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.rope.scaling.type": ["yarn"]}, "scales its rotary embedding by"),
        ({"llama.rope.dimension_count": 32}, "rotates 32 of the 64 values of a head"),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.attn_factor": 0.5},
            r"rope\.scaling\.attn_factor.*not read",
        ),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.yarn_ext_factor": 0},
            r"rope\.scaling\.yarn_ext_factor.*not read",
        ),
    ],
)
def test_rotary_embeddings_that_are_not_read(
    metadata: dict[str, Any], message: str, path: Path
) -> None:
    write_model(path, metadata=metadata)
    with pytest.raises(UnsupportedModelError, match=message):
        Checkpoint.open(path)


def test_rotary_embeddings_of_other_families(path: Path) -> None:
    """Phi-3's factors for long texts in a file of Llama's, and Llama's scaling in one of Phi-3's."""
    factors = {
        f"rope_factors_{length}.weight": np.ones(32, np.float32) for length in ("short", "long")
    }
    original = "rope.scaling.original_context_length"
    write_model(path, metadata={f"llama.{original}": 64}, more=factors)
    with pytest.raises(
        UnsupportedModelError, match="llama whose layers or rotary embedding are not"
    ):
        Checkpoint.open(path)
    yarn = {"type": "yarn", "factor": 4.0}
    write_model(path, "phi3", metadata={f"phi3.rope.scaling.{key}": yarn[key] for key in yarn})
    with pytest.raises(
        UnsupportedModelError, match="phi3 whose layers or rotary embedding are not"
    ):
        Checkpoint.open(path)


@pytest.mark.parametrize("factors", [[1.0] * 16, [0.0] * 32, [float("nan")] * 32, [1.0]])
def test_wrong_factors_on_the_rotary_frequencies(factors: list[float], path: Path) -> None:
    write_model(path, more={"rope_freqs.weight": np.array(factors, np.float32)})
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight must hold 32 positive numbers"):
        _ = Checkpoint.open(path).architecture


@pytest.mark.parametrize(
    ("text", "kind", "named", "expected"),
    [
        ("<|eot_id|>", 3, {}, {1, 299}),
        ("<|im_end|>", 3, {}, {1, 299}),
        ("<|end|>", 3, {}, {1, 299}),
        ("<end_of_turn>", 3, {}, {1, 299}),
        ("<|im_end|>", 3, {"tokenizer.ggml.eot_token_id": 7}, {1, 7, 299}),
        ("<|im_end|>", 1, {}, {1, 299}),
        ("<|im_start|>", 3, {}, {1}),
        ("<|return|>", 1, {}, {1, 299}),
        ("<turn|>", 3, {}, {1, 299}),
        (
            "<|im_end|>",
            3,
            {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 2},
            {1, 2, 299},
        ),
    ],
)
def test_ends_are_known_by_their_text(
    text: str, kind: int, named: dict[str, Any], expected: set[int], path: Path
) -> None:
    """As llama.cpp knows them: whatever the file names beside them, and of any type."""
    write_model(path)
    known = Checkpoint.open(path).header.metadata  # type: ignore[attr-defined]
    changed = {
        "tokenizer.ggml.tokens": [*known["tokenizer.ggml.tokens"][:-1], text],
        "tokenizer.ggml.token_type": [*known["tokenizer.ggml.token_type"][:-1], kind],
    }
    write_model(path, metadata=changed | named)
    assert Checkpoint.open(path).eos_token_ids == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("<|return|>", "<|call|>", "<|end|>"), {1, 297, 298}),
        (("<|calls|>", "<|flush|>", "<|end|>"), {1, 297, 298}),
        (("<|return|>", "<|end|>", "</s>"), {297, 298, 299}),
        (("<|tool_response>", "<turn|>", "</s>"), {1, 297, 298}),
    ],
)
def test_some_ends_end_only_a_part_of_the_text_beside_others(
    texts: tuple[str, ...], expected: set[int], path: Path
) -> None:
    """As the parts of an answer of gpt-oss do; token 1, the file's own end, is named otherwise."""
    write_model(path)
    tokens = list(Checkpoint.open(path).header.metadata["tokenizer.ggml.tokens"])  # type: ignore[attr-defined]
    tokens[1], tokens[-3:] = "<end>", texts
    write_model(path, metadata={"tokenizer.ggml.tokens": tokens})
    assert Checkpoint.open(path).eos_token_ids == {1, *expected}


def test_what_is_recommended_and_not_used_is_said(path: Path) -> None:
    said = {"general.sampling.temp": 0.5, "general.sampling.mirostat": 2}
    write_model(path, metadata=said)
    opened = Checkpoint.open(path)
    assert opened.sampling_defaults == {"temperature": 0.5}
    assert opened.notes == ("Recommended sampling that is not used: general.sampling.mirostat.",)


@pytest.mark.parametrize(
    ("values", "without", "message"),
    [
        ({"expert_count": 0}, (), "qwen3moe with 0 experts"),
        ({"expert_count": 5}, (), r"mlp.gate.weight has shape \[6, 256\]"),
        ({"expert_count": 1 << 20}, (), "num_experts is 1048576"),
        ({"expert_used_count": 7}, (), "experts_per_token is 7; with 6 experts"),
        ({"expert_used_count": 0}, (), "experts_per_token is 0"),
        ({}, ("expert_used_count",), "lacks qwen3moe.expert_used_count"),
        ({}, ("expert_feed_forward_length",), "expert_feed_forward_length"),
        ({"expert_feed_forward_length": 128}, (), r"has shape \[256, 256\]"),
        ({}, ("blk.1.ffn_gate_inp.weight",), "lacks model.layers.1.mlp.gate.weight"),
    ],
)
def test_wrong_numbers_of_experts(
    values: dict[str, int], without: tuple[str, ...], message: str, path: Path
) -> None:
    without = tuple(name if "blk" in name else f"qwen3moe.{name}" for name in without)
    metadata = {f"qwen3moe.{key}": value for key, value in values.items()}
    write_model(path, "qwen3moe", Kind.F32, metadata=metadata, without=without)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message) as refusal:
        logits_of(path)
    assert "\n" not in str(refusal.value)
