"""The cache of a draft model, which finds out by itself which tokens were accepted.

Before drafting, a row is cut back to its common prefix with the text, along whichever path of the
last draft was accepted, and the missing tokens are run. Prompts are run at the first draft, so that
a request that never speculates never pays for them; a row that holds the beginning of a text from
an earlier request runs only the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.contracts import Cache, CausalLM, ChainRequest, drafts_chains
from forerun.core import NO_DRAFT, Batch, Draft, Tree
from forerun.models.running import common_prefix, prefill

# Rows that lack more tokens than this run them separately, so that no other row pays for padding.
LARGEST_SHARED_CATCH_UP = 16


@dataclass
class _Row:
    """Content of one row of the cache: a text, then nodes of a draft in the order in which they were run."""

    token_ids: list[int]
    draft: Draft = NO_DRAFT

    def grown(self, token_ids: Sequence[int], parents: Sequence[int]) -> _Row:
        """The row with further nodes."""
        tree = Tree((*self.draft.tree.parents, *parents))
        return _Row(self.token_ids, Draft(tree, (*self.draft.token_ids, *token_ids)))

    def path_along(self, token_ids: Sequence[int]) -> list[int]:
        """The nodes that continue the text with these tokens, as far as there are any."""
        path: list[int] = []
        for token in token_ids:
            children = self.draft.tree.children(path[-1] if path else -1)
            same = [node for node in children if self.draft.token_ids[node] == token]
            if not same:
                break
            path.append(same[0])
        return path


class DraftCache:
    """Keys and values of a draft model for the texts that it drafts for.

    The record of a row shrinks before the row does and grows after it, so that after an
    interruption the row holds at least the recorded tokens.

    Args:
        model: the draft model.
        rows: number of rows of the target's cache.
        capacity: tokens per row, drafted ones included.
        tree_slots: additional slots for nodes, if trees are drafted.
    """

    def __init__(self, model: CausalLM, rows: int, capacity: int, tree_slots: int = 0) -> None:
        self.model = model
        self.capacity = min(capacity, model.max_context)
        self.cache: Cache = model.new_cache(rows, self.capacity + tree_slots)
        self._rows = [_Row([]) for _ in range(rows)]

    def pending(self, row: int, token_ids: list[int]) -> int:
        """Approximate number of tokens that a row lacks of a text, by first token and lengths alone."""
        held = self._rows[row].token_ids
        return len(token_ids) - (len(held) if held[:1] == token_ids[:1] else 0)

    def missing(self, row: int, token_ids: list[int]) -> list[int]:
        """Cut a row back to its common prefix with a text and return the tokens that it lacks.

        They include the last token of the text, and are few enough to be run beside those of other
        rows.

        Args:
            row: row of the cache.
            token_ids: the text, in the draft model's vocabulary.
        """
        held = self._rows[row]
        shared = min(common_prefix(held.token_ids, token_ids), len(token_ids) - 1)
        path = held.path_along(token_ids[shared:-1]) if shared == len(held.token_ids) else []
        held = self._rows[row] = _Row(token_ids[:shared])
        self.cache.keep(row, shared, path)
        start = shared + len(path)
        held.token_ids += token_ids[shared:start]
        if len(token_ids) - start > LARGEST_SHARED_CATCH_UP:
            prefill(self.model, self.cache, row, token_ids[start:-1])
            held.token_ids += token_ids[start:-1]
            start = len(token_ids) - 1
        return token_ids[start:]

    def catch_up(self, rows: list[int], missing: list[list[int]]) -> Tensor:
        """Run the tokens that `missing` has returned; logits after the last tokens, [B, V]."""
        batch = Batch.after(self.cache, rows, missing, logits_for="last")
        output = self.model.forward(batch, self.cache)
        for row, tokens in zip(rows, missing, strict=True):
            self._rows[row].token_ids += tokens
        assert output.logits is not None
        return output.logits[:, 0]

    def draft_chains(self, chains: Sequence[ChainRequest], vocab_size: int) -> list[Draft]:
        """Draft chains, all steps of all of them in one call of a model that can; see `DraftsChains`."""
        assert drafts_chains(self.model)
        drafts = self.model.draft_chains(self.cache, chains, vocab_size)
        for chain, draft in zip(chains, drafts, strict=True):
            self._rows[chain.row].token_ids += chain.pending
            # The last token has been drawn but not run.
            self._rows[chain.row].draft = Draft.chain(draft.token_ids[:-1])
        return drafts

    def extend(
        self, rows: list[int], token_ids: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]
    ) -> Tensor:
        """Run drafted nodes of trees; their keys and values follow those of the text.

        Args:
            rows: rows of the cache.
            token_ids: tokens of the nodes, by row.
            parents: parents of the nodes, by row: indices of the row's drafted nodes in the order
                in which they were run; -1 for the text.

        Returns:
            Logits after each node, [N, V], row after row.
        """
        nodes = zip(rows, token_ids, parents, strict=True)
        grown = [self._rows[row].grown(tokens, above) for row, tokens, above in nodes]
        trees = [held.draft.tree for held in grown]
        batch = Batch.after(self.cache, rows, token_ids, trees=trees)
        output = self.model.forward(batch, self.cache)
        for row, held in zip(rows, grown, strict=True):
            self._rows[row] = held
        assert output.logits is not None
        if len(rows) == 1:
            return output.logits[0]
        pairs = zip(output.logits, batch.counts, strict=True)
        return torch.cat([logits[:count] for logits, count in pairs])

    def clear(self, row: int) -> None:
        """Forget the tokens that a row holds."""
        self._rows[row] = _Row([])
        self.cache.trim(row, 0)
