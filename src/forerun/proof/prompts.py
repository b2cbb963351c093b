"""Prompts of a proof: those that come with forerun's zoo, and the token ids of any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forerun.errors import PromptError
from forerun.measure.questions import read_questions
from forerun.models.zoo import packaged_path


def held_out_prompts() -> list[str]:
    """The prompts that come with the zoo, cut from modules that its model was not trained on.

    Raises:
        CheckpointError: if forerun-zoo is not installed.
    """
    path = Path(packaged_path("zoo")).parent / "heldout.jsonl"
    return [question.opening for question in read_questions([path])]


def encode_prompts(
    tokenizer: Any, prompts: Sequence[str], most_tokens: int | None
) -> list[list[int]]:
    """Token ids of each prompt, cut to its last `most_tokens`.

    Raises:
        PromptError: for a prompt without tokens.
    """
    encoded = [list(tokenizer.encode(prompt)) for prompt in prompts]
    for number, token_ids in enumerate(encoded, start=1):
        if not token_ids:
            raise PromptError(f"prompt {number} has no tokens; leave it out.")
    return encoded if most_tokens is None else [token_ids[-most_tokens:] for token_ids in encoded]
