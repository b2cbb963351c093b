"""The prompts of a proof: the user's own, or those that come with forerun's zoo."""

from __future__ import annotations

import json
from collections.abc import Sequence as Several
from pathlib import Path
from typing import Any

from forerun.errors import PromptError
from forerun.models.zoo import zoo_path

# Where question sets keep their text; of a list of turns the first.
_KEYS = ("prompt", "turns", "question", "text")


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file: JSON lines with a `prompt` (or `turns`, `question`, `text`), or any
    other text, one prompt a line.

    Raises:
        PromptError: naming the file, the line and what is wrong with it.
    """
    try:
        lines = path.read_bytes().decode("utf-8").splitlines()
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise PromptError(f"prompts file {path} cannot be read: {reason}.") from error
    except UnicodeDecodeError as error:
        raise PromptError(f"prompts file {path} is not UTF-8 text (byte {error.start}).") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if path.suffix == ".jsonl":
        prompts = [_of_json(line, f"{path}, line {number}") for number, line in numbered]
    else:
        prompts = [line for _, line in numbered]
    if not prompts:
        raise PromptError(f"prompts file {path} is empty; give at least one prompt.")
    return prompts


def held_out_prompts() -> list[str]:
    """The prompts that come with the zoo, cut from modules that it was not trained on.

    Raises:
        CheckpointError: where forerun-zoo is not installed.
    """
    return read_prompts(Path(zoo_path("zoo")).parent / "heldout.jsonl")


def encode_prompts(
    tokenizer: Any, prompts: Several[str], most_tokens: int | None
) -> list[list[int]]:
    """Token ids; of long prompts the last `most_tokens`.

    Raises:
        PromptError: for a prompt of no tokens.
    """
    encoded = [list(tokenizer.encode(prompt)) for prompt in prompts]
    for number, token_ids in enumerate(encoded, start=1):
        if not token_ids:
            raise PromptError(f"prompt {number} has no tokens; leave it out.")
    return encoded if most_tokens is None else [token_ids[-most_tokens:] for token_ids in encoded]


def _of_json(line: str, where: str) -> str:
    try:
        content = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptError(f"{where} is not JSON ({error.msg}).") from error
    found = content if isinstance(content, str) else None
    if isinstance(content, dict):
        found = next((content[key] for key in _KEYS if key in content), None)
        found = found[0] if isinstance(found, list) and found else found
    if not isinstance(found, str) or not found:
        raise PromptError(f"{where} holds no prompt; give one under any of {', '.join(_KEYS)}.")
    return found
