"""Coupled verification (Daliri, Musco, Suresh, arXiv 2408.07978).

Target and draft take the argmax of log probability plus the same Gumbel noise. What is emitted is
always the target's own draw, so the output is the one that plain decoding with that seed gives,
whatever drafter, length, policy or batch. There is nothing to decide and nothing to enumerate.
"""

from __future__ import annotations

from torch import Tensor

from forerun._native import rows as native
from forerun.core import Draft, Exactness, Sequence, Verdict
from forerun.randomness import Randomness
from forerun.sampling import draw_coupled, prefixes_of


class CoupledRule:
    """Accept a token where it equals the target's own draw."""

    name = "coupled"
    compiled_as = "coupled"
    exactness = Exactness.DISTRIBUTIONAL

    def verify(
        self, draft: Draft, target_probs: Tensor, sequence: Sequence, randomness: Randomness
    ) -> Verdict:
        if native.takes(target_probs) and randomness.by_key_alone:
            end, token = native.verify_coupled(
                draft.token_ids,
                draft.parents,
                target_probs,
                sequence.seed,
                len(sequence),
                sequence.params.greedy,
            )
            return Verdict.of(draft, end, token)
        draws = draw_coupled(target_probs, prefixes_of(sequence, draft), randomness)
        end = -1
        for node, parent in enumerate(draft.parents):
            # Parents come first, so one pass follows the path down.
            if parent == end and draft.token_ids[node] == draws[parent + 1]:
                end = node
        return Verdict.of(draft, end, draws[end + 1])
