"""What a rule decides, without any randomness, and the one walk that follows a decision.

A decision is a list of tests. Each test passes with a probability and names what comes next either
way: another test, or the end of the walk at a node, where a token is emitted from a row. Rules
that go down from the root (token) and rules that come up from the leaves (block) differ only in
the tests that they list, so the same walk serves all of them, and whoever wants the law of the
outcome can enumerate the same tests instead of walking them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.core import Draft, Exactness, Sequence, Verdict
from forerun.randomness import Purpose, Randomness
from forerun.sampling import draw


def end_at(node: int) -> int:
    """The code of "the path ends at `node`" (-1: at the committed text), told apart by its sign."""
    return ~(node + 1)


@dataclass(frozen=True)
class Decision:
    """The tests of a draft.

    Args:
        accept: the probability that each test passes, [m].
        on_accept, on_reject: the test that comes next, or `end_at(node)`.
        start: the first test, or `end_at(-1)` where there is none.
        emit: row 0 is the distribution of the emitted token when the walk ends at the committed
            text, row i + 1 when it ends at node i; [n + 1, V].
    """

    accept: Tensor
    on_accept: tuple[int, ...]
    on_reject: tuple[int, ...]
    start: int
    emit: Tensor


def walk(draft: Draft, decision: Decision, sequence: Sequence, randomness: Randomness) -> Verdict:
    """Follow the tests with uniforms and emit one token at the end."""
    accept = decision.accept.tolist()
    key = (sequence.seed, len(sequence))
    at = decision.start
    while at >= 0:
        passed = randomness.uniform(*key, Purpose.ACCEPT, at) < accept[at]
        at = decision.on_accept[at] if passed else decision.on_reject[at]
    end = ~at - 1
    uniform = randomness.uniform(*key, Purpose.EMIT)
    token = draw(decision.emit[end + 1 : end + 2], [uniform])[0]
    return Verdict.of(draft, end, token)


class DecisionRule(ABC):
    """A rule that is nothing but its decision: it can be enumerated, and it is walked like any other."""

    name: str
    exactness = Exactness.DISTRIBUTIONAL

    @abstractmethod
    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        """The tests of a draft against the target's rows [n + 1, V], without any randomness."""

    def verify(
        self, draft: Draft, target_probs: Tensor, sequence: Sequence, randomness: Randomness
    ) -> Verdict:
        return walk(draft, self.decide(draft, target_probs), sequence, randomness)


def normalized(rows: Tensor, fallback: Tensor) -> Tensor:
    """Rows [N, V] scaled to sum to one; a row that sums to zero becomes its `fallback`."""
    total = rows.sum(-1, keepdim=True)
    smallest = torch.finfo(rows.dtype).tiny
    return (rows / total.clamp_min(smallest)).where(total > 0, fallback)
