"""`check_verifier`: a rule proven by enumeration, in one line of anybody's test suite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np
import torch

from forerun.contracts import Verifier
from forerun.core import Draft, Sequence, Verdict
from forerun.errors import ConfigError, ExactnessError
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.sampling import Prefix, draw_coupled
from forerun.testing.laws import (
    Judge,
    Outcomes,
    RandomRows,
    Rows,
    by_decision,
    depth_of,
    deviation,
    drawn_drafts,
    emitted_law,
    target_law,
    target_rows,
)
from forerun.testing.outcomes import NoiseError, outcomes
from forerun.verification.decision import DecisionRule

# In float64, over laws of a few hundred sequences.
BOUND = 1e-12
CHAINS = ((-1,), (-1, 0), (-1, 0, 1))
TREES = ((-1, -1), (-1, -1, 0, 0), (-1, -1, -1, 1), (-1, 0, 0, -1), (-1, -1, 0, 1, 1))
_SMALL = ((-1,), (-1, 0), (-1, -1))
# Nodes and tokens together of the cases that a rule without a `decide` is held against.
_LARGEST_FROM_OUTSIDE = 6
# Seeds that a rule which draws by noise is held against, a case.
_SEEDS = 40


@dataclass(frozen=True)
class Case:
    """Drafts of one tree against one target.

    Args:
        kind: `chain`, `tree`, `tree, replacement`, or `point masses`.
        target: the rows of the target.
        drafts: with their probabilities.
        length: of the sequences whose law is compared.
    """

    kind: str
    target: Rows
    drafts: tuple[tuple[float, Draft], ...]
    length: int

    def __str__(self) -> str:
        return (
            f"{self.kind} {list(self.drafts[0][1].parents)}, {self.target.vocab_size} tokens, "
            f"sequences of {self.length}"
        )


@dataclass(frozen=True)
class Enumeration:
    """What an enumeration came to.

    Args:
        cases: laws compared.
        sequences: whole sequences over all of them.
        seeds: of which so many were held against plain decoding, where a rule draws by noise and
            has no law to enumerate; they count as sequences.
        largest_deviation: of a probability, or the share of seeds under which a token is not plain
            decoding's; 0.0 without cases.
        kinds: the kinds of drafts that were judged.
        worst: the case of the largest deviation.
    """

    cases: int = 0
    sequences: int = 0
    seeds: int = 0
    largest_deviation: float = 0.0
    kinds: tuple[str, ...] = ()
    worst: str = ""

    def plus(self, other: Enumeration) -> Enumeration:
        worst = max(self, other, key=lambda one: one.largest_deviation)
        return Enumeration(
            self.cases + other.cases,
            self.sequences + other.sequences,
            self.seeds + other.seeds,
            worst.largest_deviation,
            tuple(dict.fromkeys((*self.kinds, *other.kinds))),
            worst.worst,
        )


def check_verifier(
    rule: Verifier, cases: Iterable[Case] | None = None, bound: float = BOUND
) -> Enumeration:
    """Prove that a rule leaves the target's distribution as it is, over every outcome.

    Args:
        rule: to be checked.
        cases: what to judge; all chains and trees of `default_cases` if None.
        bound: the largest deviation of a probability that rounding explains.

    Raises:
        ExactnessError: naming the case that deviates most, or when the rule takes none, or returns
            something else than a path and one token after it.
        ConfigError: for what is no rule, or no case.
    """
    if not callable(getattr(rule, "verify", None)) or not hasattr(rule, "name"):
        raise ConfigError(f"{rule!r} is no rule; give an object with a name and verify().")
    cases = list(default_cases() if cases is None else cases)
    if not cases:
        raise ConfigError("there is no case to judge; leave cases out for the usual ones.")
    found = enumerate_rule(rule, cases)
    if not found.cases:
        raise ExactnessError(f"rule {rule.name!r} refused every chain and every tree.")
    if not found.largest_deviation <= bound:
        raise ExactnessError(
            f"rule {rule.name!r} changes the distribution: over {found.worst}, a sequence is off "
            f"by {found.largest_deviation:.1e} (allowed: {bound:.0e})."
        )
    return found


def enumerate_rule(rule: Verifier, cases: Iterable[Case]) -> Enumeration:
    """The law of what a rule emits against the target's own, over all cases that it takes.

    A rule that is a `DecisionRule` is enumerated through its `decide`, and on the smallest trees
    from outside as well, which proves that its walk follows the decision; any other rule from
    outside alone, on the smaller trees, because that takes some fifty runs an edge. A rule that
    draws by the noise of a seed must emit plain decoding's tokens.
    Cases that the rule refuses with a ConfigError are left out.
    """
    total = Enumeration()
    for case in cases:
        for judge in _judges(rule, case):
            try:
                found = compare(judge, case)
            except NoiseError:
                found = _compare_with_plain(rule, case)
            except ConfigError:
                continue
            total = total.plus(found)
    return total


def compare(judge: Judge, case: Case) -> Enumeration:
    """How far what `judge` emits is from the target's own law."""
    truth = target_law(case.target, case.length)
    law = emitted_law(judge, case.target, case.drafts, case.length)
    return Enumeration(1, len(truth), 0, deviation(law, truth), (case.kind,), str(case))


