"""The recipe of the exit adapters, on a tiny target."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from forerun.drafters.exits.exit_adapter import ExitAdapter
from forerun.drafters.layer_skip import LayerSkipDrafter
from forerun.errors import TrainingError
from forerun.models import load_model
from forerun.training.windows import Phase
from recipes import exit_adapter
from recipes.exit_adapter import FrozenTarget, evaluate, new_adapters, publish, train
from tests.helpers.forwards import run

VOCAB = 64


@pytest.fixture(scope="module")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=4, intermediate_size=48,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=128,
        tie_word_embeddings=True, initializer_range=0.3, dtype="float32",
    )  # fmt: skip
    path = tmp_path_factory.mktemp("target")
    Qwen3ForCausalLM(config).save_pretrained(path)
    return path


def text(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, count).astype(np.uint16)


def test_states_are_those_of_the_first_layers(target_path: Path) -> None:
    target = FrozenTarget(target_path, (1, 3), "cpu")
    ids = torch.from_numpy(text(20).astype(np.int64))[None]
    exits = target.run(ids)
    model = load_model(target_path, dtype="fp32", backend="torch")
    cache = model.new_cache(1, 20)
    found = run(model, cache, ids, hidden_layers=(1, 3))
    torch.testing.assert_close(exits.logits, found.logits, rtol=1e-3, atol=1e-3)
    for layer in (1, 3):
        torch.testing.assert_close(exits.hidden[layer], found.hidden[layer], rtol=1e-3, atol=1e-3)
        logits = model.lm_head(model.final_norm(found.hidden[layer]))
        torch.testing.assert_close(target.head(exits.hidden[layer]), logits, rtol=1e-3, atol=1e-3)


def test_training_publishes_adapters_that_agree_more(target_path: Path, tmp_path: Path) -> None:
    target = FrozenTarget(target_path, (1, 2), "cpu")
    settings = replace(
        exit_adapter.SETTINGS,
        max_tokens=40_000,
        batch_tokens=2048,
        micro_batch_tokens=1024,
        phases=(Phase(1.0, 64),),
        matrix_learning_rate=0.05,
    )
    held_out = text(1200, seed=1)
    before = evaluate(target, new_adapters(target), held_out)
    # They start as the identity.
    assert before["exit-1"]["adapter"] == before["exit-1"]["plain"]
    adapters = train(tmp_path, text(20_000), target, settings)
    report = evaluate(target, adapters, held_out)
    for name in ("exit-1", "exit-2"):
        assert report[name]["plain"] == before[name]["plain"]
        assert report[name]["adapter"]["nats"] < 0.9 * report[name]["plain"]["nats"]
        assert report[name]["adapter"]["overlap"] > report[name]["plain"]["overlap"]
    resumed = train(tmp_path, text(20_000), target, settings)
    for name, weight in adapters["1"].state_dict().items():
        assert torch.equal(resumed["1"].state_dict()[name], weight)

    publish(tmp_path / "out", target, adapters, report)
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report
    loaded = load_model(target_path, dtype="fp32", backend="torch")
    for layer in (1, 2):
        adapter = ExitAdapter.load(tmp_path / "out" / f"exit-{layer}.safetensors")
        assert (adapter.exit_layer, len(adapter.norm)) == (layer, 32)
        assert adapter.target == target_path.name
        LayerSkipDrafter(loaded, range(layer, 4), adapter)


@pytest.mark.parametrize("layers", [(), (0,), (2, 4)])
def test_exits_outside_the_target(layers: tuple[int, ...], target_path: Path) -> None:
    with pytest.raises(TrainingError, match="give some from 1 to 3"):
        FrozenTarget(target_path, layers, "cpu")
