"""Typical acceptance (Medusa, arXiv 2401.10774, section 3.3.1): approximate.

A drafted token is accepted if the target finds it likely enough, more readily if the target itself
is undecided. The draft's probabilities play no part, so the output leans to the draft and does not
have the target's distribution. Greedy requests are exempt: a row with one possible token accepts no
other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.core import Draft, Exactness
from forerun.errors import ConfigError
from forerun.verification.decision import Decision, DecisionRule, end_at, token_ids_and_rows

# As in Medusa's own code (posterior_threshold, posterior_alpha).
EPSILON = 0.09
DELTA = 0.3


def decide(
    draft: Draft, target_probs: Tensor, epsilon: float = EPSILON, delta: float = DELTA
) -> Decision:
    """The decision of typical acceptance, which leaves nothing to test.

    A token passes if p(token) > min(epsilon, delta exp(-H(p))), where p is the row after its
    parent, temperature and filters applied, and H its entropy in nats. The path ends at the deepest
    node whose whole path passes, the first of them on ties; the next token is drawn from the
    target's row there. Medusa takes the first token of a path greedily, so that a round emits at
    least one; here the token that ends the round serves for that.

    Args:
        draft: a point mass, chain or tree, or a drawn chain.
        target_probs: [n + 1, V].
        epsilon: a probability that is always enough.
        delta: share of the typical probability exp(-H) that is enough.

    Raises:
        ConfigError: for a drawn tree.
    """
    _refuse_drawn_trees(draft)
    depths = {-1: 0}
    passes = _passes(draft, target_probs, epsilon, delta)
    for node, parent in enumerate(draft.tree.parents):
        if passes[node] and parent in depths:
            depths[node] = depths[parent] + 1
    # Among equally deep nodes, the first.
    best = max(depths, key=depths.__getitem__)
    nowhere = (end_at(-1),) * len(draft)
    return Decision(
        target_probs.new_zeros(len(draft)), nowhere, nowhere, end_at(best), target_probs
    )


def thresholds(
    draft: Draft, target_probs: Tensor, epsilon: float = EPSILON, delta: float = DELTA
) -> Tensor:
    """The probability above which each drafted token passes, [n]."""
    _, rows = token_ids_and_rows(draft, target_probs.device)
    entropy = torch.special.entr(target_probs).sum(-1)[rows]
    enough: Tensor = (delta * (-entropy).exp()).clamp(max=epsilon)
    return enough


def _passes(draft: Draft, target_probs: Tensor, epsilon: float, delta: float) -> list[bool]:
    tokens, rows = token_ids_and_rows(draft, target_probs.device)
    enough = thresholds(draft, target_probs, epsilon, delta)
    passes: list[bool] = (target_probs[rows, tokens] > enough).tolist()
    return passes


def _refuse_drawn_trees(draft: Draft) -> None:
    if draft.probs is not None and not draft.tree.is_chain:
        raise ConfigError(
            "typical acceptance takes chains and trees of the draft's most likely tokens; "
            "use 'traversal' or 'token' for drawn trees."
        )


class TypicalRule(DecisionRule):
    """Accept tokens that the target finds likely enough; changes the distribution."""

    name = "typical"
    exactness = Exactness.APPROXIMATE

    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        return decide(draft, target_probs)
