"""What all drafters are trained by: how often the target rejects what they say of tokens that it wrote."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.training.acceptance import AcceptanceTable
from forerun.training.conversations import ConversationBatch
from forerun.training.loop import Part
from forerun.training.losses import CHUNK, kl_share, rejection_loss
from forerun.training.target import Lesson, Teacher

Factors = Sequence[tuple[Tensor, Tensor]]
"""States [n, h] and matrices [Vd, h], whose products sum to logits; see `losses.rejection_loss`."""


@dataclass(frozen=True)
class Drafts:
    """What a drafter says of N tokens that the target wrote.

    Args:
        rows: the target's row of each token, [N].
        places: of each in its draft, from 0, [N].
        parts: tokens that share an output matrix, bool [N], and the factors of their logits.
        chains: of which tokens each draft is made, [D, K]; -1 for those that the target did not write.
        conversations: that each draft belongs to, by row of the batch, [D].
    """

    rows: Tensor
    places: Tensor
    parts: Sequence[tuple[Tensor, Factors]]
    chains: Tensor
    conversations: Tensor


class RejectionObjective(ABC):
    """The loss of a drafter and its acceptance; one kind of drafter says what its drafts are.

    Args:
        teacher: the target, over the draft's vocabulary, with the states that the drafter reads.
        decay: a token weighs decay ** place.
    """

    def __init__(self, teacher: Teacher, decay: float) -> None:
        self.teacher, self.decay = teacher, decay

    @abstractmethod
    def drafts(self, lesson: Lesson) -> Drafts:
        """What the drafter says of a batch."""

    def beside(self, drafts: Drafts, accepted: Tensor, weights: Tensor) -> Tensor:
        """What else is minimized, as a sum by weight.

        Args:
            drafts: of the batch.
            accepted: the probability that each token is accepted, [N].
            weights: of the tokens, [N].
        """
        return torch.zeros(())

    def __call__(self, batch: ConversationBatch) -> Part:
        """The loss of a batch: rejections, smoothed by KL the more the less is accepted (λ = exp(-3 α), as
        in speculators' lk_hybrid), with the acceptance α of the batch itself, so that a run that goes on
        repeats its losses."""
        lesson = self.teacher.show(batch)
        drafts = self.drafts(lesson)
        weights = self.decay ** drafts.places.float()
        total, accepted = torch.zeros(()), torch.zeros(len(weights))
        for some, factors in drafts.parts:
            rows = drafts.rows[some]
            share = kl_share(factors, lesson.probs, rows)
            part, accepted[some] = rejection_loss(factors, lesson.probs, rows, weights[some], share)
            total = total + part
        total = total + self.beside(drafts, accepted, weights)
        return Part(total, float(weights.sum()), batch.tokens)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[ConversationBatch]) -> AcceptanceTable:
        """Acceptance of chains on conversations that are held out, by category; greedy where they were."""
        table = AcceptanceTable()
        for batch in batches:
            lesson = self.teacher.show(batch, best=True)
            drafts = self.drafts(lesson)
            accepted = _accepted(lesson, drafts)
            whole = (drafts.chains >= 0).all(-1)
            for row, conversation in enumerate(batch.conversations):
                greedy = int(conversation.temperature == 0)
                chains = drafts.chains[whole & (drafts.conversations == row)]
                name = f"{conversation.category}, T={conversation.temperature:g}"
                table.add(name, accepted[greedy][chains])
        return table


def _accepted(lesson: Lesson, drafts: Drafts) -> Tensor:
    """Of each token the probability that it is accepted when drawn, and whether it is when greedy, [2, N]."""
    assert lesson.best is not None
    accepted = torch.zeros(2, len(drafts.rows))
    for some, factors in drafts.parts:
        rows = drafts.rows[some]
        accepted[0, some] = rejection_loss(factors, lesson.probs, rows, torch.ones(len(rows)), 0.0)[
            1
        ]
        accepted[1, some] = (most_probable(factors)[:, 0] == lesson.best[rows]).float()
    return accepted


def most_probable(factors: Factors, count: int = 1) -> Tensor:
    """The most probable draft tokens of each row, the most probable first, [n, count]."""
    rows = len(factors[0][0])
    best = torch.zeros(rows, count, dtype=torch.long)
    for start in range(0, rows, CHUNK):
        part = slice(start, start + CHUNK)
        logits = torch.stack([(states[part] @ matrix.T).float() for states, matrix in factors])
        best[part] = logits.sum(0).topk(count).indices
    return best


def numbered(there: Tensor) -> Tensor:
    """The number of each token that is there among all that are, -1 for others; of the shape of `there`."""
    numbers = torch.full(there.shape, -1, dtype=torch.long)
    numbers[there] = torch.arange(int(there.sum()))
    return numbers
