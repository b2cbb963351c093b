"""Block verification of drawn chains (Sun et al., arXiv 2403.10444, algorithm 2).

The chain is verified as a whole: the surplus acceptance of early tokens makes up for later ones. On
average it never accepts fewer tokens than the token rule, and more wherever the two models differ.
It equals traversal verification of a chain (docs/theory.md has the proof).
"""

from __future__ import annotations

from torch import Tensor

from forerun.core import Draft
from forerun.errors import ConfigError
from forerun.verification import traversal
from forerun.verification.decision import Decision, DecisionRule


class BlockRule(DecisionRule, native="traversal"):
    """Accept or reject a chain as a whole."""

    name = "block"

    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        self.check(draft)
        return traversal.decide(draft, target_probs)

    def check(self, draft: Draft) -> None:
        if not draft.tree.is_chain or (draft.probs is None and len(draft)):
            raise ConfigError(
                "block verification takes drawn chains; use 'token' for trees and point masses."
            )
