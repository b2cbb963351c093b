"""A tiny pair of models with a tokenizer, and ways to run the command line on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tests.helpers.command_line import Cli, Write

VOCAB_SIZE = 300
CONTEXT = 16384


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of the machine reaches a test, and no test takes all cores."""
    for name in list(os.environ):
        kept = name in ("FORERUN_CACHE", "FORERUN_KERNELS")
        if (name.startswith("FORERUN_") and not kept) or name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["def add(a, b):\n    return a + b\n"] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Directories of a target and of a draft model: the target with some noise."""
    root = tmp_path_factory.mktemp("models")
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    torch.manual_seed(7)
    model = Qwen3ForCausalLM(config).eval()
    tokenizer = _tokenizer()
    for name in ("target", "draft"):
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.02 * torch.randn_like(weight)
    return str(root / "target"), str(root / "draft")


@pytest.fixture
def cli(pair: tuple[str, str]) -> Cli:
    return Cli(*pair)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(name, content)` makes a file and returns its path."""

    def make(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return make
