"""Traversal and the token rule on the very same drafts: what each accepts, computed and not drawn."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from forerun.core import Draft, Sequence, Verdict
from forerun.randomness import Randomness
from forerun.testing.laws import ends_of
from forerun.verification.decision import DecisionRule
from forerun.verification.token import TokenRule
from forerun.verification.traversal import TraversalRule


class RulePairs:
    """The traversal rule, which also asks what the token rule would have done."""

    name = "traversal"
    exactness = TraversalRule.exactness

    def __init__(self) -> None:
        self._rules = (TraversalRule(), TokenRule())
        self._differences: list[float] = []

    def verify(
        self, draft: Draft, target_probs: Tensor, sequence: Sequence, randomness: Randomness
    ) -> Verdict:
        if len(draft):
            ours, theirs = (accepted(rule, draft, target_probs) for rule in self._rules)
            self._differences.append(ours - theirs)
        return self._rules[0].verify(draft, target_probs, sequence, randomness)

    def take(self) -> float:
        """The mean difference a round since it was last asked for."""
        mean = float(np.mean(self._differences))
        self._differences = []
        return mean


def accepted(rule: DecisionRule, draft: Draft, target_probs: Tensor) -> float:
    """The tokens of a draft that a rule accepts in expectation over its own randomness."""
    ends = ends_of(rule.decide(draft, target_probs), len(draft))
    return float(np.dot(ends[1:], np.array(draft.depths) + 1))
