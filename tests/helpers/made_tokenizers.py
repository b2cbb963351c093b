"""Tokenizers of several kinds, made in place, and texts to try them on."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from forerun.drafters.translation import Retokenizer, SpelledVocabulary

PROSE = [
    "The quick brown fox jumps over the lazy dog, and then the dog sleeps.",
    "She sells sea shells by the sea shore; the shells that she sells are shells.",
]
CODE = [
    "def add(first, second):\n    return first + second\n\n\nfor index in range(10):\n    print(index)",
    "the dog sleeps: 日本語 naïve",
]
HARD = [
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "日本",
    "語",
    "🙂",
    "👩‍👩‍👧",
    "é",
    "naïve",
    "don't",
    "!\n",
    "x=1",
    "\u3000",
]
WORDS = [*PROSE[0].split(), *PROSE[1].split(), "add(first)", "range(10):", "return"]


def fast(backend: Tokenizer, **special: str) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def byte_level(size: int, lines: list[str], end: str) -> Any:
    """In the manner of GPT-2."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[end], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(lines * 3, trainer)
    return fast(backend, eos_token=end)


def spelled(size: int, lines: list[str]) -> Any:
    """In the manner of Llama 2: a mark for spaces, one put before a text, bytes where nothing else is."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.train_from_iterator(
        lines * 3, trainers.BpeTrainer(vocab_size=size, show_progress=False)
    )
    learned = json.loads(backend.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += sorted(learned["vocab"], key=lambda name: learned["vocab"][name])
    vocabulary = {name: number for number, name in enumerate(names)}
    merges = [tuple(merge) for merge in learned["merges"]]
    model = models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    backend = Tokenizer(model)
    replace = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    backend.add_special_tokens(list(special.values()))
    backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return fast(backend, **special)


def words(names: list[str]) -> Any:
    """Whole words, joined by spaces."""
    backend = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, names[0]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return fast(backend)


TOKENIZERS = {
    "bytes": byte_level(400, PROSE, "<|end|>"),
    "more bytes": byte_level(520, PROSE + CODE, "<eos>"),
    "marks": spelled(150, PROSE),
    "more marks": spelled(230, PROSE + CODE),
}
PAIRS = [(one, other) for one in TOKENIZERS for other in TOKENIZERS if one != other]
pairs = pytest.mark.parametrize(("target", "draft"), PAIRS, ids=map(" to ".join, PAIRS))
# Without the mark that the tokenizers of Llama's manner write for a space.
some_text = st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"]), max_size=4)
texts = st.lists(st.sampled_from(HARD + WORDS) | some_text, max_size=25).map("".join)


def encode(name: str, text: str) -> list[int]:
    ids: list[int] = TOKENIZERS[name].encode(text, add_special_tokens=False)
    return ids


def decode(name: str, ids: list[int]) -> str:
    return str(TOKENIZERS[name].decode(ids, skip_special_tokens=True))


def opening(name: str) -> list[int]:
    return [1] if "marks" in name else []


vocabulary_of = cache(SpelledVocabulary)  # which nothing changes


def retokenizer_of(tokenizer: Any, draft_tokenizer: Any) -> Retokenizer:
    """For a draft model that knows all tokens of its tokenizer."""
    draft_vocab_size = len(draft_tokenizer)
    return Retokenizer(vocabulary_of(tokenizer), vocabulary_of(draft_tokenizer), draft_vocab_size)
