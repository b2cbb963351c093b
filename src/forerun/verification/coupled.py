"""Coupled verification (Daliri, Musco, Suresh, arXiv 2408.07978).

Target and draft take the argmax of log probability plus the same Gumbel noise. What is emitted is
always the target's own draw, so the output is the one that plain decoding with that seed gives,
whatever drafter, length, policy or batch. There is nothing to decide and nothing to enumerate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.core import Draft, Exactness, Request, Verdict
from forerun.randomness import Randomness
from forerun.sampling import Prefix, coupled_tensor, draw_coupled
from forerun.verification.rows import TargetRows


class CoupledRule:
    """Accept a token where it equals the target's own draw."""

    name = "coupled"
    exactness = Exactness.DISTRIBUTIONAL

    def verify(
        self,
        drafts: Sequence[Draft],
        rows: TargetRows,
        requests: Sequence[Request],
        randomness: Randomness,
    ) -> list[Verdict]:
        """Verify the drafts of a round, as `forerun.contracts.Verifier` says."""
        verdicts = rows.verify_natively("coupled", randomness)
        smooth = [
            index
            for index, request in enumerate(requests)
            if index not in verdicts and request.params.mask is None
        ]
        draws = [_draw_all(rows, drafts[i], i, requests[i], randomness) for i in smooth]
        # One transfer from the device for all of them.
        values = iter(torch.cat(draws).tolist() if draws else [])
        for index in smooth:
            tokens = [next(values) for _ in range(len(drafts[index]) + 1)]
            if min(tokens) >= 0:
                verdicts[index] = _follow(drafts[index], tokens)
        return [
            verdicts[index]
            if index in verdicts
            else _row_by_row(draft, rows, index, requests[index], randomness)
            for index, draft in enumerate(drafts)
        ]


def _draw_all(
    rows: TargetRows, draft: Draft, index: int, request: Request, randomness: Randomness
) -> Tensor:
    """The target's own draw after every node, [n + 1]; -1 after one whose row is broken."""
    probs, broken = rows.unchecked(index)
    prefixes = [Prefix(request, tuple(draft.tokens_to(node))) for node in range(-1, len(draft))]
    return coupled_tensor(probs, prefixes, randomness).masked_fill(broken, -1)


def _follow(draft: Draft, draws: list[int]) -> Verdict:
    end = -1
    for node, parent in enumerate(draft.tree.parents):
        # Parents come first, so one pass follows the path down.
        if parent == end and draft.token_ids[node] == draws[parent + 1]:
            end = node
    return Verdict.of(draft, end, draws[end + 1])


def _row_by_row(
    draft: Draft, rows: TargetRows, index: int, request: Request, randomness: Randomness
) -> Verdict:
    """Go down the path that plain decoding takes, asking for no other row: hooks may fail."""
    end = -1
    while True:
        try:
            row = rows.row(index, end)
        except Exception as error:
            return Verdict.up_to(draft, end, error)
        prefix = Prefix(request, tuple(draft.tokens_to(end)))
        token = draw_coupled(row, [prefix], randomness)[0]
        matching = [n for n in draft.tree.children(end) if draft.token_ids[n] == token]
        if not matching:
            return Verdict.of(draft, end, token)
        end = matching[0]
        if token in request.stop_token_ids:
            return Verdict.up_to(draft, end)
