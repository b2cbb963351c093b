"""A toy chat model: words for tokens, and a template of marks around them."""

from __future__ import annotations

from typing import Any

from forerun.engine.engine import Engine
from forerun.testing import ToyModel
from tests.helpers.made_tokenizers import words

MARKS = ["<end>", "<user>", "<reply>", "<system>"]
WORDS = [f"w{number}" for number in range(20)]
TEMPLATE = (
    "{% for message in messages %}"
    "{{ {'user': '<user>', 'assistant': '<reply>', 'system': '<system>'}[message.role] }} "
    "{{ message.content }} <end> {% endfor %}"
    "{% if loud is defined and loud %}w19 {% endif %}"
    "{% if add_generation_prompt %}<reply>{% endif %}"
)
END = 0


def toy_tokenizer(template: str | None = TEMPLATE) -> Any:
    """A tokenizer of marks and words."""
    tokenizer = words([*MARKS, *WORDS])
    tokenizer.add_special_tokens({"eos_token": "<end>", "additional_special_tokens": MARKS[1:]})
    tokenizer.chat_template = template
    return tokenizer


def toy_engine(rows: int = 3, template: str | None = TEMPLATE, **options: Any) -> Engine:
    """An engine of a chat model, or without a template of a base model."""
    return Engine(
        ToyModel(len(MARKS) + len(WORDS)),
        tokenizer=toy_tokenizer(template),
        eos_token_ids=[END],
        max_batch_size=rows,
        **{"max_context": 128, **options},
    )
