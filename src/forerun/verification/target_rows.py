"""The target's rows of a round: logits that become probabilities when a rule asks for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun._native import rows as native
from forerun.core import Draft, Request, Verdict
from forerun.errors import DistributionError
from forerun.randomness import Randomness
from forerun.sampling import Prefix, adjusted, warp, warp_unchecked


class TargetRows:
    """The rows that verify the drafts of a round.

    Row 0 of a request follows its committed tokens, row i + 1 follows node i.

    Args:
        logits: [B, n, V]; n is at least the number of rows of the longest draft.
        drafts, requests: B each.
    """

    def __init__(
        self, logits: Tensor, drafts: Sequence[Draft], requests: Sequence[Request]
    ) -> None:
        if logits.dtype not in (torch.float32, torch.float64):
            logits = logits.float()
        self._logits = logits.contiguous()
        self.drafts, self.requests = drafts, requests
        self._are_probs = False
        # By request: its rows, and flags of failed ones. By request and node: the error.
        self._probs: dict[int, tuple[Tensor, Tensor]] = {}
        self._errors: dict[tuple[int, int], Exception] = {}

    @classmethod
    def of_probs(
        cls, probs: Sequence[Tensor], drafts: Sequence[Draft], requests: Sequence[Request]
    ) -> TargetRows:
        """Rows that already are probabilities, [n + 1, V] for each request; for enumeration."""
        rows = cls(torch.zeros(len(probs), 0, 0), drafts, requests)
        rows._are_probs = True
        fine = [torch.zeros(len(row), dtype=torch.bool, device=row.device) for row in probs]
        rows._probs = dict(enumerate(zip(probs, fine, strict=True)))
        return rows

    def of(self, indices: Sequence[int]) -> TargetRows:
        """The rows of some of the requests."""
        if len(indices) == len(self.drafts):
            return self
        drafts = [self.drafts[index] for index in indices]
        return TargetRows(self._logits[indices], drafts, [self.requests[i] for i in indices])

    def adopt(self, part: TargetRows, indices: Sequence[int]) -> None:
        """Take over the rows computed by `part`, which holds these requests, so that hooks are asked once."""
        if part is not self:
            self._probs |= {indices[index]: rows for index, rows in part._probs.items()}

    @property
    def on_host(self) -> bool:
        return self._logits.is_cpu

    def logits(self, index: int) -> Tensor:
        """The raw rows of a request, [n + 1, V]."""
        return self._logits[index, : len(self.drafts[index]) + 1]

    def prefix(self, index: int, node: int) -> Prefix:
        """The tokens before the row after a node."""
        return Prefix(self.requests[index], tuple(self.drafts[index].tokens_to(node)))

    def probs(self, index: int) -> Tensor:
        """The rows that a request's tokens are drawn from, [n + 1, V].

        Raises:
            DistributionError: for a row that is NaN or infinite, or that leaves no token possible.
            Exception: of the request's mask hook.
        """
        probs, failed = self.unchecked(index)
        if failed.any():
            raise self.error(index, int(failed.nonzero()[0]) - 1)
        return probs

    def unchecked(self, index: int) -> tuple[Tensor, Tensor]:
        """The rows of `probs` without waiting for a device, and flags of those that failed, bool [n + 1].

        Failed rows are uniform. A rule may go on as if the target had such rows: its output is
        exact for that target, and nothing is emitted after a prefix whose row failed.
        """
        if index not in self._probs:
            has_mask = self.requests[index].params.mask is not None
            self._probs[index] = self._masked(index) if has_mask else self._warped(index)
        return self._probs[index]

    def error(self, index: int, node: int) -> Exception:
        """The error of the row after a node, which failed."""
        if (index, node) not in self._errors:
            try:
                self.row(index, node)
            except DistributionError as error:
                self._errors[index, node] = error
        return self._errors[index, node]

    def row(self, index: int, node: int) -> Tensor:
        """The row after one node, [1, V].

        Raises:
            DistributionError, Exception: as `probs` does.
        """
        if self._are_probs:
            return self._probs[index][0][node + 1 : node + 2]
        return warp(self.logits(index)[node + 1 : node + 2], [self.prefix(index, node)])

    def log_probs(self, index: int, node: int, mode: str) -> Tensor:
        """Log probabilities to report after a node, of the `raw` or the `processed` row."""
        if mode == "processed":
            made = self._probs.get(index)
            return (self.row(index, node) if made is None else made[0][node + 1 : node + 2]).log()
        return self.logits(index)[node + 1 : node + 2].log_softmax(-1)

    def _warped(self, index: int) -> tuple[Tensor, Tensor]:
        return warp_unchecked(self.logits(index), self._prefixes(index))

    def _masked(self, index: int) -> tuple[Tensor, Tensor]:
        """The rows of a request with a mask hook, one by one, and flags of those at which it failed.

        The hook is asked only about prefixes that plain decoding could reach. Not asked about are a
        prefix with a token that the rows before it exclude, and prefixes after a stop token or
        after one that the hook failed at. Rows of such prefixes repeat their parent's: none is
        followed to an emitted token.
        """
        draft, request = self.drafts[index], self.requests[index]
        rows: list[Tensor] = []
        asked: set[int] = set()
        for node, parent in enumerate((-1, *draft.tree.parents), start=-1):
            if node >= 0:
                token, before = draft.token_ids[node], rows[parent + 1]
                ended = parent not in asked or token in request.stop_token_ids
                if ended or before[0, token] <= 0:
                    rows.append(before)
                    continue
            try:
                rows.append(self.row(index, node))
                asked.add(node)
            except Exception as error:
                self._errors[index, node] = error
                rows.append(torch.full_like(self.logits(index)[:1], 1 / self._logits.shape[-1]))
        failed = [(index, node) in self._errors for node in range(-1, len(draft))]
        return torch.cat(rows), torch.tensor(failed, device=self._logits.device)

    def verify_natively(self, rule: str, randomness: Randomness) -> dict[int, Verdict]:
        """Verdicts of the kernels under a rule, computed in one call, by index of the request.

        Requests that the kernels cannot verify, and those that fail, are left out.

        Args:
            rule: `token`, `traversal` or `coupled`.
            randomness: the engine's.
        """
        if self._are_probs or not randomness.by_key_alone or not native.takes(self._logits):
            return {}
        indices = [
            index
            for index, (draft, request) in enumerate(zip(self.drafts, self.requests, strict=True))
            if takes(draft) and request.params.mask is None
        ]
        if not indices:
            return {}
        drafts = [
            native.draft_to_verify(
                rule,
                draft.token_ids,
                draft.tree.parents,
                native_probs(draft, self._logits.dtype),
                request.params.warp,
                (request.seed, len(request)),
            )
            for draft, request in ((self.drafts[i], self.requests[i]) for i in indices)
        ]
        results = native.verify_batch(drafts, self._adjusted(indices))
        return {
            index: Verdict.of(self.drafts[index], *result)
            for index, result in zip(indices, results, strict=True)
            if not isinstance(result, Exception)
        }

    def _adjusted(self, indices: list[int]) -> Tensor:
        """Logits of some requests after penalties, bias and bans."""
        logits = self._logits if len(indices) == self._logits.shape[0] else self._logits[indices]
        for place, index in enumerate(indices):
            if self.requests[index].params.adjusts:
                if logits is self._logits:
                    logits = logits.clone()
                rows = self.logits(index)
                logits[place, : len(rows)] = adjusted(rows, self._prefixes(index))
        return logits

    def _prefixes(self, index: int) -> list[Prefix]:
        """The tokens before each row of a request."""
        draft, request = self.drafts[index], self.requests[index]
        if not request.params.adjusts:
            # Only penalties, biases and masks depend on the drafted tokens.
            return [Prefix(request)] * (len(draft) + 1)
        return [self.prefix(index, node) for node in range(-1, len(draft))]


def takes(draft: Draft) -> bool:
    """True if the kernels can read the rows of a draft."""
    return draft.probs is None or (isinstance(draft.probs, Tensor) and draft.probs.is_cpu)


def native_probs(draft: Draft, dtype: torch.dtype) -> Tensor | None:
    """The rows of a draft for which `takes` is true, as the kernels read them."""
    probs = draft.probs
    return probs.to(dtype).contiguous() if isinstance(probs, Tensor) else None
