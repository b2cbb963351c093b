"""Outputs under a rule, batch by batch, every token of them fed to the tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from forerun.contracts import Cache
from forerun.core import Sequence
from forerun.engine.attribution import could_be_drawn, tolerance
from forerun.engine.engine import Engine
from forerun.engine.requests import Completion
from forerun.params import SamplingParams
from forerun.proof.recorder import Places, Recorder, places_of
from forerun.proof.setting import Setting
from forerun.proof.teacher import teacher_forced
from forerun.proof.tests import SampledRows, Tests, assign_groups
from forerun.theory.goodness_of_fit import Floats, Ints, mass_before
from forerun.verification import make_rule

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
    """

    tests: Tests
    rows: SampledRows
    starts: SampledRows
    num_tokens: int = 0
    num_outputs: int = 0
    impossible: int = 0
    row_difference: float = 0.0
    row_tolerance: float = 0.0

    @classmethod
    def empty(cls, vocab_size: int, seed: int) -> Tally:
        random = np.random.default_rng([0x666F72, seed])
        tests = Tests(random, assign_groups(vocab_size, random))
        return cls(tests, SampledRows(random), SampledRows(random))


def gather(
    engine: Engine, prompts: Several[list[int]], setting: Setting, progress: Progress | None
) -> Tally:
    """Generate under the setting's rule until there are enough tokens, and test each of them."""
    tally = Tally.empty(engine.target.vocab_size, setting.seed)
    longest = max(len(prompt) for prompt in prompts) + setting.output_tokens
    cache = engine.target.new_cache(engine.max_batch_size, longest)
    with _watched(engine, setting.rule, tally) as places:
        for batch, params in _batches(prompts, setting, engine.max_batch_size):
            completions = engine.generate(batch, params)
            _take_in(engine, cache, completions, params, places, tally)
            places.clear()
            if progress is not None:
                progress(min(tally.num_tokens, setting.num_tokens), setting.num_tokens)
    return tally


@contextmanager
def _watched(engine: Engine, rule: str, tally: Tally) -> Iterator[Places]:
    """Have the rule watched while the block runs, and the token rule, which takes plain rounds."""
    kept = dict(engine.rules)
    places: Places = {}
    for name in {rule, "token"}:
        watched = engine.rules.get(name) or make_rule(name)
        engine.rules[name] = Recorder(watched, tally.tests, tally.starts, places)
    try:
        yield places
    finally:
        engine.rules.clear()
        engine.rules.update(kept)


def _batches(
    prompts: Several[list[int]], setting: Setting, rows: int
) -> Iterator[tuple[list[list[int]], list[SamplingParams]]]:
    """Prompts in turn, each time with a new seed, until there are enough tokens."""
    needed = math.ceil(setting.num_tokens / setting.output_tokens)
    base = replace(
        setting.params,
        max_tokens=setting.output_tokens,
        ignore_eos=True,
        stop=(),
        stop_token_ids=(),
        logprobs=None,
    )
    for start in range(0, needed, rows):
        numbers = range(start, min(start + rows, needed))
        yield (
            [prompts[number % len(prompts)] for number in numbers],
            [replace(base, seed=setting.seed + number) for number in numbers],
        )


def _take_in(
    engine: Engine,
    cache: Cache,
    completions: list[Completion],
    params: list[SamplingParams],
    places: Places,
    tally: Tally,
) -> None:
    """Run finished outputs through the target and test their tokens."""
    sequences = [
        Sequence(
            request_id=completion.request_id,
            token_ids=[*completion.prompt_ids, *completion.token_ids],
            num_prompt_tokens=len(completion.prompt_ids),
            params=one,
            seed=one.seed or 0,
            row=row,
        )
        for row, (completion, one) in enumerate(zip(completions, params, strict=True))
    ]
    transforms: list[list[float]] = [[] for _ in sequences]
    for index, start, logits, probs in teacher_forced(engine.target, cache, sequences):
        sequence = sequences[index]
        rows = probs.cpu().double().numpy()
        rows /= rows.sum(-1, keepdims=True)
        chosen = np.array(sequence.output_ids[start : start + len(rows)])
        transforms[index] += _test(rows, chosen, tally)
        verified = places_of(places, sequence, start, len(rows))
        difference = np.abs(verified - np.stack(mass_before(rows, chosen), 1)).max()
        tally.row_difference = max(tally.row_difference, float(difference))
        allowed = tolerance(logits.flatten(), engine.target.dtype, sequence.params)
        tally.row_tolerance = max(tally.row_tolerance, allowed)
        tally.impossible += _impossible(engine, sequence, start, logits, rows, chosen)
    for one in transforms:
        tally.tests.consecutive("emitted, consecutive", np.array(one))
    tally.num_outputs += len(sequences)
    tally.num_tokens += sum(sequence.num_output_tokens for sequence in sequences)


def _test(rows: Floats, chosen: Ints, tally: Tally) -> list[float]:
    """Feed the tests of the emitted tokens; their places in the order of probability."""
    tally.tests.place("emitted, by id", rows, chosen)
    places = tally.tests.place("emitted, by rank", rows, chosen, -rows)
    tally.tests.group("emitted, by group", rows, chosen)
    for row in rows:
        tally.rows.offer(row)
    return list(places)


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
