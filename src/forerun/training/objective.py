"""The objective that trains all drafters, and their acceptance on held-out conversations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from forerun.training.acceptance import AcceptanceTable, sibling_shares
from forerun.training.conversations import ExampleBatch
from forerun.training.loop import LossPart
from forerun.training.losses import CHUNK, kl_share, rejection_loss
from forerun.training.target import Lesson, Teacher

# Number of rows of a batch whose siblings are drawn.
RANKED = 128
# Weight of the loss of a confidence head; the loss of the tokens has weight 1.
_CONFIDENCE_SHARE = 0.1

Factors = Sequence[tuple[Tensor, Tensor]]
"""Pairs of states [N, h] and matrix [Vd, h], whose products add up to logits."""


@dataclass(frozen=True)
class Drafts:
    """Chains that a head drafts on a batch of conversations, with the text's own tokens.

    Args:
        rows: index of the conversation of each chain, [C].
        contexts: number of tokens before the first drafted token of each chain, [C].
        there: True for tokens that the target wrote, along with all before them in the chain, bool
            [C, K].
        targets: index of the target's row for each of those tokens, chain after chain, [N].
        factors: pairs of a mask, bool [N], of the tokens that share matrices, and their logits' factors.
        confidence: logit of the head's confidence in each of those tokens, [N]; None for a head without.
    """

    rows: Tensor
    contexts: Tensor
    there: Tensor
    targets: Tensor
    factors: Sequence[tuple[Tensor, Factors]]
    confidence: Tensor | None = None

    @classmethod
    def of(
        cls,
        rows: Tensor,
        contexts: Tensor,
        there: Tensor,
        targets: Tensor,
        factors: Factors,
        confidence: Tensor | None = None,
    ) -> Drafts:
        """Drafts whose tokens all share the same matrices."""
        every = torch.ones_like(targets, dtype=torch.bool)
        return cls(rows, contexts, there, targets, [(every, factors)], confidence)

    @property
    def places(self) -> Tensor:
        """Position of each of the tokens in its chain, from 0, [N]."""
        size = self.there.shape[-1]
        return torch.arange(size, device=self.there.device).expand(self.there.shape)[self.there]


class Objective(ABC):
    """The training objective of a drafter: the probability that its drafted tokens are rejected.

    Args:
        teacher: the target, over the draft's vocabulary.
        decay: weight of a drafted token relative to the one before it.
    """

    def __init__(self, teacher: Teacher, decay: float = 1.0) -> None:
        self.teacher, self.decay = teacher, decay

    @abstractmethod
    def drafts(self, lesson: Lesson, *, training: bool = False) -> Drafts:
        """Drafts on a batch; in training perhaps fewer of them."""

    def __call__(self, batch: ExampleBatch) -> LossPart:
        """The loss of a batch: rejection probability mixed with KL, plus the confidence head's loss.

        The share of KL, exp(-3 α), is larger the lower the acceptance α (as in speculators' lk_hybrid). It
        depends on the batch alone, so that a run that resumes repeats its losses.
        """
        lesson = self.teacher.show(batch)
        drafts = self.drafts(lesson, training=True)
        weights = self.decay ** drafts.places.float()
        total = torch.zeros((), device=weights.device)
        accepted = torch.zeros_like(weights)
        for some, factors in drafts.factors:
            rows = drafts.targets[some]
            share = kl_share(factors, lesson.probs, rows)
            loss, accepted[some] = rejection_loss(factors, lesson.probs, rows, weights[some], share)
            total = total + loss
        if drafts.confidence is not None:
            losses = functional.binary_cross_entropy_with_logits(
                drafts.confidence, accepted.clamp(0, 1), reduction="none"
            )
            total = total + _CONFIDENCE_SHARE * (losses * weights).sum()
        return LossPart(total, float(weights.sum()), batch.tokens)

    def evaluate(self, batches: Iterable[ExampleBatch], ranks: int = 0) -> AcceptanceTable:
        """Acceptance on held-out conversations, and that of `ranks` siblings."""
        return evaluate(self.teacher, partial(self.drafts, training=False), batches, ranks)


@torch.no_grad()
def evaluate(
    teacher: Teacher,
    draft: Callable[[Lesson], Drafts],
    batches: Iterable[ExampleBatch],
    ranks: int = 0,
) -> AcceptanceTable:
    """Measure acceptance on held-out conversations, by category.

    Target and draft have the temperature that the conversation was drawn at; 0 is greedy.

    Args:
        teacher: the target.
        draft: drafts with the head.
        batches: batches of conversations.
        ranks: number of siblings whose acceptance is measured too.
    """
    table = AcceptanceTable()
    generator = torch.Generator().manual_seed(0)
    for batch in batches:
        lesson = teacher.show(batch, best=True, as_drawn=True)
        drafts = _as_drawn(draft(lesson), lesson)
        accepted, same = _accepted(lesson, drafts)
        chains = accepted.new_zeros(2, *drafts.there.shape)
        chains[:, drafts.there] = torch.stack((accepted, same))
        confidence = None
        if drafts.confidence is not None:
            confidence = accepted.new_zeros(drafts.there.shape)
            confidence[drafts.there] = drafts.confidence.float()
        whole = drafts.there.all(-1)
        for row, conversation in enumerate(batch.conversations):
            some = whole & (drafts.rows == row)
            table.add(
                f"{conversation.category}, T={conversation.temperature:g}",
                chains[int(conversation.temperature == 0), some],
                drafts.contexts[some],
                None if confidence is None else confidence[some],
            )
        if ranks:
            _add_ranks(table, lesson, drafts, chains[0], ranks, generator)
    return table


def most_probable(factors: Factors) -> Tensor:
    """The most probable draft token of each row, [N]."""
    starts = range(0, len(factors[0][0]), CHUNK)
    parts = [_logits(factors, slice(at, at + CHUNK)).argmax(-1) for at in starts]
    return torch.cat(parts) if parts else factors[0][0].new_zeros(0, dtype=torch.long)


def _as_drawn(drafts: Drafts, lesson: Lesson) -> Drafts:
    """Drafts at the temperatures of the target's rows, by scaled states: logits are linear in them."""
    temperatures = lesson.temperatures[drafts.targets, None]
    factors = [
        (some, [((states / temperatures[some]).to(states.dtype), rows) for states, rows in own])
        for some, own in drafts.factors
    ]
    return replace(drafts, factors=factors)


def _accepted(lesson: Lesson, drafts: Drafts) -> tuple[Tensor, Tensor]:
    """Σ min(p, q) of each token, and 1 where p and q have the same most probable token, both [N]."""
    assert lesson.best is not None
    accepted, same = (torch.zeros_like(drafts.targets, dtype=torch.float) for _ in range(2))
    for some, factors in drafts.factors:
        rows = drafts.targets[some]
        ones = torch.ones_like(rows, dtype=torch.float)
        accepted[some] = rejection_loss(factors, lesson.probs, rows, ones, 0.0)[1]
        same[some] = (most_probable(factors) == lesson.best[rows]).float()
    return accepted, same


def _add_ranks(
    table: AcceptanceTable,
    lesson: Lesson,
    drafts: Drafts,
    chains: Tensor,
    ranks: int,
    generator: torch.Generator,
) -> None:
    """Add the acceptance of siblings at a sample of tokens, weighted by the probability to reach them."""
    device = chains.device
    reached = torch.cat((chains.new_ones(len(chains), 1), chains[:, :-1].cumprod(-1)), -1)
    weights = reached[drafts.there]
    depths = torch.arange(drafts.there.shape[1], device=device)
    depths = depths.expand(drafts.there.shape)[drafts.there]
    drawn = torch.randperm(len(depths), generator=generator)[:RANKED].to(device)
    picked = torch.zeros_like(depths, dtype=torch.bool)
    picked[drawn] = True
    for some, factors in drafts.factors:
        here = (some & picked).nonzero()[:, 0]
        own = picked[some]
        thinned = [(states[own], matrix) for states, matrix in factors]
        for start in range(0, len(here), CHUNK):
            part = slice(start, start + CHUNK)
            tokens = here[part]
            draft = _logits(thinned, part).softmax(-1)
            target = lesson.probs[drafts.targets[tokens]].float()
            shares = sibling_shares(target, draft, ranks, generator)
            table.add_ranks(drafts.there.shape[1], depths[tokens], shares, weights[tokens])


def _logits(factors: Factors, part: slice) -> Tensor:
    """Logits of the rows in a slice, [n, Vd]."""
    parts = [(states[part] @ matrix.T).float() for states, matrix in factors]
    return sum(parts[1:], parts[0])
