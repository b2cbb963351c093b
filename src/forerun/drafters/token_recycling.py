"""Drafts the tokens that the target found most likely after each token when it last ran it.

Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token
Recycling", arXiv 2408.08696: every verification yields the most likely next tokens of each node,
accepted or not; they are stored in one row per token, and the rows make a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from forerun.contracts import DrafterSetup
from forerun.core import NO_DRAFT, Draft, ForwardOutput, Plan, Request, Verdict
from forerun.drafters.base import LookupDrafter, Namespaces, likeliest
from forerun.trees.host import Child, grow_on_host

# Modules that need torch or NumPy are imported where they are used: the help is read without them.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.int32]

# Next tokens stored for each token: 4 bytes each, so 32 bytes per token of the vocabulary.
NEXT_TOKENS = 8
# Number of namespaces that have a matrix; the most recently used ones stay.
MOST_NAMESPACES = 8
# Share of next tokens that were those of each rank, if there was a row: the zoo's target at temperature 0.7,
# over 60 held-out prompts.
RANK_SHARES = (0.65, 0.07, 0.036, 0.018, 0.012, 0.01, 0.009, 0.007)
# Share of chains of 4 tokens that the target accepted, measured in the same way.
CONFIDENCE = 0.33


class TokenRecyclingDrafter(LookupDrafter):
    """Drafts chains and trees from a matrix of next tokens, which starts empty in each namespace.

    Requests of a namespace share a matrix, [vocab_size, 8] int32: 4.6 MiB for 150,000 tokens. As
    many matrices are stored as requests run at once, but at least 8.

    Args:
        vocab_size: the target's.
        rows: number of requests that run at once.
    """

    name = "token_recycling"

    def __init__(self, vocab_size: int, rows: int = 1) -> None:
        import numpy as np

        self.vocab_size = vocab_size
        shape = (vocab_size, min(NEXT_TOKENS, vocab_size))
        self._matrices: Namespaces[Matrix] = Namespaces(
            lambda: np.full(shape, -1, dtype=np.int32), max(MOST_NAMESPACES, rows)
        )

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        return cls(setup.target.vocab_size, setup.rows)

    def confidence(self, request: Request) -> float:
        """The usual confidence if the newest token has a row, otherwise 0."""
        matrix = self._matrices.get(request.hints.namespace)
        return CONFIDENCE if matrix is not None and matrix[request.token_ids[-1], 0] >= 0 else 0.0

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        output: ForwardOutput,
    ) -> None:
        """Update the rows of the newest token and of all nodes."""
        if output.logits is None:
            return
        rounds = zip(requests, drafts, verdicts, output.logits, strict=True)
        for request, draft, verdict, logits in rounds:
            # A failed request is left out, because its logits may be the cause.
            if verdict.token_ids and request.speculative:
                tokens = [request.token_ids[-1 - len(verdict.token_ids)], *draft.token_ids]
                top = likeliest(logits[: len(tokens)], NEXT_TOKENS)
                matrix = self._matrices.get_or_make(request.hints.namespace)
                matrix[tokens] = top.cpu().numpy()

    def draft(self, request: Request, plan: Plan) -> Draft:
        from forerun.trees.search import best_tree

        matrix = self._matrices.get(request.hints.namespace)
        if matrix is None:
            return NO_DRAFT
        known: dict[int, list[Child[int]]] = {}

        def expand(token: int) -> list[Child[int]]:
            if token not in known:
                row = matrix[token].tolist()
                # A row is either filled or empty.
                filled = row if row[0] >= 0 else ()
                known[token] = list(zip(filled, RANK_SHARES, filled, strict=False))
            return known[token]

        if plan.num_nodes is not None:
            # The same shape for every token, as in the paper, so that only nodes with children are looked
            # up.
            tree = best_tree(RANK_SHARES, plan.num_nodes, plan.num_tokens)
            plan = replace(plan, tree=tree, num_nodes=None)
        return grow_on_host(request, plan, request.token_ids[-1], expand)
