"""The target's rows of a round: logits that become probabilities where a rule asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from forerun._native import rows as native
from forerun.core import Draft, Request, Tree, Verdict
from forerun.randomness import Randomness
from forerun.sampling import Prefix, adjusted, warp, warp_unchecked

if TYPE_CHECKING:
    from forerun._native.kernels import DraftToVerify


@dataclass(frozen=True)
class Reachable:
    """A draft without what follows a node after which plain decoding would fail.

    Whether a node has children then depends on the node, which was drawn before them, so leaving
    them out is exact; the request itself fails only where its path ends at such a node.

    Args:
        draft: what is left.
        nodes: the node of the whole draft that each of its nodes is.
        probs: its rows, [n + 1, V].
        errors: what goes wrong after a node of `draft`, -1 being the committed text.
    """

    draft: Draft
    nodes: tuple[int, ...]
    probs: Tensor
    errors: dict[int, Exception]


class TargetRows:
    """The rows that judge the drafts of a round: row 0 of a request follows its committed tokens,
    row i + 1 follows node i.

    Args:
        logits: [B, n, V], n being the rows of the longest draft at least.
        drafts, requests: B each.
    """

    def __init__(
        self, logits: Tensor, drafts: Sequence[Draft], requests: Sequence[Request]
    ) -> None:
        wide = logits.dtype is torch.float64
        self._logits = (logits if wide else logits.float()).contiguous()
        self.drafts, self.requests = drafts, requests
        self._probs: dict[int, Tensor] = {}

    @classmethod
    def of_probs(
        cls, probs: Sequence[Tensor], drafts: Sequence[Draft], requests: Sequence[Request]
    ) -> TargetRows:
        """Rows that are probabilities already, [n + 1, V] for each request: for enumeration."""
        rows = cls(torch.zeros(len(probs), 0, 0), drafts, requests)
        rows._probs = dict(enumerate(probs))
        return rows

    def of(self, indices: Sequence[int]) -> TargetRows:
        """The rows of some of the requests."""
        if len(indices) == len(self.drafts):
            return self
        drafts = [self.drafts[index] for index in indices]
        return TargetRows(self._logits[indices], drafts, [self.requests[i] for i in indices])

    def logits(self, index: int) -> Tensor:
        """The raw rows of a request, [n + 1, V]."""
        return self._logits[index, : len(self.drafts[index]) + 1]

    def probs(self, index: int) -> Tensor:
        """The rows of a request as it draws from them, [n + 1, V].

        Raises:
            DistributionError: for a row that is NaN or infinite, or that leaves no token possible.
            Exception: of the request's mask hook.
        """
        if index not in self._probs:
            self._probs[index] = self._all_rows(index)
        return self._probs[index]

    def _all_rows(self, index: int) -> Tensor:
        draft, request = self.drafts[index], self.requests[index]
        if request.params.mask is None:
            return warp(self.logits(index), prefixes_of(request, draft))
        reachable = self.reachable(index)
        for error in reachable.errors.values():
            raise error
        return reachable.probs

    def unchecked(self, index: int) -> tuple[Tensor, Tensor]:
        """The same without waiting for a device, and which rows are not distributions, bool [n + 1]."""
        if index in self._probs:
            probs = self._probs[index]
            return probs, torch.zeros(len(probs), dtype=torch.bool, device=probs.device)
        draft, request = self.drafts[index], self.requests[index]
        return warp_unchecked(self.logits(index), prefixes_of(request, draft))

    def row(self, index: int, node: int) -> Tensor:
        """The row after one node, [1, V].

        Raises:
            DistributionError, Exception: as `probs`.
        """
        if index in self._probs:
            return self._probs[index][node + 1 : node + 2]
        draft, request = self.drafts[index], self.requests[index]
        prefix = Prefix(request, tuple(draft.tokens_to(node)))
        return warp(self.logits(index)[node + 1 : node + 2], [prefix])

    def log_probs(self, index: int, node: int, mode: str) -> Tensor:
        """What is reported as log probabilities after a node: of the `raw` or the `processed` row."""
        if mode == "processed":
            return self.row(index, node).log()
        return self.logits(index)[node + 1 : node + 2].log_softmax(-1)

    def reachable(self, index: int) -> Reachable:
        """The part of a draft that plain decoding could come to, row by row.

        A mask hook is asked about prefixes alone that plain decoding could reach: not about one that
        holds a token which the rows before exclude, and not about what follows a stop token. Rows of
        other prefixes are never followed to an emitted token; they repeat their parent's.
        """
        draft, request = self.drafts[index], self.requests[index]
        position = {-1: -1}
        nodes: list[int] = []
        rows: list[Tensor] = []
        asked = {-1: True}
        errors: dict[int, Exception] = {}
        for node in range(-1, len(draft)):
            parent = draft.tree.parents[node] if node >= 0 else -1
            if node >= 0:
                if parent not in position or position[parent] in errors:
                    continue
                position[node] = len(nodes)
                nodes.append(node)
                token, before = draft.token_ids[node], rows[position[parent] + 1]
                possible = token not in request.stop_token_ids and bool(before[0, token] > 0)
                asked[node] = asked[parent] and possible
            if not asked[node]:
                rows.append(rows[position[parent] + 1])
                continue
            try:
                rows.append(self.row(index, node))
            except Exception as error:
                errors[position[node]] = error
                rows.append(torch.full_like(self.logits(index)[:1], 1 / self._logits.shape[-1]))
        return Reachable(_part_of(draft, nodes, position), tuple(nodes), torch.cat(rows), errors)

    def verify_natively(self, rule: str, randomness: Randomness) -> dict[int, Verdict]:
        """What the kernels make of the drafts under a rule, by request, in one call: of all requests
        that they can verify, and that do not fail.

        Args:
            rule: `token`, `traversal` or `coupled`.
        """
        if self._probs or not randomness.by_key_alone or not native.takes(self._logits):
            return {}
        indices = [index for index in range(len(self.drafts)) if self._is_native(index)]
        if not indices:
            return {}
        ready = [self._native_draft(rule, index) for index in indices]
        results = native.verify_batch(ready, self._native_logits(indices))
        return {
            index: Verdict.of(self.drafts[index], *result)
            for index, result in zip(indices, results, strict=True)
            if not isinstance(result, Exception)
        }

    def _is_native(self, index: int) -> bool:
        probs = self.drafts[index].probs
        fits = probs is None or (isinstance(probs, Tensor) and probs.is_cpu)
        return fits and self.requests[index].params.mask is None

    def _native_draft(self, rule: str, index: int) -> DraftToVerify:
        draft, request = self.drafts[index], self.requests[index]
        probs = native_probs(draft, self._logits.dtype)
        return native.draft_to_verify(
            rule,
            draft.token_ids,
            draft.tree.parents,
            probs,
            request.params.warp,
            request.seed,
            len(request),
        )

    def _native_logits(self, indices: list[int]) -> Tensor:
        """The rows of some requests, after penalties, bias and bans."""
        logits = self._logits
        if len(indices) < len(logits):
            logits = logits[indices]
        changed = [place for place, index in enumerate(indices) if self._adjusts(index)]
        if changed and logits is self._logits:
            logits = logits.clone()
        for place in changed:
            draft, request = self.drafts[indices[place]], self.requests[indices[place]]
            count = len(draft) + 1
            logits[place, :count] = adjusted(logits[place, :count], prefixes_of(request, draft))
        return logits

    def _adjusts(self, index: int) -> bool:
        return self.requests[index].params.adjusts


def prefixes_of(request: Request, draft: Draft) -> list[Prefix]:
    """What stands before the n + 1 rows of a draft: the committed tokens, then each node."""
    if not request.params.adjusts:
        # Only penalties, biases and masks look at it.
        return [Prefix(request)] * (len(draft) + 1)
    return [Prefix(request, tuple(draft.tokens_to(node))) for node in range(-1, len(draft))]


def takes(draft: Draft, target_probs: Tensor) -> bool:
    """Whether the kernels can work on these rows."""
    probs = draft.probs
    if not isinstance(probs, Tensor):
        return probs is None and native.takes(target_probs)
    return native.takes(target_probs) and probs.is_cpu


def native_probs(draft: Draft, dtype: torch.dtype) -> Tensor | None:
    """The rows of a draft that `takes` has passed, as the kernels read them."""
    probs = draft.probs
    return probs.to(dtype).contiguous() if isinstance(probs, Tensor) else None


def _part_of(draft: Draft, nodes: list[int], position: dict[int, int]) -> Draft:
    """A draft of some of its nodes, parents included."""
    if len(nodes) == len(draft):
        return draft
    tree = Tree(tuple(position[draft.tree.parents[node]] for node in nodes))
    probs = draft.probs
    if isinstance(probs, Tensor):
        probs = probs[nodes] if nodes else None
    elif probs is not None:
        probs = type(probs)(probs.token_ids[nodes], probs.values[nodes])
    return Draft(tree, tuple(draft.token_ids[node] for node in nodes), probs)
