"""Tiny targets on disk, data to train drafters on, and runs of that."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from forerun.training.drafter_run import DrafterRun
from forerun.training.settings import (
    DrafterSettings,
    DraftSettings,
    Eagle3Settings,
    HeadSettings,
    MedusaSettings,
)
from tests.helpers.tiny_models import LLAMA_LIKE, VOCAB, random_model, tiny_config
from tests.helpers.toy_chat import toy_tokenizer

SETTINGS: dict[str, type[Any]] = {
    "draft": DraftSettings,
    "eagle3": Eagle3Settings,
    "medusa": MedusaSettings,
}
OWN: dict[str, dict[str, Any]] = {
    "draft": {"layers": 1, "steps": 3},
    "eagle3": {"steps": 3, "density": 1.0},
    "medusa": {"heads": 3, "density": 1.0},
}
"""Small shapes of each kind of drafter."""


def config_of(family: str) -> Any:
    """Of a tiny model; Gemma's runs through the adapter."""
    from transformers import AutoConfig

    if family == "gemma":
        return AutoConfig.for_model("gemma", **LLAMA_LIKE, head_dim=8, eos_token_id=3)
    return tiny_config(family)


def save_target(folder: Path, family: str) -> str:
    """A random chat model."""
    random_model(config_of(family)).save_pretrained(folder)
    toy_tokenizer().save_pretrained(folder)
    return str(folder)


def save_data(path: Path, count: int = 24) -> str:
    """What `forerun train data` writes: two categories, greedy and drawn answers."""
    draws = random.Random(0)
    lines = [json.dumps({"forerun_data": 1, "model": "tiny"})]
    for number in range(count):
        prompt = [draws.randrange(VOCAB) for _ in range(draws.randrange(2, 7))]
        answer = [draws.randrange(40) for _ in range(draws.randrange(8, 13))]
        record = {"prompt_ids": prompt, "answer_ids": answer, "temperature": float(number % 2)}
        lines.append(json.dumps({**record, "category": ("chat", "maths")[number % 4 // 2]}))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def run_of(
    kind: str,
    model: str,
    data: str,
    out: Path,
    begin_with: str | None = None,
    own: dict[str, Any] | None = None,
    **settings: Any,
) -> DrafterRun:
    """A run of a few steps, looked at after each of them."""
    values = {
        "tokens": 320,
        "micro_batch_tokens": 64,
        "validate_minutes": 1e-9,
        "patience": 1000,
        "minutes": 1e4,
        **settings,
    }
    if kind != "draft":
        values = {"draft_vocab_size": 40, **values}
    shape = SETTINGS[kind](**{**OWN[kind], **(own or {})})
    read = (DrafterSettings if kind == "draft" else HeadSettings)(**values)
    return DrafterRun(kind, shape, read, model, [data], out, begin_with)
