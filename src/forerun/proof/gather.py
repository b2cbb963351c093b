"""Outputs under a rule, batch by batch, every token of them fed to the tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
from torch import Tensor

from forerun.core import NO_HINTS, Sequence
from forerun.engine.attribution import could_be_drawn, tolerance
from forerun.engine.engine import Engine
from forerun.engine.requests import Completion
from forerun.params import SamplingParams
from forerun.proof.battery import Battery, SampledRows
from forerun.proof.recorder import Places, Recorder, places_of
from forerun.proof.setting import Setting
from forerun.proof.teacher import teacher_forced
from forerun.theory.goodness_of_fit import Floats, Ints, mass_before
from forerun.verification import AUTO, RULES, make_rule

# An odd number near 2^64 / the golden ratio.
_FAR_APART = 0x9E3779B97F4A7C15

Progress = Callable[[int, int], None]
"""Told how many tokens are done, of how many."""


@dataclass
class Tally:
    """What outputs have come to so far.

    Args:
        tests: fed with everything.
        rows: some of the target's rows.
        starts: some pairs of rows, target's and draft's, at the start of rounds.
        num_tokens, num_outputs: taken in.
        impossible: tokens that the target's row excludes, also if it is rounded.
        row_difference: the largest between the row that verified a token and the teacher-forced one.
        row_tolerance: the largest that rounding explains.
        used: names of the rules that verified drafts.
    """

    tests: Battery
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
        return cls(Battery(random, groups), SampledRows(random), SampledRows(random))


def gather(
    engine: Engine,
    prompts: Several[list[int]],
    setting: Setting,
    groups: Ints,
    progress: Progress | None,
) -> Tally:
    """Generate until there are enough tokens, and test each of them.

    Args:
        engine: with whatever rule its config names.
        prompts: token ids, used in turn.
        setting: what to draw.
        groups: the group of each token, [V].
        progress: told of the tokens.
    """
    told = setting.hints or [NO_HINTS] * len(prompts)
    tally = Tally.empty(groups, setting.seed)
    needed = math.ceil(setting.num_tokens / setting.output_tokens)
    params = replace(
        setting.params,
        max_tokens=setting.output_tokens,
        ignore_eos=True,
        stop=(),
        stop_token_ids=(),
        logprobs=None,
        # Given here, it would select the coupled rule.
        seed=None,
    )
    # Neighbouring seeds of proofs must not share the seeds of their requests.
    seeds = count(setting.seed * _FAR_APART)
    with _watched(engine, tally) as places:
        engine.use_seeds(lambda: next(seeds) % 2**63)
        for start in range(0, needed, engine.max_batch_size):
            numbers = range(start, min(start + engine.max_batch_size, needed))
            batch = [prompts[number % len(prompts)] for number in numbers]
            hinted = [told[number % len(prompts)] for number in numbers]
            completions = engine.generate(batch, params, hints=hinted)
            _take_in(engine, completions, params, places, tally)
            places.clear()
            if progress is not None:
                progress(min(tally.num_tokens, setting.num_tokens), setting.num_tokens)
    return tally


@contextmanager
def _watched(engine: Engine, tally: Tally) -> Iterator[Places]:
    """Have every rule watched that the engine may take while the block runs."""
    kept = dict(engine.rules)
    places: Places = {}
    named = engine.config.rejection_sample_method
    for name in {*RULES, *kept, *([named] if named != AUTO else [])}:
        watched = kept.get(name) or make_rule(name)
        engine.rules[name] = Recorder(watched, tally.tests, tally.starts, places, tally.used)
    try:
        yield places
    finally:
        engine.use_seeds()
        engine.rules.clear()
        engine.rules.update(kept)


def _take_in(
    engine: Engine,
    completions: list[Completion],
    params: SamplingParams,
    places: Places,
    tally: Tally,
) -> None:
    """Run finished outputs through the target and test their tokens."""
    sequences = [
        Sequence(
            request_id=completion.request_id,
            token_ids=[*completion.prompt_ids, *completion.token_ids],
            num_prompt_tokens=len(completion.prompt_ids),
            params=params,
            seed=0,
            row=row,
        )
        for row, completion in enumerate(completions)
    ]
    transforms: list[list[Floats]] = [[] for _ in sequences]
    with engine.idle_cache() as cache:
        for index, start, logits, probs in teacher_forced(engine.target, cache, sequences):
            sequence = sequences[index]
            rows = probs.cpu().double().numpy()
            rows /= rows.sum(-1, keepdims=True)
            chosen = np.array(sequence.output_ids[start : start + len(rows)])
            transforms[index].append(_test(rows, chosen, tally))
            verified = places_of(places, sequence, start, len(rows))
            difference = np.abs(verified - np.stack(mass_before(rows, chosen), 1)).max()
            tally.row_difference = max(tally.row_difference, float(difference))
            allowed = tolerance(logits.flatten(), engine.target.dtype, sequence.params)
            tally.row_tolerance = max(tally.row_tolerance, allowed)
            tally.impossible += _impossible(engine, sequence, start, logits, rows, chosen)
    for parts in transforms:
        by_id, by_rank = np.concatenate(parts, 1)
        tally.tests.pairs("emitted, consecutive by id", by_id[:-1], by_id[1:])
        tally.tests.pairs("emitted, consecutive by rank", by_rank[:-1], by_rank[1:])
    tally.num_outputs += len(sequences)
    tally.num_tokens += sum(sequence.num_output_tokens for sequence in sequences)


def _test(rows: Floats, chosen: Ints, tally: Tally) -> Floats:
    """Feed the tests of the emitted tokens; their places by id and by rank, [2, N]."""
    by_id = tally.tests.place("emitted, by id", rows, chosen)
    by_rank = tally.tests.place("emitted, by rank", rows, chosen, -rows)
    tally.tests.group("emitted, by group", rows, chosen)
    for row in rows:
        tally.rows.offer(row)
    return np.stack([by_id, by_rank])


def _impossible(
    engine: Engine, sequence: Sequence, start: int, logits: Tensor, rows: Floats, chosen: Ints
) -> int:
    """How many tokens have no probability in their rows, and would have none if they were rounded."""
    prompt = sequence.token_ids[: sequence.num_prompt_tokens]
    count = 0
    for index in np.flatnonzero(rows[np.arange(len(rows)), chosen] == 0.0).tolist():
        count += not could_be_drawn(
            int(chosen[index]),
            logits[index].cpu(),
            engine.target.dtype,
            prompt,
            sequence.output_ids[: start + index],
            sequence.params,
        )
    return count
