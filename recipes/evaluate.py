"""What the trained pair is worth: bits per byte, acceptance, loops, and whether its code parses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional

from forerun.bench.pairs import loops
from forerun.contracts import CausalLM
from forerun.core import Batch, Stats
from forerun.engine.config import SpeculativeConfig
from forerun.engine.load import load
from forerun.engine.requests import Completion
from forerun.models import Checkpoint, load_model
from forerun.params import SamplingParams
from recipes.heldout import HeldOutPrompt, parses_but_for_its_end

WINDOW = 1024


def nats_per_token(model: CausalLM, token_ids: np.ndarray) -> float:
    """Mean cross entropy over independent windows of 1,024 tokens; the first of each is not scored."""
    total, scored = 0.0, 0
    cache = model.new_cache(1, WINDOW)
    for start in range(0, len(token_ids) - 1, WINDOW):
        window = token_ids[start : start + WINDOW].astype(np.int64).tolist()
        if len(window) < 2:
            continue
        cache.trim(0, 0)
        logits = model.forward(Batch.after(cache, [0], [window[:-1]]), cache).logits
        assert logits is not None
        targets = torch.tensor(window[1:], device=logits.device)
        total += functional.cross_entropy(logits[0].float(), targets, reduction="sum").item()
        scored += len(window) - 1
    return total / scored


def bits_per_byte(nats: float, token_ids: np.ndarray, tokenizer: Any) -> float:
    """Nats a token as bits a byte of the same text."""
    text = tokenizer.decode(token_ids.tolist(), skip_special_tokens=True)
    return nats * len(token_ids) / (len(text.encode()) * math.log(2))


def evaluate_pair(
    target: Path, draft: Path, token_ids: np.ndarray, prompts: Sequence[HeldOutPrompt]
) -> dict[str, Any]:
    """Everything that the zoo's report says, measured on held-out text in float32.

    Args:
        target, draft: checkpoint directories or GGUF files.
        token_ids: the held-out text.
        prompts: each is completed greedily and at temperature 1 with 128 tokens.
    """
    tokenizer = Checkpoint.open(target).tokenizer
    report: dict[str, Any] = {"held_out_tokens": len(token_ids), "prompts": len(prompts)}
    for name, path in (("target", target), ("draft", draft)):
        nats = nats_per_token(load_model(path, dtype="fp32"), token_ids)
        report[name] = {
            "nats_per_token": round(nats, 4),
            "bits_per_byte": round(bits_per_byte(nats, token_ids, tokenizer), 4),
        }
    config = SpeculativeConfig(model=str(draft), policy="fixed", options={"draft_dtype": "fp32"})
    engine = load(str(target), config, dtype="fp32", max_batch_size=8, max_context=2048)
    for name, temperature in (("greedy", 0.0), ("temperature_1", 1.0)):
        params = SamplingParams(temperature=temperature, max_tokens=128)
        completions = engine.generate([prompt.prompt for prompt in prompts], params)
        report[name] = _summary(completions)
        if name == "greedy":
            pairs = list(zip(prompts, completions, strict=True))[:20]
            parsed = [
                parses_but_for_its_end(prompt.prompt + output.text) for prompt, output in pairs
            ]
            report["greedy_samples_that_parse"] = f"{sum(parsed)} of {len(parsed)}"
    return report


def _summary(completions: Sequence[Completion]) -> dict[str, Any]:
    stats = Stats.total(completion.stats for completion in completions)
    looping = sum(loops(completion.token_ids) for completion in completions)
    return {
        "num_speculative_tokens": SpeculativeConfig().num_speculative_tokens,
        "acceptance_rate": round(stats.num_accepted_tokens / stats.num_draft_tokens, 4),
        "mean_acceptance_length": round(stats.num_emitted_in_drafts / stats.num_drafts, 3),
        "share_that_loops": round(looping / len(completions), 3),
    }
