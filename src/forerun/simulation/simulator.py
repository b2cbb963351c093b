"""Simulator of speculative decoding: with small language models, or with a fixed acceptance.

With language models all results are exact and slow: rows are functions of the context, and costs are counted
in plain target forwards. With NumPy's legacy generator numbers are drawn in the order of the NumPy tutorial
on speculative decoding (machinelearningplus.com), whose figures are reproduced. A fixed acceptance has the
assumptions of `formulas`, which it checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from forerun.errors import DistributionError
from forerun.measure.intervals import Estimate, ratio_of_dependent_means, ratio_of_means
from forerun.options import check
from forerun.theory.acceptance import corrected_distribution
from forerun.theory.inputs import Floats, as_row, softmax

LONGEST_TEXT = 1 << 24
MOST_DRAFTED = 4096
MOST_ROUNDS = 1 << 26
HIGHEST_COST = 1e9

Context = tuple[int, ...]


class LanguageModel(Protocol):
    """A function from a context, the oldest token first, to the next token's distribution [V], float64."""

    def __call__(self, context: Context, /) -> Floats: ...


@dataclass(frozen=True)
class MockModel:
    """A model with random logits that depend on the sum of the last three tokens; one logit is raised.

    With the defaults, it is the target of the NumPy tutorial on speculative decoding
    (machinelearningplus.com); see `MOCK_TARGET` and `MOCK_DRAFT`.

    Args:
        vocab_size: number of tokens, V.
        seed: number added to the sum of the tokens to seed NumPy's legacy generator.
        scale: standard deviation of the logits.
        boost: number added to the logit of token (sum mod V).
    """

    vocab_size: int = 10
    seed: int = 100
    scale: float = 1.0
    boost: float = 2.0

    def __post_init__(self) -> None:
        check("vocab_size", self.vocab_size, int, ge=1, le=1 << 24)
        check("seed", self.seed, int, ge=0, le=1 << 31)

    def __call__(self, context: Context, /) -> Floats:
        total = sum(context[-3:])
        logits = np.random.RandomState(total + self.seed).randn(self.vocab_size) * self.scale
        logits[total % self.vocab_size] += self.boost
        return softmax(logits)


MOCK_TARGET = MockModel()
MOCK_DRAFT = MockModel(seed=200, scale=0.8, boost=1.5)
MOCK_WORDS = ("the", "cat", "sat", "on", "mat", "dog", "ran", "big", "a", "red")
"""Words of the tutorial's tokens."""


class NumpyRandom(Protocol):
    """A random generator, such as numpy.random.default_rng or RandomState, or a script of draws."""

    def random(self) -> Any:
        """A uniform number from [0, 1), which is only compared with `<`."""

    def choice(self, a: int, /, *, p: Floats) -> Any:
        """A token id below `a`, drawn from the row `p` [V]."""


@dataclass(frozen=True)
class SimulatedRound:
    """One round of a simulation.

    Args:
        token_ids: emitted tokens: the accepted ones and one more.
        drafted: number of drafted tokens; 0 is a plain round.
    """

    token_ids: tuple[int, ...]
    drafted: int

    @property
    def accepted(self) -> int:
        """Number of accepted tokens."""
        return len(self.token_ids) - 1


@dataclass(frozen=True)
class Simulation:
    """Result of a simulated decoding loop.

    All counts are over whole rounds. The last round may emit more tokens than requested, and cutting its
    count would favour short rounds.

    Args:
        token_ids: emitted tokens, as many as requested.
        rounds: rounds, one per forward pass of the target.
    """

    token_ids: tuple[int, ...]
    rounds: tuple[SimulatedRound, ...]

    @property
    def target_calls(self) -> int:
        """Number of forward passes of the target, which is the number of rounds."""
        return len(self.rounds)

    @property
    def drafted(self) -> int:
        """Number of drafted tokens, which is that of the draft model's forward passes."""
        return sum(entry.drafted for entry in self.rounds)

    @property
    def accepted(self) -> int:
        """Number of accepted tokens."""
        return sum(entry.accepted for entry in self.rounds)

    @property
    def tokens_per_round(self) -> float:
        """Tokens per target forward, the recovered and bonus tokens included."""
        return self.accepted / self.target_calls + 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted tokens; 0 if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tested_acceptance(self) -> float:
        """Accepted / tested tokens, which estimates alpha; 0 if nothing was tested."""
        tested = sum(min(entry.accepted + 1, entry.drafted) for entry in self.rounds)
        return self.accepted / tested if tested else 0.0

    def speedup(self, cost_ratio: float = 0.0) -> Estimate:
        """Speed-up over plain decoding, with its error.

        Args:
            cost_ratio: cost of a draft forward, in plain target forwards.

        Raises:
            ConfigError: for a negative or infinite cost.
        """
        ratio = check("cost_ratio", cost_ratio, float, ge=0.0, le=HIGHEST_COST)
        emitted = [len(entry.token_ids) for entry in self.rounds]
        return ratio_of_dependent_means(emitted, [1 + ratio * r.drafted for r in self.rounds])


