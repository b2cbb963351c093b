"""A real run of a trained drafter: the engine answers held-out prompts with it and plainly in turn."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forerun import progress
from forerun.core import Stats
from forerun.engine.engine import Engine
from forerun.measure.paired import WARM_UP_TOKENS, Comparison, comparison_of, run_pair
from forerun.params import SamplingParams
from forerun.training.conversations import Example


def real_run(
    engine: Engine, prompts: Sequence[list[int]], temperatures: Sequence[float], num_tokens: int
) -> list[dict[str, Any]]:
    """Answer prompts at each temperature, and report the results.

    Args:
        engine: the target with the drafter.
        prompts: one prompt at least.
        temperatures: temperatures of the answers.
        num_tokens: most tokens of an answer.
    """
    total, done = len(prompts) * len(temperatures), 0
    made = []
    for temperature in temperatures:
        params = SamplingParams(temperature=temperature, max_tokens=num_tokens)
        run_pair(engine, prompts[0], replace(params, max_tokens=min(num_tokens, WARM_UP_TOKENS)))
        compared: list[Comparison] = []
        for prompt in prompts:
            progress.report("real run", done, total)
            pair = run_pair(engine, prompt, params)
            compared.append(comparison_of(engine, prompt, params, [pair]))
            done += 1
        made.append(_summed(compared, temperature))
    progress.report("real run", total, total)
    return made


def _summed(compared: Sequence[Comparison], temperature: float) -> dict[str, Any]:
    """Figures of one temperature, as in forerun.json.

    Speed-ups are ratios of tokens per second, prefill included: their median, and the least and the
    largest. Sampled answers, which agree in distribution only, have no number of `identical` ones.
    `differences` counts the other answers by explanation: `numerics` for a near-tie that rounding decides,
    or `defect`.
    """
    pairs = [comparison.pairs[0] for comparison in compared]
    stats = Stats.total(pair.speculative.completion.stats for pair in pairs)
    ratios = [pair.speedup for pair in pairs]
    equal = [comparison.identical for comparison in compared]
    return {
        "temperature": temperature,
        "prompts": len(pairs),
        "tokens": stats.num_emitted_tokens,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "speedup": statistics.median(ratios),
        "spread": (min(ratios), max(ratios)),
        "identical": None if None in equal else sum(map(bool, equal)),
        "differences": dict(
            Counter(own.difference.explanation for own in compared if own.difference is not None)
        ),
    }


def spread_prompts(conversations: Sequence[Example], count: int) -> list[list[int]]:
    """Distinct prompts of `count` conversations at most, taken from the categories in turn."""
    kinds: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for conversation in dict.fromkeys(conversations):
        if conversation.prompt_ids not in kinds[conversation.category]:
            kinds[conversation.category].append(conversation.prompt_ids)
    deepest = max(map(len, kinds.values()), default=0)
    turns = [own[turn] for turn in range(deepest) for own in kinds.values() if turn < len(own)]
    return [list(prompt) for prompt in dict.fromkeys(turns)][:count]
