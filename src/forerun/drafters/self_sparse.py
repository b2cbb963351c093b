"""Self-speculation at long contexts: the target drafts from a part of its own cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from pydantic import Field

from forerun.contracts import (
    Cache,
    CausalLM,
    ChainRequest,
    DrafterSetup,
    ReadThroughViews,
    drafts_chains,
    reads_views,
)
from forerun.core import (
    NO_TREE,
    Batch,
    Draft,
    ForwardOutput,
    Plan,
    Request,
    Tree,
    Verdict,
    View,
)
from forerun.drafters.base import OwnLayersDrafter, drafts_of, fits_one_call, likeliest
from forerun.options import options

# Modules that need torch are imported where they are used: options and help are read without it.
if TYPE_CHECKING:
    from torch import Tensor

    from forerun.randomness import Randomness
    from forerun.trees.growth import Growth

DRAFT_VOCAB_SIZE = 8192
"""Number of the vocabulary's first tokens that chains draft, besides the text's and likely ones."""
LIKELY_TOKENS = 32
"""Number of likeliest tokens at each place that chains may draft from then on.

Of the tokens in 6 answers of SmolLM2 that the first 8,192 lack, three in five had been among them.
"""
USUAL_VIEW = View(sinks=4, window=512, blocks=8)


@options
class SelfSparseOptions:
    """The part of its cache that the target reads while it drafts, and the tokens that it drafts."""

    sparse_sinks: int = Field(
        default=USUAL_VIEW.sinks,
        ge=0,
        le=2**31,
        description="First tokens of the text that the target reads while it drafts.",
    )
    sparse_window: int = Field(
        default=USUAL_VIEW.window,
        ge=1,
        le=2**31,
        description="And the most recent ones; verification reads all.",
    )
    sparse_blocks: int = Field(
        default=USUAL_VIEW.blocks,
        ge=0,
        le=2**25,
        description="Blocks of 64 tokens between that each layer and key head reads besides, those whose "
        "mean key has the largest product with the queries.",
    )
    sparse_coarse: bool = Field(
        default=False,
        description="Read only the upper half of each number of an int8 cache; verification reads both.",
    )
    sparse_vocab: int = Field(
        default=DRAFT_VOCAB_SIZE,
        ge=0,
        le=2**31,
        description="First tokens of the vocabulary that it drafts, besides those of the text and those that "
        "the target found likely; 0 for all. On the CPU kernels, in chains.",
    )


class SelfSparseDrafter(OwnLayersDrafter):
    """Drafts chains and trees with the target itself, which reads less of its own cache while it does.

    The view of sinks and a window is StreamingLLM's (arXiv 2309.17453); MagicDec drafts with it
    (arXiv 2408.11049), but here it needs no cache of its own. Blocks are selected as in MoBA (arXiv
    2502.13189), and the upper nibbles of an int8 cache are read as in QuantSpec (arXiv 2502.10424).

    Tokens that drafting appends to the cache are removed before verification, which reads
    everything. It pays if reading the keys and values takes longer than reading the weights.

    Args:
        target: the model that drafts for itself; it must read views.
        view: the part of its cache that it reads while it drafts.
        draft_vocab_size: limits the tokens of chains that the target drafts in one call: to the
            first `draft_vocab_size` of the vocabulary, those of the text, and up to as many that
            the target found likely; 0: any.

    Raises:
        CacheError: for a coarse view of a cache that is not in int8.
        UnsupportedModelError: for a target that always reads its whole cache.
    """

    name = "self_sparse"
    options = SelfSparseOptions
    takes_trees = True

    def __init__(
        self,
        target: CausalLM,
        view: View = USUAL_VIEW,
        draft_vocab_size: int = DRAFT_VOCAB_SIZE,
    ) -> None:
        super().__init__(target)
        self.view, self.draft_vocab_size = view, draft_vocab_size or None
        # Refuses a target that always reads its whole cache.
        cache = target.new_cache(1, 1)
        target.forward(Batch.after(cache, [0], [[0]], view=view), cache)
        self._drafts_chains = drafts_chains(target)
        # Likely tokens by request, each once, in the order in which they were found.
        self._likely: dict[int, dict[int, None]] = {}

    @classmethod
    def build(cls, setup: DrafterSetup) -> SelfSparseDrafter:
        own = setup.read(SelfSparseOptions)
        view = View(own.sparse_sinks, own.sparse_window, own.sparse_coarse, own.sparse_blocks)
        return cls(setup.target, view, own.sparse_vocab)

    def attach(self, cache: Cache) -> None:
        """Receive the cache to draft in.

        Raises:
            ConfigError: while the previous cache still exists.
            CacheError: for one that evicts, of which no part can be read alone.
        """
        # The constructor has run the target through a view.
        cast(ReadThroughViews, cache).check_view(self.view)
        super().attach(cache)

    def cost_share(self, request: Request) -> float | None:
        """Bytes of weights, keys and values that a drafted token reads, relative to a plain token."""
        assert reads_views(self.target)
        context, layers = len(request), self.target.num_layers
        plain = self.target.bytes_read(context, layers)
        drafted = self.target.bytes_read(context, layers, self.view)
        return (drafted - self._bytes_spared(request)) / plain

    def _bytes_spared(self, request: Request) -> float:
        if self.draft_vocab_size is None or not self._drafts_chains:
            return 0.0
        assert drafts_chains(self.target)
        likely = len(self._likely.get(request.request_id, ()))
        return self.target.bytes_spared(len(request), self.draft_vocab_size + likely)

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        output: ForwardOutput,
    ) -> None:
        """Store the tokens that the target found likely at the accepted tokens of drafts."""
        if self.draft_vocab_size is None or not self._drafts_chains or output.logits is None:
            return
        rounds = zip(requests, drafts, verdicts, output.logits, strict=True)
        for request, draft, verdict, logits in rounds:
            # A failed request is left out, because its logits may be the cause.
            if not draft.token_ids or not verdict.token_ids or not request.speculative:
                continue
            likely = self._likely.setdefault(request.request_id, {})
            if len(likely) < self.draft_vocab_size:
                tokens = likeliest(_read_along(logits, verdict.path), LIKELY_TOKENS)
                likely.update(dict.fromkeys(tokens.flatten().tolist()))

    def release(self, request: Request) -> None:
        self._likely.pop(request.request_id, None)

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        """Propose one draft per request; however the call ends, the cache is left unchanged."""
        most = min(self._cache.capacity, self.target.max_context)
        drafting = {
            index: plan.cut(most - len(request))
            for index, (request, plan) in enumerate(zip(requests, plans, strict=True))
            if plan.num_tokens and len(request) < most
        }

        def draft(chosen: list[Request], fitting: list[Plan]) -> list[Draft]:
            try:
                if self._drafts_chains and fits_one_call(chosen, fitting, randomness):
                    return self._chains(chosen, fitting)
                return self._grown(chosen, fitting, randomness)
            finally:
                for request in chosen:
                    self._cache.trim(request.row, len(request) - 1)

        return drafts_of(requests, drafting, draft)

    def _chains(self, requests: list[Request], plans: list[Plan]) -> list[Draft]:
        assert drafts_chains(self.target)
        chains = [
            ChainRequest(
                request.row,
                request.token_ids[-1:],
                plan.num_tokens,
                plan.drawing,
                request,
                self.draft_vocab_size,
                list(self._likely.get(request.request_id, ())),
            )
            for request, plan in zip(requests, plans, strict=True)
        ]
        return self.target.draft_chains(self._cache, chains, self.target.vocab_size, self.view)

    def _grown(
        self, requests: list[Request], plans: list[Plan], randomness: Randomness
    ) -> list[Draft]:
        """Grow trees level by level; each row runs its newest token first, then the nodes."""
        from forerun.trees.growth import grow, start

        growths = [start(*pair) for pair in zip(requests, plans, strict=True)]
        growing = growths
        trees = {growth.request.row: NO_TREE for growth in growing}
        tokens = [growth.request.token_ids[-1:] for growth in growing]
        while True:
            grow(growing, self._logits(growing, tokens, trees), randomness)
            growing = [growth for growth in growing if growth.frontier]
            if not growing:
                return [growth.finish() for growth in growths]
            tokens = []
            for growth in growing:
                frontier, parents = growth.run_frontier()
                row = growth.request.row
                trees[row] = Tree((*trees[row].parents, *parents))
                tokens.append(frontier)

    def _logits(
        self, growing: list[Growth], tokens: list[list[int]], trees: dict[int, Tree]
    ) -> Tensor:
        """Run tokens after those that each row holds; logits [N, V], row after row."""
        import torch

        rows = [growth.request.row for growth in growing]
        own = [trees[row] or None for row in rows]
        batch = Batch.after(self._cache, rows, tokens, trees=own, view=self.view)
        logits = self.target.forward(batch, self._cache).logits
        assert logits is not None
        if len(growing) == 1:
            return logits[0]
        return torch.cat([row[: len(new)] for row, new in zip(logits, tokens, strict=True)])


def _read_along(logits: Tensor, path: Sequence[int]) -> Tensor:
    """The rows of a draft's logits [n, V] at its root and along a path; without a copy for a chain."""
    nodes = [0, *(node + 1 for node in path)]
    return logits[: len(nodes)] if nodes == list(range(len(nodes))) else logits[nodes]
