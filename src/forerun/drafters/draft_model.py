"""A smaller model that runs ahead, level by level, batched over all requests that draft."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field

from forerun.contracts import CausalLM, ChainRequest, DrafterSetup, drafts_chains
from forerun.core import CONTEXT_FULL, MOST_NODES, Draft, Drawing, Plan, Request
from forerun.drafters.base import BaseDrafter, drafts_of, fits_one_call
from forerun.options import known, options
from forerun.placement import PRECISIONS

# Modules that need torch are imported where they are used: options and help are read without it.
if TYPE_CHECKING:
    from torch import Tensor

    from forerun.drafters.translation import Translation
    from forerun.randomness import Randomness
    from forerun.trees.growth import Growth


logger = logging.getLogger(__name__)


@options
class DraftModelOptions:
    """Precision of the draft model, which is loaded before the drafter is built."""

    draft_dtype: Annotated[str, known("draft_dtype", lambda: ("auto", *PRECISIONS))] = Field(
        default="auto",
        description="Precision of the draft model: auto (as stored, on the CPU kernels int8 or int4), fp32, "
        "bf16, fp16, int8 or int4.",
    )


class DraftModelDrafter(BaseDrafter):
    """Drafts chains and trees with a second model.

    With a model of another vocabulary it proposes only tokens that both have (Timor et al., arXiv
    2502.05202): tokens are drawn from rows restricted to these and scaled to sum to one, and these
    rows are recorded.

    Args:
        model: the draft model.
        rows: number of rows of the target's cache.
        capacity: tokens per row, drafted ones included.
        vocab_size: the target's, if the two tables of logits are padded to different sizes.
        translation: translation between the vocabularies, if they differ.
        tree_slots: slots per row for the nodes of trees.
    """

    name = "draft_model"
    drawings = frozenset(Drawing)
    takes_trees = True
    needs_draft_model = True
    options = DraftModelOptions

    def __init__(
        self,
        model: CausalLM,
        rows: int,
        capacity: int,
        vocab_size: int | None = None,
        translation: Translation | None = None,
        tree_slots: int = MOST_NODES,
    ) -> None:
        from forerun.drafters.draft_cache import DraftCache

        self.model, self.translation = model, translation
        self.vocab_size = self._vocab_size = vocab_size or model.vocab_size
        self.rows = rows
        self.cache = DraftCache(model, rows, capacity, tree_slots)
        # The draft's embedding may be padded to fewer rows than the target's and lack the last ids. By
        # request: the number of tokens whose ids were checked.
        self._lacks_ids = self.model.vocab_size < self._vocab_size
        self._known: dict[int, int] = {}
        self._drafts_chains = translation is None and drafts_chains(model)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        model = setup.load_draft_model()
        if model.max_context < min(setup.capacity, setup.target.max_context):
            logger.warning(
                "%s has a context of %d tokens: longer texts go on without drafts.",
                model.name,
                model.max_context,
            )
        return cls(
            model,
            setup.rows,
            setup.capacity,
            setup.target.vocab_size,
            setup.translation,
            setup.tree_slots,
        )

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        drafting: dict[int, Plan] = {}
        missing, full = [], []
        for index, (request, plan) in enumerate(zip(requests, plans, strict=True)):
            text = self._text(request) if plan.num_tokens else None
            # A path is as long as the draft model's context allows.
            left = 0 if text is None else self.cache.capacity - len(text)
            if text is not None and left > 0:
                drafting[index] = plan.cut(left)
                missing.append(self.cache.missing(request.row, text))
            elif text is not None:
                full.append(index)
        drafts = drafts_of(
            requests, drafting, lambda chosen, own: self._draft(chosen, own, missing, randomness)
        )
        for index in full:
            drafts[index] = CONTEXT_FULL
        return drafts

    def _draft(
        self,
        requests: list[Request],
        plans: list[Plan],
        missing: list[list[int]],
        randomness: Randomness,
    ) -> list[Draft]:
        """Draft from texts that lack some tokens: chains in one call if possible."""
        from forerun.trees.growth import start

        if self._drafts_chains and fits_one_call(requests, plans, randomness):
            chains = [
                ChainRequest(request.row, pending, plan.num_tokens, plan.drawing, request)
                for request, pending, plan in zip(requests, missing, plans, strict=True)
            ]
            return self.cache.draft_chains(chains, self._vocab_size)
        growths = [start(*pair) for pair in zip(requests, plans, strict=True)]
        return self._grow(growths, missing, randomness)

    def pending(self, request: Request) -> int:
        return self.cache.pending(request.row, request.token_ids)

    def clear_row(self, row: int) -> None:
        self.cache.clear(row)

    def release(self, request: Request) -> None:
        self._known.pop(request.request_id, None)
        if self.translation is not None:
            self.translation.retokenizer.release(request.request_id)

    def _text(self, request: Request) -> list[int] | None:
        """A request in the draft model's tokens; None if they cannot spell it (yet)."""
        if self.translation is None:
            return None if self._lacks_ids and self._lacks(request) else request.token_ids
        return self.translation.retokenizer.ids(request.request_id, request.token_ids)

    def _lacks(self, request: Request) -> bool:
        """True if a text has an id that the draft model lacks; each token is checked once."""
        new = request.token_ids[self._known.get(request.request_id, 0) :]
        if max(new, default=0) >= self.model.vocab_size:
            return True
        self._known[request.request_id] = len(request)
        return False

    def _grow(
        self, growths: list[Growth], missing: list[list[int]], randomness: Randomness
    ) -> list[Draft]:
        """Grow trees of any kind, level by level."""
        from forerun.trees.growth import grow

        growing, rows = growths, [growth.request.row for growth in growths]
        logits = self.cache.catch_up(rows, missing)
        while True:
            grow(growing, self._over_target(logits), randomness)
            growing = [growth for growth in growing if growth.frontier]
            if not growing:
                return [growth.finish() for growth in growths]
            rows = [growth.request.row for growth in growing]
            tokens, parents = zip(*(growth.run_frontier() for growth in growing), strict=True)
            if self.translation is not None:
                own = self.translation.shared.draft_id_of
                tokens = tuple([own[token] for token in row] for row in tokens)
            logits = self.cache.extend(rows, tokens, parents)

    def _over_target(self, logits: Tensor) -> Tensor:
        """Logits over the target's vocabulary."""
        import torch
        from torch.nn import functional

        if self.translation is not None:
            return self.translation.shared.to_target(logits)
        logits = logits[:, : self._vocab_size]
        padding = self._vocab_size - logits.shape[-1]
        return functional.pad(logits, (0, padding), value=-torch.inf) if padding else logits