def _compare_with_plain(rule: Verifier, case: Case) -> Enumeration:
    """Whether a rule that draws by noise emits what plain decoding draws with the same seed: the
    share of seeds under which it does not."""
    misses = 0
    for seed in range(_SEEDS):
        draft = case.drafts[seed % len(case.drafts)][1]
        sequence = Sequence(0, [0], 1, SamplingParams(seed=seed), seed=seed)
        verdict = rule.verify(draft, target_rows(case.target, draft), sequence, Randomness())
        _check_verdict(rule, draft, verdict)
        for index, token in enumerate(verdict.token_ids):
            before = verdict.token_ids[:index]
            row = torch.tensor(case.target.row(before))[None]
            misses += token != draw_coupled(row, [Prefix(sequence, before)], Randomness())[0]
    return Enumeration(1, _SEEDS, _SEEDS, misses / _SEEDS, (case.kind,), str(case))


def from_outside(rule: Verifier) -> Judge:
    """What comes of a rule by running it with every number that it may draw, or many seeds."""

    def judge(draft: Draft, probs: torch.Tensor) -> Outcomes:
        sequence = Sequence(0, [0], 1, SamplingParams(), seed=0)

        def run(randomness: Randomness) -> tuple[int, ...]:
            verdict = rule.verify(draft, probs, sequence, randomness)
            _check_verdict(rule, draft, verdict)
            return verdict.token_ids

        return outcomes(run, lambda token_ids: token_ids)

    return judge


def _check_verdict(rule: Verifier, draft: Draft, verdict: Verdict) -> None:
    """A verdict is a path from the root and one token after it: the caches keep the path."""
    end = verdict.path[-1] if verdict.path else -1
    sound = end < len(draft) and list(verdict.path) == draft.path_to(end)
    if not sound or list(verdict.token_ids[: len(verdict.path)]) != draft.tokens_to(end):
        raise ExactnessError(
            f"rule {rule.name!r} returned the path {verdict.path} and tokens {verdict.token_ids} for "
            f"a draft of {draft.token_ids}; tokens are those of a path from the root, and one more."
        )
    if len(verdict.token_ids) != len(verdict.path) + 1:
        raise ExactnessError(
            f"rule {rule.name!r} returned {len(verdict.token_ids)} tokens for a path of "
            f"{len(verdict.path)}; every round emits one token beyond its path."
        )


def default_cases(vocab_sizes: Several[int] = (3, 4)) -> Iterator[Case]:
    """Random rows with and without zeros; chains and trees, drawn or fixed."""
    for vocab_size in vocab_sizes:
        for shape in (*CHAINS, *TREES):
            largest = len(shape) > 3 and vocab_size > 3
            for seed in range(1 if largest else 2):
                yield from _cases(vocab_size, shape, seed)


def _cases(vocab_size: int, shape: tuple[int, ...], seed: int) -> Iterator[Case]:
    length = depth_of(shape) + 1
    target = RandomRows(vocab_size, seed)
    draft = RandomRows(vocab_size, 100 + seed, zeros=0.3 if shape in CHAINS else 0.0)
    fixed = np.random.default_rng([seed, *(parent + 1 for parent in shape)])
    tokens = tuple(fixed.integers(vocab_size, size=len(shape)).tolist())
    yield Case("point masses", target, ((1.0, Draft(tokens, shape)),), length)
    if shape in CHAINS:
        yield Case("chain", target, tuple(drawn_drafts(draft, shape)), length)
        return
    yield Case("tree", target, tuple(drawn_drafts(draft, shape)), length)
    if len(shape) < 5:
        drafts = tuple(drawn_drafts(draft, shape, replacement=True))
        yield Case("tree, replacement", target, drafts, length)


def _judges(rule: Verifier, case: Case) -> list[Judge]:
    judges = []
    shape, vocab_size = case.drafts[0][1].parents, case.target.vocab_size
    if isinstance(rule, DecisionRule):
        judges.append(by_decision(rule.decide))
        if shape in _SMALL and vocab_size == 3:
            judges.append(from_outside(rule))
    elif len(shape) + vocab_size <= _LARGEST_FROM_OUTSIDE:
        judges.append(from_outside(rule))
    return judges
