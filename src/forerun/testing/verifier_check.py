"""`check_verifier`: proves a rule exact by enumeration, in one line of a test suite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from forerun.contracts import Verifier
from forerun.core import Draft, Request, Tree, Verdict
from forerun.errors import ConfigError, ExactnessError
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.sampling import Prefix, draw_coupled
from forerun.testing.enumeration import (
    Emit,
    NoiseError,
    Outcomes,
    RandomRows,
    Rows,
    by_decision,
    deviation,
    drawn_drafts,
    emitted_distribution,
    outcomes,
    target_distribution,
    target_rows,
)
from forerun.verification import TargetRows, verify_one
from forerun.verification.decision import DecisionRule

# Largest deviation due to rounding, in float64 over distributions of a few hundred sequences.
BOUND = 1e-12
CHAINS = ((-1,), (-1, 0), (-1, 0, 1))
TREES = ((-1, -1), (-1, -1, 0, 0), (-1, -1, -1, 1), (-1, 0, 0, -1), (-1, -1, 0, 1, 1))
_SMALL = ((-1,), (-1, 0), (-1, -1))
# Most nodes plus tokens in the cases for a rule without `decide`.
_LARGEST_FROM_OUTSIDE = 6
# Seeds per case for a rule that draws by noise.
_SEEDS = 40


@dataclass(frozen=True)
class Case:
    """A case to enumerate: drafts over one tree, against one target.

    Args:
        kind: `chain`, `tree`, `tree, replacement`, or `point masses`.
        target: the rows of the target.
        drafts: pairs of probability and draft.
        length: length of the sequences whose distribution is compared.
    """

    kind: str
    target: Rows
    drafts: tuple[tuple[float, Draft], ...]
    length: int

    def __str__(self) -> str:
        return (
            f"{self.kind} {list(self.drafts[0][1].tree.parents)}, {self.target.vocab_size} tokens, "
            f"sequences of {self.length}"
        )


@dataclass(frozen=True)
class Enumeration:
    """Result of an enumeration.

    Args:
        cases: number of distributions compared.
        sequences: number of whole sequences over all cases.
        seeds: number of seeds compared with plain decoding, for rules that draw by noise and have no
            distribution to enumerate. They count as sequences too.
        largest_deviation: largest deviation of a probability, or number of tokens per seed that differ
            from plain decoding's; 0.0 without cases.
        kinds: kinds of the drafts.
        worst_case: name of the case with the largest deviation.
    """

    cases: int = 0
    sequences: int = 0
    seeds: int = 0
    largest_deviation: float = 0.0
    kinds: tuple[str, ...] = ()
    worst_case: str = ""

    def __add__(self, other: Enumeration) -> Enumeration:
        worst = max(self, other, key=lambda result: result.largest_deviation)
        return Enumeration(
            self.cases + other.cases,
            self.sequences + other.sequences,
            self.seeds + other.seeds,
            worst.largest_deviation,
            tuple(dict.fromkeys((*self.kinds, *other.kinds))),
            worst.worst_case,
        )


def check_verifier(
    rule: Verifier, cases: Iterable[Case] | None = None, bound: float = BOUND
) -> Enumeration:
    """Prove that a rule leaves the target's distribution as it is, over every outcome.

    Args:
        rule: rule to check.
        cases: cases to enumerate; None for all chains and trees of `default_cases`.
        bound: largest deviation of a probability that counts as rounding.

    Raises:
        ExactnessError: if the distribution changes (the message names the worst case), if the rule
            refuses all cases, or if it returns anything but a path and one token after it.
        ConfigError: for an object that is not a rule, or an empty list of cases.
    """
    if not callable(getattr(rule, "verify", None)) or not hasattr(rule, "name"):
        raise ConfigError(f"{rule!r} is not a rule; give an object with a name and verify().")
    cases = list(default_cases() if cases is None else cases)
    if not cases:
        raise ConfigError("the list of cases is empty; leave it out for the default cases.")
    result = enumerate_rule(rule, cases)
    if not result.cases:
        raise ExactnessError(f"rule {rule.name!r} refused every chain and every tree.")
    if not result.largest_deviation <= bound:
        raise ExactnessError(
            f"rule {rule.name!r} changes the distribution: over {result.worst_case}, a probability is "
            f"off by {result.largest_deviation:.1e} (allowed: {bound:.0e})."
        )
    return result


def enumerate_rule(rule: Verifier, cases: Iterable[Case]) -> Enumeration:
    """Compare a rule's output with the target's own distribution, over all cases that the rule takes.

    A `DecisionRule` is enumerated through its `decide`. On the smallest trees it is enumerated from
    outside as well, which proves that its walk follows the decision. Any other rule is enumerated from
    outside only, on the smaller trees, because that takes some fifty runs per edge. A rule that draws
    by the noise of a seed must emit plain decoding's tokens. Cases that the rule refuses with a
    ConfigError are left out.
    """
    total = Enumeration()
    for case in cases:
        for emit in _ways_to_emit(rule, case):
            try:
                result = compare(emit, case)
            except NoiseError:
                result = _compare_with_plain(rule, case)
            except ConfigError:
                continue
            total += result
    return total


def compare(emit: Emit, case: Case) -> Enumeration:
    """Compare the emitted distribution of a case with the target's own."""
    truth = target_distribution(case.target, case.length)
    emitted = emitted_distribution(emit, case.target, case.drafts, case.length)
    return Enumeration(1, len(truth), 0, deviation(emitted, truth), (case.kind,), str(case))


