"""The key maps cover exactly what is published, and can be undone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun.errors import CheckpointError
from forerun.models import Checkpoint, describe
from forerun.models.architecture import native, read_architecture
from forerun.models.layouts import layout_of
from forerun.models.sources import TensorSource, read_weights
from tests.helpers.gguf_files import experts_apart
from tests.helpers.published_configs import PUBLISHED
from tests.helpers.tiny_models import NATIVE, tiny_config, tiny_model


@pytest.fixture(params=PUBLISHED)
def published(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, int]:
    """A published config, read from its config.json, and its number of parameters."""
    values, parameters = PUBLISHED[request.param]
    (tmp_path / "config.json").write_text(json.dumps(values))
    return Checkpoint.open(tmp_path).config, parameters


def published_state(model: Any) -> dict[str, torch.Tensor]:
    """A model's tensors as files hold them: transformers stacks experts when it loads them."""
    from transformers.core_model_loading import revert_weight_conversion

    state: dict[str, torch.Tensor] = model.state_dict()
    if hasattr(model.config, "num_experts_per_tok"):
        state = revert_weight_conversion(model, state)
    if model.config.model_type != "gpt_oss":
        return state
    single: dict[str, torch.Tensor] = {}
    for key, tensor in state.items():
        for name, stack in experts_apart(key, tensor) if ".experts." in key else ():
            ahead, behind = name.split(".experts.")
            single |= {f"{ahead}.experts.{n}.{behind}": part for n, part in enumerate(stack)}
    return {key: tensor for key, tensor in state.items() if ".experts." not in key} | single


def meta_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Shapes by key of the model of transformers; a tied head is left out."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {key: tuple(tensor.shape) for key, tensor in published_state(model).items()}
    if config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    return shapes


def test_published_keys_and_shapes(published: tuple[Any, int]) -> None:
    config, parameters = published
    layout = layout_of(read_architecture(config))
    assert layout.published == meta_shapes(config)
    assert layout.num_parameters() == describe(config).parameters == parameters


def test_published_rotations(published: tuple[Any, int]) -> None:
    """Old config.json files say rope_theta and rope_scaling; the table is that of transformers."""
    from transformers import AutoModelForCausalLM

    from forerun.models.rope import RotaryTable, frequencies

    config, _ = published
    if config.model_type == "gpt2":  # has learned positions
        return
    config.num_hidden_layers, config.vocab_size, config.hidden_size = 1, 8, 64
    config.intermediate_size, config.layer_types = 8, ["full_attention"]
    shape = read_architecture(config)
    rotary = AutoModelForCausalLM.from_config(config).model.rotary_emb
    positions = torch.tensor([[0, 1, 17, 4095, 30000]])
    wanted = rotary(torch.zeros(1), positions)
    table = RotaryTable(*frequencies(shape), torch.float32, torch.device("cpu"))
    for mine, theirs in zip(table.at(positions, 30000)[:2], wanted, strict=True):
        torch.testing.assert_close(mine[:, 0], theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NATIVE)
def test_tiny_keys_and_shapes(name: str) -> None:
    config = tiny_config(name)
    assert layout_of(read_architecture(config)).published == meta_shapes(config)


@pytest.mark.parametrize("name", NATIVE)
def test_fused_tensors_hold_the_published_ones(name: str) -> None:
    state = published_state(tiny_model(name))
    layout = layout_of(read_architecture(tiny_config(name)))
    source = TensorSource(state, name)
    ours = read_weights(source, layout, torch.float32, torch.device("cpu"))
    assert {tensor.name: tensor.shape for tensor in layout.tensors} == {
        key: tuple(tensor.shape) for key, tensor in ours.items()
    }
    for tensor in layout.tensors:
        pieces = torch.split(ours[tensor.name], [part.rows for part in tensor.parts])
        for part, piece in zip(tensor.parts, pieces, strict=True):
            held = state[part.key] + tensor.offset if tensor.offset else state[part.key]
            assert torch.equal(piece.t() if part.transposed else piece, held)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
        ("llama", {"hidden_act": "mish"}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("gpt2", {"add_cross_attention": True}),
        ("gpt_neox", {}),
    ],
)
def test_variants_that_our_decoders_do_not_run(name: str, change: dict[str, Any]) -> None:
    config = tiny_config(name)
    for key, value in change.items():
        setattr(config, key, value)
    assert not native(config)


def test_wrong_head_counts_are_refused() -> None:
    config = tiny_config("llama")
    config.num_key_value_heads = 3
    with pytest.raises(CheckpointError, match="must be a multiple of num_key_value_heads, 3"):
        read_architecture(config)
