"""Draws outputs under a rule, batch by batch, and tests every token."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
from torch import Tensor

from forerun.contracts import Cache, CausalLM
from forerun.core import NO_HINTS, Batch, Request
from forerun.engine.engine import Engine
from forerun.engine.requests import Completion
from forerun.measure.attribution import could_be_drawn, tolerance
from forerun.measure.watching import watched_rules
from forerun.models.running import prefill_chunks
from forerun.params import SamplingParams
from forerun.progress import report
from forerun.proof.effort import Allowance, ProofOutputs
from forerun.proof.recorder import Masses, RoundTests, masses_of
from forerun.proof.score_tests import SampledRows, ScoreTests
from forerun.sampling import Prefix, warp
from forerun.theory.goodness_of_fit import mass_before
from forerun.theory.inputs import Floats, Ints

# An odd number near 2^64 / the golden ratio.
_FAR_APART = 0x9E3779B97F4A7C15
# Most logits of a pass, which has at least one position.
_MOST_LOGITS = 2**24


@dataclass
class Tally:
    """Results over all outputs so far.

    Args:
        tests: score tests of all tokens.
        rows: a sample of the target's rows.
        starts: a sample of the rows of target and draft at the start of rounds.
        num_tokens, num_outputs: tokens and outputs tested so far.
        impossible: number of tokens that the target's row excludes, rounding allowed for.
        row_difference: largest difference between the row that verified a token and the teacher-forced
            row.
        row_tolerance: largest such difference that rounding explains.
        used: names of the rules that verified drafts.
    """

    tests: ScoreTests
    rows: SampledRows
    starts: SampledRows
    num_tokens: int = 0
    num_outputs: int = 0
    impossible: int = 0
    row_difference: float = 0.0
    row_tolerance: float = 0.0
    used: set[str] = field(default_factory=set)

    @classmethod
    def empty(cls, groups: Ints, seed: int) -> Tally:
        random = np.random.default_rng([0x666F72, seed % 2**64])
        return cls(ScoreTests(random, groups), SampledRows(random), SampledRows(random))


def gather(
    engine: Engine, prompts: Sequence[list[int]], outputs: ProofOutputs, groups: Ints
) -> Tally:
    """Generate outputs until there are enough tokens or the time is over, and test every token.

    Args:
        engine: an engine with any rule.
        prompts: token ids, used in turn.
        outputs: sampling parameters and number of the outputs.
        groups: group of each token, [V].
    """
    hints = outputs.hints or [NO_HINTS] * len(prompts)
    tally = Tally.empty(groups, outputs.seed)
    needed = math.ceil(outputs.num_tokens / outputs.output_tokens)
    allowance = Allowance(needed, outputs.seconds)
    params = replace(
        outputs.params,
        max_tokens=outputs.output_tokens,
        ignore_eos=True,
        stop=(),
        stop_token_ids=(),
        logprobs=None,
        # A seed would select the coupled rule.
        seed=None,
    )
    # Neighbouring seeds of proofs must not share the seeds of their requests.
    seeds = count(outputs.seed * _FAR_APART)
    rounds = RoundTests(tally.tests, tally.starts)
    with watched_rules(engine, rounds.see), _seeded(engine, seeds):
        while size := allowance.more(tally.num_outputs, engine.max_batch_size):
            numbers = range(tally.num_outputs, tally.num_outputs + size)
            batch = [prompts[number % len(prompts)] for number in numbers]
            hinted = [hints[number % len(prompts)] for number in numbers]
            completions = engine.generate(batch, params, hints=hinted)
            _test_outputs(engine, completions, params, rounds.masses, tally)
            rounds.masses.clear()
            report("statistics", tally.num_outputs, allowance.expected(tally.num_outputs))
    report("statistics", 1, 1)
    tally.used = rounds.used
    return tally


@contextmanager
def _seeded(engine: Engine, seeds: Iterator[int]) -> Iterator[None]:
    """Give the requests of an engine these seeds while the block runs."""
    engine.use_seeds(lambda: next(seeds) % 2**63)
    try:
        yield
    finally:
        engine.use_seeds()


def _test_outputs(
    engine: Engine,
    completions: list[Completion],
    params: SamplingParams,
    masses: Masses,
    tally: Tally,
) -> None:
    """Run finished outputs through the target and test their tokens."""
    requests = [
        Request(
            request_id=completion.request_id,
            token_ids=[*completion.prompt_ids, *completion.token_ids],
            num_prompt_tokens=len(completion.prompt_ids),
            params=params,
            seed=0,
            row=row,
        )
        for row, completion in enumerate(completions)
    ]
    transforms: list[list[Floats]] = [[] for _ in requests]
    with engine.idle_cache() as cache:
        for index, start, logits, probs in teacher_forced(engine.target, cache, requests):
            request = requests[index]
            rows = probs.cpu().double().numpy()
            rows /= rows.sum(-1, keepdims=True)
            chosen = np.array(request.output_ids[start : start + len(rows)])
            transforms[index].append(_test(rows, chosen, tally))
            verified = masses_of(masses, request, start, len(rows))
            difference = np.abs(verified - np.stack(mass_before(rows, chosen), 1)).max()
            tally.row_difference = max(tally.row_difference, float(difference))
            allowed = tolerance(logits.flatten(), engine.target.dtype, request.params)
            tally.row_tolerance = max(tally.row_tolerance, allowed)
            tally.impossible += _impossible(engine, request, start, logits, rows, chosen)
    for parts in transforms:
        by_id, by_rank = np.concatenate(parts, 1)
        tally.tests.add_pairs("emitted, consecutive by id", by_id[:-1], by_id[1:])
        tally.tests.add_pairs("emitted, consecutive by rank", by_rank[:-1], by_rank[1:])
    tally.num_outputs += len(requests)
    tally.num_tokens += sum(request.num_output_tokens for request in requests)


def _test(rows: Floats, chosen: Ints, tally: Tally) -> Floats:
    """Test emitted tokens, and return their transforms by id and by rank, [2, N]."""
    by_id = tally.tests.add("emitted, by id", rows, chosen)
    by_rank = tally.tests.add("emitted, by rank", rows, chosen, -rows)
    tally.tests.add_surprise("emitted, by log probability", rows, chosen)
    tally.tests.add_groups("emitted, by group", rows, chosen)
    for row in rows:
        tally.rows.offer(row)
    return np.stack([by_id, by_rank])


def _impossible(
    engine: Engine, request: Request, start: int, logits: Tensor, rows: Floats, chosen: Ints
) -> int:
    """Number of tokens with probability 0 in their rows, rounding allowed for."""
    prompt = request.token_ids[: request.num_prompt_tokens]
    count = 0
    for index in np.flatnonzero(rows[np.arange(len(rows)), chosen] == 0.0).tolist():
        count += not could_be_drawn(
            int(chosen[index]),
            logits[index].cpu(),
            engine.target.dtype,
            prompt,
            request.output_ids[: start + index],
            request.params,
        )
    return count


def teacher_forced(
    target: CausalLM, cache: Cache, requests: Sequence[Request]
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Run whole requests through the target, in stretches of positions.

    Args:
        target: the target model.
        cache: an empty cache with at least as many rows as there are requests.
        requests: finished requests with outputs of one length.

    Yields:
        The index of a request, the index of the first output token of a stretch, the logits for
        the stretch [n, V], and the rows [n, V] that its tokens are drawn from.
    """
    rows = range(len(requests))
    prompts = [request.token_ids[: request.num_prompt_tokens - 1] for request in requests]
    for _ in prefill_chunks(target, cache, rows, prompts):
        pass
    length = requests[0].num_output_tokens
    width = max(1, _MOST_LOGITS // (len(requests) * target.vocab_size))
    for start in range(0, length, width):
        count = min(width, length - start)
        inputs = []
        for request in requests:
            first = request.num_prompt_tokens - 1 + start
            inputs.append(request.token_ids[first : first + count])
        logits = target.forward(Batch.after(cache, rows, inputs), cache).logits
        assert logits is not None
        for index, request in enumerate(requests):
            probs = warp(logits[index], _prefixes(request, start, count))
            yield index, start, logits[index], probs


def _prefixes(request: Request, start: int, count: int) -> list[Prefix]:
    """The sampler's prefix of each output token of a stretch."""
    prompt = request.token_ids[: request.num_prompt_tokens]
    output = tuple(request.output_ids)
    before = Request(
        request.request_id, prompt, len(prompt), request.params, request.seed, request.row
    )
    return [Prefix(before, output[:index]) for index in range(start, start + count)]