def _compare_with_plain(rule: Verifier, case: Case) -> Enumeration:
    """Compare a rule that draws by noise with plain decoding under the same seeds.

    The deviation is the number of tokens per seed that differ.
    """
    misses = 0
    for seed in range(_SEEDS):
        draft = case.drafts[seed % len(case.drafts)][1]
        request = Request(0, [0], 1, SamplingParams(seed=seed), seed=seed)
        verdict = verify_one(rule, draft, target_rows(case.target, draft), request, Randomness())
        _check_verdict(rule, draft, verdict)
        for index, token in enumerate(verdict.token_ids):
            before = verdict.token_ids[:index]
            row = torch.tensor(case.target.row(before))[None]
            misses += token != draw_coupled(row, [Prefix(request, before)], Randomness())[0]
    return Enumeration(1, _SEEDS, _SEEDS, misses / _SEEDS, (case.kind,), str(case))


def from_outside(rule: Verifier) -> Emit:
    """An `Emit` that runs a rule with every number that it may draw."""

    def emit(draft: Draft, probs: torch.Tensor) -> Outcomes:
        request = Request(0, [0], 1, SamplingParams(), seed=0)
        rows = TargetRows.of_probs([probs], [draft], [request])

        def run(randomness: Randomness) -> tuple[int, ...]:
            [verdict] = rule.verify([draft], rows, [request], randomness)
            _check_verdict(rule, draft, verdict)
            return verdict.token_ids

        return outcomes(run, lambda token_ids: token_ids)

    return emit


def _check_verdict(rule: Verifier, draft: Draft, verdict: Verdict) -> None:
    """Check that a verdict is a path from the root, which caches keep, and one token after it."""
    end = verdict.path[-1] if verdict.path else -1
    is_path = end < len(draft) and list(verdict.path) == draft.tree.path_to(end)
    if not is_path or list(verdict.token_ids[: len(verdict.path)]) != draft.tokens_to(end):
        raise ExactnessError(
            f"rule {rule.name!r} returned the path {verdict.path} and tokens {verdict.token_ids} for "
            f"a draft of {draft.token_ids}; it must return the tokens of a path from the root and one more."
        )
    if len(verdict.token_ids) != len(verdict.path) + 1:
        raise ExactnessError(
            f"rule {rule.name!r} returned {len(verdict.token_ids)} tokens for a path of "
            f"{len(verdict.path)}; every round emits one token after its path."
        )


def default_cases(vocab_sizes: Sequence[int] = (3, 4)) -> Iterator[Case]:
    """Cases over random rows with and without zeros: chains and trees, drawn or point masses."""
    for vocab_size in vocab_sizes:
        for shape in (*CHAINS, *TREES):
            is_large = len(shape) > 3 and vocab_size > 3
            for seed in range(1 if is_large else 2):
                yield from _cases(vocab_size, shape, seed)


def _cases(vocab_size: int, shape: tuple[int, ...], seed: int) -> Iterator[Case]:
    length = Tree(shape).depth + 1
    target = RandomRows(vocab_size, seed)
    draft = RandomRows(vocab_size, 100 + seed, zeros=0.3 if shape in CHAINS else 0.0)
    random = np.random.default_rng([seed, *(parent + 1 for parent in shape)])
    tokens = tuple(random.integers(vocab_size, size=len(shape)).tolist())
    yield Case("point masses", target, ((1.0, Draft(Tree(shape), tokens)),), length)
    if shape in CHAINS:
        yield Case("chain", target, tuple(drawn_drafts(draft, shape)), length)
        return
    yield Case("tree", target, tuple(drawn_drafts(draft, shape)), length)
    if len(shape) < 5:
        drafts = tuple(drawn_drafts(draft, shape, replacement=True))
        yield Case("tree, replacement", target, drafts, length)


def _ways_to_emit(rule: Verifier, case: Case) -> list[Emit]:
    ways = []
    shape, vocab_size = case.drafts[0][1].tree.parents, case.target.vocab_size
    if isinstance(rule, DecisionRule):
        ways.append(by_decision(rule.decide))
        if shape in _SMALL and vocab_size == 3:
            ways.append(from_outside(rule))
    elif len(shape) + vocab_size <= _LARGEST_FROM_OUTSIDE:
        ways.append(from_outside(rule))
    return ways
