"""A tiny target and a draft model with a tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCAB_SIZE = 300
CONTEXT = 16384


def save_pair(root: Path) -> tuple[str, str]:
    """Directories of a target and of a draft model: the target with some noise."""
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
