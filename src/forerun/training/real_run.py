"""A real run of a trained head: the engine answers held-out prompts with the head and plainly in turn."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from forerun import progress
from forerun.core import Stats
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.measure.paired import WARM_UP_TOKENS, Comparison, comparison_of, run_pair
from forerun.params import SamplingParams
from forerun.training.conversations import Example
from forerun.training.drafter_run import DrafterRun


@dataclass(frozen=True)
class RealRun:
    """Result of a head at one temperature.

    Args:
        temperature: temperature of the answers.
        prompts: number of prompts answered, each with the head and then plainly.
        tokens: total number of tokens in the answers with the head.
        mean_acceptance_length: mean number of tokens of a round that drafted.
        speedup: median over prompts of the ratio of tokens per second, prefill included.
        spread: the least and the largest of these ratios.
        tokens_per_second, plain_tokens_per_second: medians over prompts.
        identical: number of answers equal to plain decoding's; None for sampled answers, which agree in
            distribution only.
        differences: number of other answers by explanation: `numerics` for a near-tie that rounding
            decides, or `defect`.
    """

    temperature: float
    prompts: int
    tokens: int
    mean_acceptance_length: float | None
    speedup: float
    spread: tuple[float, float]
    tokens_per_second: float
    plain_tokens_per_second: float
    identical: int | None
    differences: Mapping[str, int] = field(default_factory=dict)


def real_runs(run: DrafterRun, num_prompts: int, num_tokens: int) -> dict[str, Any]:
    """Answer held-out prompts greedily and at the data's temperature, and report the results.

    Args:
        run: a run that has written its head.
        num_prompts: most prompts, spread over the categories.
        num_tokens: most tokens of an answer.

    Returns:
        The report; empty if no prompt leaves room for so many tokens.
    """
    longest = run.checkpoint.summary.max_context
    fitting = [c for c in run.held if len(c.prompt_ids) + num_tokens <= longest]
    prompts = spread_prompts(fitting, num_prompts)
    if not prompts:
        return {}
    # The expectations were computed for drafts of this length.
    length = max(map(len, run.report.positions.values()), default=1)
    engine = open_trained(run, max(map(len, prompts)) + num_tokens, num_speculative_tokens=length)
    drawn = Counter(c.temperature for c in run.held if c.temperature > 0).most_common(1)
    temperatures = [0.0, drawn[0][0] if drawn else 1.0]
    total = len(prompts) * len(temperatures)
    made: list[RealRun] = []
    for temperature in temperatures:
        params = SamplingParams(temperature=temperature, max_tokens=num_tokens)
        made.append(_answer(engine, prompts, params, len(prompts) * len(made), total))
    return {
        "precision": engine.target.precision,
        "num_speculative_tokens": length,
        "max_tokens": num_tokens,
        "runs": [asdict(run) for run in made],
    }


def open_trained(
    run: DrafterRun, context: int, *, max_batch_size: int = 1, **config: Any
) -> Engine:
    """An engine with the drafter that a run has written, with drafts of a fixed length.

    Args:
        run: a run that has ended.
        context: most tokens of a request, clamped to the target's maximum.
        max_batch_size: most requests at once.
        **config: options of speculation, by the names of `SpeculativeConfig`.
    """
    return load(
        run.checkpoint,
        SpeculativeConfig(method=run.kind, model=str(run.out), policy="fixed", **config),
        max_batch_size=max_batch_size,
        max_context=min(context, run.checkpoint.summary.max_context),
    )


def spread_prompts(conversations: Sequence[Example], count: int) -> list[list[int]]:
    """Distinct prompts of `count` conversations at most, taken from the categories in turn."""
    kinds: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for conversation in dict.fromkeys(conversations):
        if conversation.prompt_ids not in kinds[conversation.category]:
            kinds[conversation.category].append(conversation.prompt_ids)
    deepest = max(map(len, kinds.values()), default=0)
    turns = [own[turn] for turn in range(deepest) for own in kinds.values() if turn < len(own)]
    return [list(prompt) for prompt in dict.fromkeys(turns)][:count]


def _answer(
    engine: Engine, prompts: Sequence[list[int]], params: SamplingParams, done: int, total: int
) -> RealRun:
    """Answer every prompt with the head and plainly, after a short warm-up."""
    tokens = min(params.max_tokens or WARM_UP_TOKENS, WARM_UP_TOKENS)
    run_pair(engine, prompts[0], replace(params, max_tokens=tokens))
    compared: list[Comparison] = []
    for number, prompt in enumerate(prompts):
        progress.report("real run", done + number, total)
        pair = run_pair(engine, prompt, params)
        compared.append(comparison_of(engine, prompt, params, [pair]))
    progress.report("real run", done + len(prompts), total)
    return _summed(compared, params)


def _summed(compared: Sequence[Comparison], params: SamplingParams) -> RealRun:
    pairs = [comparison.pairs[0] for comparison in compared]
    stats = Stats.total(pair.speculative.completion.stats for pair in pairs)
    ratios = [pair.speedup for pair in pairs]
    rates = [
        statistics.median(run.tokens_per_second or 0.0 for run in side)
        for side in zip(*((pair.speculative, pair.plain) for pair in pairs), strict=True)
    ]
    equal = [comparison.identical for comparison in compared]
    differences = Counter(c.difference.explanation for c in compared if c.difference is not None)
    return RealRun(
        temperature=params.temperature,
        prompts=len(pairs),
        tokens=stats.num_emitted_tokens,
        mean_acceptance_length=stats.mean_acceptance_length,
        speedup=statistics.median(ratios),
        spread=(min(ratios), max(ratios)),
        tokens_per_second=rates[0],
        plain_tokens_per_second=rates[1],
        identical=None if None in equal else sum(map(bool, equal)),
        differences=dict(differences),
    )
