"""A tiny model with a chat template, whose answers are letters that are no part of a longer token."""

from __future__ import annotations

import shutil
from pathlib import Path

from transformers import AutoTokenizer

END = "<|endoftext|>"
TEMPLATE = (
    "{% for message in messages %}{{ message.role + ':' + message.content + '" + END + "' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
# Text and tokens of an answer are one another's.
LETTERS = "xyzkqw"


def with_template(model: str, folder: Path) -> str:
    """A copy of a model, in the folder, with the template."""
    path = folder / "chat"
    shutil.copytree(model, path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return str(path)


def usual(target: str) -> tuple[str, ...]:
    """Greedy answers of six letters."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    letters = ",".join(str(tokenizer.convert_tokens_to_ids(letter)) for letter in LETTERS)
    limits = ("--max-tokens", "6", "--allowed-token-ids", letters)
    return ("--temperature", "0", "--policy", "fixed", *limits)