def speculative(
    target: LanguageModel,
    draft: LanguageModel,
    context: Sequence[int],
    num_tokens: int,
    rng: NumpyRandom,
    length: int = 5,
) -> Simulation:
    """Decode speculatively with the token rule (Leviathan et al., arXiv 2211.17192).

    Args:
        length: tokens to draft in each round; 0 is plain decoding.

    Raises:
        ConfigError: for a number of tokens below 1, or a length out of range.
        DistributionError: for invalid rows, or models of different vocabularies.
    """
    check("num_tokens", num_tokens, int, ge=1, le=LONGEST_TEXT)
    check("length", length, int, ge=0, le=MOST_DRAFTED)
    committed, rounds = list(context), list[SimulatedRound]()
    while len(committed) - len(context) < num_tokens:
        drafted, rows = list[int](), list[Floats]()
        for _ in range(length):
            rows.append(as_row("the draft's row", draft((*committed, *drafted))))
            drafted.append(int(rng.choice(len(rows[-1]), p=rows[-1])))
        start = len(committed)
        for token, drawn in zip(drafted, rows, strict=True):
            row = _target_row(target, committed)
            if len(drawn) != len(row):
                raise DistributionError(
                    f"the target has {len(row)} tokens and the draft {len(drawn)}; "
                    "both must share one vocabulary."
                )
            if not rng.random() < min(1.0, float(row[token]) / float(drawn[token])):
                row = corrected_distribution(row, drawn)
                break
            committed.append(token)
        else:
            row = _target_row(target, committed)
        committed.append(int(rng.choice(len(row), p=row)))
        rounds.append(SimulatedRound(tuple(committed[start:]), length))
    return Simulation(tuple(committed[len(context) :][:num_tokens]), tuple(rounds))


def _target_row(target: LanguageModel, committed: Sequence[int]) -> Floats:
    return as_row("the target's row", target(tuple(committed)))


class UniformSource(Protocol):
    """A generator of uniforms, such as numpy.random.default_rng or numpy.random.RandomState."""

    def random(self, size: int, /) -> Any: ...


def simulate_independent(
    acceptance: float, length: int, cost_ratio: float, rounds: int, rng: UniformSource
) -> tuple[Estimate, Estimate]:
    """Tokens a round, and the speed-up over plain decoding, of rounds with a fixed acceptance.

    Args:
        acceptance: alpha, the probability that a tested token is accepted.
        length: tokens drafted per round.
        cost_ratio: cost of a draft forward, in plain target forwards.

    Raises:
        ConfigError: for numbers out of range.
    """
    alpha = check("acceptance", acceptance, float, ge=0.0, le=1.0)
    ratio = check("cost_ratio", cost_ratio, float, ge=0.0, le=HIGHEST_COST)
    drafted = check("length", length, int, ge=0, le=1 << 16)
    tokens = np.ones(check("rounds", rounds, int, ge=1, le=MOST_ROUNDS))
    ones = np.ones_like(tokens)
    standing = np.arange(len(tokens))
    for _ in range(drafted):  # A token is tested if all before it passed.
        standing = standing[np.asarray(rng.random(len(standing))) < alpha]
        tokens[standing] += 1
    return ratio_of_means(tokens, ones), ratio_of_means(tokens, ones * (1.0 + ratio * drafted))
