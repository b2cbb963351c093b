"""A smaller model that runs ahead, level by level, batched over all sequences that draft."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Self

import torch
import torch.nn.functional as functional
from torch import Tensor

from forerun.contracts import CausalLM, DrafterSetup
from forerun.core import NO_DRAFT, Draft, Drawing, Plan, Sequence
from forerun.drafters.base import BaseDrafter
from forerun.drafters.draft_cache import DraftCache
from forerun.drafters.retokenizer import Translation
from forerun.models.cpu import ChainRequest, CpuModel
from forerun.randomness import Randomness
from forerun.trees import MOST_NODES
from forerun.trees.growth import Growth, grow, start
from forerun.trees.plans import cut


class DraftModelDrafter(BaseDrafter):
    """Drafts chains and trees with a second model.

    With a model of another vocabulary it proposes only tokens that both have (Timor et al., arXiv
    2502.05202): rows without the others, scaled to one, are what is drawn from and what is recorded.

    Args:
        model: the draft model.
        rows: as many as the target's cache has.
        capacity: tokens a row, drafted ones included.
        vocab_size: the target's, where the two tables of logits are padded to different sizes.
        tree_slots: slots a row for the nodes of trees.
        translation: between the vocabularies, where they are not the same.
    """

    name = "draft_model"
    drawings = frozenset(Drawing)
    takes_trees = True
    needs_draft_model = True
    options = frozenset({"draft_sample_method", "draft_dtype"})

    def __init__(
        self,
        model: CausalLM,
        rows: int,
        capacity: int,
        vocab_size: int | None = None,
        translation: Translation | None = None,
        tree_slots: int = MOST_NODES,
    ) -> None:
        self.model, self.translation = model, translation
        self.vocab_size = self._vocab_size = vocab_size or model.vocab_size
        self.rows = rows
        self.cache = DraftCache(model, rows, capacity, tree_slots)
        self._chains: CpuModel | None = None
        if isinstance(model, CpuModel) and translation is None:
            self._chains = model

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        model = setup.load_draft_model()
        vocab_size = setup.target.vocab_size
        slots = 0 if setup.options["tree"] is None else MOST_NODES
        return cls(model, setup.rows, setup.capacity, vocab_size, setup.translation, slots)

    def propose(
        self, sequences: Several[Sequence], plans: Several[Plan], randomness: Randomness
    ) -> list[Draft]:
        drafts = [NO_DRAFT] * len(sequences)
        texts = [
            self._text(sequence) if plan.num_tokens else None
            for sequence, plan in zip(sequences, plans, strict=True)
        ]
        # Tokens along a path that the draft model's context allows.
        rooms = [0 if text is None else self.cache.capacity - len(text) for text in texts]
        drafting = [index for index, room in enumerate(rooms) if room > 0]
        if not drafting:
            return drafts
        several = [sequences[index] for index in drafting]
        fitting = [cut(plans[index], rooms[index]) for index in drafting]
        missing = [
            self.cache.missing(
                sequences[index].row, sequences[index].request_id, texts[index] or []
            )
            for index in drafting
        ]
        if self._in_one_call(several, fitting, randomness):
            found = self._chains_in_one_call(several, missing, fitting)
        else:
            growths = [start(*one) for one in zip(several, fitting, strict=True)]
            found = self._grow(growths, missing, randomness)
        for index, draft in zip(drafting, found, strict=True):
            drafts[index] = draft
        return drafts

    def release(self, sequence: Sequence) -> None:
        self.cache.release(sequence.row, sequence.request_id)
        if self.translation is not None:
            self.translation.retokenizer.release(sequence.request_id)

    def _text(self, sequence: Sequence) -> list[int] | None:
        """A sequence in the draft model's tokens; None where they cannot spell it (yet)."""
        if self.translation is None:
            return sequence.token_ids
        return self.translation.retokenizer.ids(sequence.request_id, sequence.token_ids)

    def _in_one_call(
        self, sequences: list[Sequence], plans: list[Plan], randomness: Randomness
    ) -> bool:
        """Whether nothing has to be asked between the steps: no penalties, no masks, no record of
        keys, and chains alone."""
        return (
            self._chains is not None
            and randomness.by_key_alone
            and not any(sequence.params.adjusts for sequence in sequences)
            and all(plan.tree is None for plan in plans)
        )

    def _chains_in_one_call(
        self,
        sequences: list[Sequence],
        missing: list[list[int]],
        plans: list[Plan],
    ) -> list[Draft]:
        """Chains, all steps of all of them in one call of the model."""
        assert self._chains is not None
        requests = [
            ChainRequest(sequence.row, pending, plan.num_tokens, plan.drawing, sequence)
            for sequence, pending, plan in zip(sequences, missing, plans, strict=True)
        ]
        drafts = self._chains.draft_chains(self.cache.cache, requests, self._vocab_size)
        rows = [sequence.row for sequence in sequences]
        self.cache.hold(rows, missing)
        for row, draft in zip(rows, drafts, strict=True):
            # The last token has been drawn and not run.
            self.cache.hold_chain(row, draft.token_ids[:-1])
        return drafts

    def _grow(
        self, growths: list[Growth], missing: list[list[int]], randomness: Randomness
    ) -> list[Draft]:
        """Trees of any kind, level by level."""
        logits = self.cache.catch_up([one.sequence.row for one in growths], missing)
        growing = growths
        while True:
            grow(growing, self._over_target(logits), randomness)
            growing = [one for one in growing if one.frontier]
            if not growing:
                return [one.finish() for one in growths]
            rows = [one.sequence.row for one in growing]
            tokens, parents = zip(*(one.run_frontier() for one in growing), strict=True)
            if self.translation is not None:
                own = self.translation.shared.draft_id_of
                tokens = tuple([own(token) for token in each] for each in tokens)
            logits = self.cache.extend(rows, tokens, parents)

    def _over_target(self, logits: Tensor) -> Tensor:
        """Logits over the target's vocabulary."""
        if self.translation is not None:
            return self.translation.shared.to_target(logits)
        logits = logits[:, : self._vocab_size]
        padding = self._vocab_size - logits.shape[-1]
        return functional.pad(logits, (0, padding), value=-torch.inf) if padding else logits
