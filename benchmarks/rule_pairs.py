"""Traversal and the token rule on the same drafts: their expected acceptance, computed, not drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from forerun.core import Draft, Request, Verdict
from forerun.randomness import Randomness
from forerun.testing.enumeration import ends_of
from forerun.verification import TargetRows
from forerun.verification.decision import DecisionRule
from forerun.verification.token import TokenRule
from forerun.verification.traversal import TraversalRule


class RulePairs:
    """The traversal rule, which also computes what the token rule would have accepted."""

    name = "traversal"
    exactness = TraversalRule.exactness

    def __init__(self) -> None:
        self._rules = (TraversalRule(), TokenRule())
        self._differences: list[float] = []

    def verify(
        self,
        drafts: Sequence[Draft],
        rows: TargetRows,
        requests: Sequence[Request],
        randomness: Randomness,
    ) -> list[Verdict]:
        for index, draft in enumerate(drafts):
            if len(draft):
                traversal, token = (
                    accepted(rule, draft, rows.probs(index)) for rule in self._rules
                )
                self._differences.append(traversal - token)
        return self._rules[0].verify(drafts, rows, requests, randomness)

    def take(self) -> float:
        """The mean difference per round since the last call."""
        mean = float(np.mean(self._differences))
        self._differences = []
        return mean


def accepted(rule: DecisionRule, draft: Draft, target_probs: Tensor) -> float:
    """The expected number of tokens that a rule accepts, over its own randomness."""
    ends = ends_of(rule.decide(draft, target_probs), len(draft))
    return float(np.dot(ends[1:], np.array(draft.tree.depths) + 1))
