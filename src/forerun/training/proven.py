"""Proofs of a drafter after its training, as `forerun prove` makes them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from forerun.engine.model_options import in_steps
from forerun.proof.effort import DEFAULT_BATCH, DEFAULT_PROMPT_TOKENS, Effort
from forerun.report.machine import made_with

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.training.drafter_run import DrafterRun

# Ways of drawing that are proven; the equality of greedy text is part of each.
SAMPLINGS: tuple[Mapping[str, float], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.9},
)


def prove_trained(run: DrafterRun, num_tokens: int) -> list[dict[str, Any]]:
    """Prove the drafter that a run has written, at each way of drawing, on held-out prompts.

    Args:
        run: that has ended.
        num_tokens: for the statistics of each.

    Returns:
        Objects as `forerun prove --json` prints them.
    """
    from forerun.params import SamplingParams
    from forerun.proof.proof import prove
    from forerun.training.real_run import open_trained, spread_prompts

    longest = run.checkpoint.summary.max_context
    effort = Effort(num_tokens=num_tokens, output_tokens=min(Effort().output_tokens, longest // 2))
    most = min(DEFAULT_PROMPT_TOKENS, longest - effort.output_tokens)
    prompts = [prompt[-most:] for prompt in spread_prompts(run.held, len(run.held))]
    context = in_steps(max(map(len, prompts)) + effort.output_tokens)
    engine = open_trained(run, context, max_batch_size=DEFAULT_BATCH)
    made = []
    for sampling in SAMPLINGS:
        params = SamplingParams(**sampling)  # type: ignore[arg-type]  # numbers by name
        proof = prove(engine, prompts, params, effort)
        settings = _settings(run, engine, sampling, effort, len(prompts))
        made.append({**made_with(engine.target.device), "settings": settings, **proof.as_dict()})
    return made


def _settings(
    run: DrafterRun, engine: Engine, sampling: Mapping[str, float], effort: Effort, num_prompts: int
) -> dict[str, Any]:
    from forerun.models.sources import SINGLE

    return {
        "model": run.checkpoint.name,
        "weights_sha256": hashlib.sha256((run.out / SINGLE).read_bytes()).hexdigest(),
        "dtype": engine.target.precision,
        "prompts": "held-out conversations",
        "num_prompts": num_prompts,
        "batch_size": DEFAULT_BATCH,
        "speculation": engine.config.as_dict(),
        "sampling": dict(sampling),
        "effort": asdict(effort),
    }
