"""The prompts of a proof: the user's own, or those that come with forerun's zoo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forerun.errors import PromptError
from forerun.files import parse_json, read_text
from forerun.models.zoo import zoo_path

# Keys that question sets use for their text; of a list of turns the first is used.
_KEYS = ("prompt", "turns", "question", "text")


def read_prompts(path: Path) -> list[str]:
    """Read the prompts of a file, one per line.

    A line of a `.jsonl` file holds a `prompt` (or `turns`, `question`, `text`); a line of any other
    file is the prompt itself.

    Raises:
        PromptError: for an invalid line; names the file, the line and what is wrong.
    """
    lines = read_text(path, "prompts file", PromptError).splitlines()
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if path.suffix == ".jsonl":
        prompts = [_of_json(line, f"{path}, line {number}") for number, line in numbered]
    else:
        prompts = [line for _, line in numbered]
    if not prompts:
        raise PromptError(f"prompts file {path} is empty; give at least one prompt.")
    return prompts


def held_out_prompts() -> list[str]:
    """The prompts that come with the zoo, cut from modules that its model was not trained on.

    Raises:
        CheckpointError: if forerun-zoo is not installed.
    """
    return read_prompts(Path(zoo_path("zoo")).parent / "heldout.jsonl")


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


def _of_json(line: str, where: str) -> str:
    content = parse_json(line, where, PromptError)
    prompt = content if isinstance(content, str) else None
    if isinstance(content, dict):
        prompt = next((content[key] for key in _KEYS if key in content), None)
        prompt = prompt[0] if isinstance(prompt, list) and prompt else prompt
    if not isinstance(prompt, str) or not prompt:
        raise PromptError(f"{where} holds no prompt; give one under any of {', '.join(_KEYS)}.")
    return prompt
