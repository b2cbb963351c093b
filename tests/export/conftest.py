"""A tiny target of eight layers, and a text of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from forerun.contracts import CausalLM
from forerun.export.replay import ObservedText, go_on, observe
from forerun.models import load_model
from tests.helpers.published_heads import HIDDEN, INNER, LAYERS, THETA, VOCAB


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the target that the heads of `published_heads` are for."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def model(tiny: Path) -> CausalLM:
    return load_model(tiny, backend="torch", dtype="fp32")


@pytest.fixture(scope="session")
def text(model: CausalLM) -> ObservedText:
    return observe(model, go_on(model, [5, 9, 31, 7], 32), range(LAYERS + 1))
