"""Coupled verification (Daliri, Musco, Suresh, arXiv 2408.07978).

Target and draft take the argmax of log probability plus the same Gumbel noise. The emitted tokens
are always the target's own draws, so the output is that of plain decoding with the same seed,
whatever the drafter, length, policy or batch. There is nothing to decide and nothing to enumerate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from forerun.core import Verdict
from forerun.randomness import Randomness
from forerun.sampling import coupled_tensor, draw_coupled
from forerun.verification.decision import Pending, Rule
from forerun.verification.target_rows import TargetRows


class CoupledRule(Rule, native="coupled"):
    """Accept a token if it equals the target's own draw."""

    name = "coupled"

    def prepare(self, rows: TargetRows, index: int, randomness: Randomness) -> Pending:
        """Draw from the target's rows, as many as can be drawn without waiting for a device.

        On a device a token is drawn after every node. On the CPU, and with a mask hook, tokens are
        drawn only along the path that plain decoding takes.
        """
        draft, request = rows.drafts[index], rows.requests[index]
        draws = torch.zeros(0)
        if not rows.on_host and request.params.mask is None:
            probs, failed = rows.unchecked(index)
            prefixes = [rows.prefix(index, node) for node in range(-1, len(draft))]
            draws = coupled_tensor(probs, prefixes, randomness).masked_fill(failed, -1)

        def follow(values: Sequence[float]) -> Verdict:
            end = -1
            while True:
                token = int(values[end + 1]) if values else -1
                if token < 0:  # Not drawn yet, or from a row that failed.
                    try:
                        row = rows.row(index, end)
                    except Exception as error:
                        return Verdict.up_to(draft, end, error)
                    [token] = draw_coupled(row, [rows.prefix(index, end)], randomness)
                matching = [n for n in draft.tree.children(end) if draft.token_ids[n] == token]
                if not matching:
                    return Verdict.of(draft, end, token)
                end = matching[0]
                if token in request.stop_token_ids:
                    return Verdict.up_to(draft, end)

        return Pending(draws, follow)
