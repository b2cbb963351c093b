"""The objective that trains all drafters, and their acceptance on held-out conversations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from forerun.training.conversations import ExampleBatch
from forerun.training.loop import LossPart
from forerun.training.losses import CHUNK, kl_share, rejection_loss
from forerun.training.target import Lesson, Teacher


def expected_length(accepted: Tensor) -> Tensor:
    """Expected tokens of a round with a chain, the bonus token included, [...].

    Args:
        accepted: probability that token k of the chain is accepted if the tokens before it are,
            [..., K]: Σ min(p, q), or 1 where p and q have the same most probable token.
    """
    return 1 + accepted.cumprod(-1).sum(-1)


def mean_of(lengths: Mapping[str, float]) -> float:
    """Mean acceptance length over the categories, with equal weights; 1.0 without categories."""
    return sum(lengths.values()) / len(lengths) if lengths else 1.0


@dataclass
class AcceptanceTable:
    """Acceptance by category and temperature; means are taken over all chains added.

    Args:
        chains: acceptance probability of each token of each chain, [n, K], by category.
    """

    chains: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    _ranks: Tensor | None = None
    _weights: Tensor | None = None

    def add(self, category: str, accepted: Tensor) -> None:
        """Add the acceptance of chains of a category, [n, K]."""
        if len(accepted):
            self.chains[category].append(accepted.float().cpu())

    def add_ranks(self, size: int, depths: Tensor, shares: Tensor, weights: Tensor) -> None:
        """Add the acceptance of siblings.

        Args:
            size: tokens of a draft.
            depths: depths of the siblings, from 0, [N].
            shares: probability that the sibling of each rank is accepted, [N, R].
            weights: probability that a draft reaches the siblings, [N].
        """
        if self._ranks is None or self._weights is None:
            self._ranks, self._weights = torch.zeros(size, shares.shape[1]), torch.zeros(size)
        depths = depths.cpu()
        self._ranks.index_add_(0, depths, (shares * weights[:, None]).cpu())
        self._weights.index_add_(0, depths, weights.cpu())

    @property
    def by_rank(self) -> list[list[float]]:
        """Probability that the sibling of each rank is the accepted one, by depth and rank.

        This is `Drafter.acceptance`. It is empty if it was not measured, and it leaves out depths that
        no draft reaches.
        """
        if self._ranks is None or self._weights is None:
            return []
        seen = int((self._weights > 0).int().cumprod(0).sum())
        table = self._ranks[:seen] / self._weights[:seen, None]
        return [[round(value, 5) for value in line] for line in table.clamp(0, 1).tolist()]

    @property
    def lengths(self) -> Mapping[str, float]:
        """Mean acceptance length by category."""
        return {
            category: round(float(expected_length(self._accepted(category)).mean()), 4)
            for category in sorted(self.chains)
        }

    @property
    def positions(self) -> Mapping[str, list[float]]:
        """Mean acceptance of each token of the chain by category."""
        return {
            category: [round(float(value), 4) for value in self._accepted(category).mean(0)]
            for category in sorted(self.chains)
        }

    def _accepted(self, category: str) -> Tensor:
        return torch.cat(self.chains[category])


def sibling_shares(target: Tensor, draft: Tensor, ranks: int, generator: torch.Generator) -> Tensor:
    """Probability that each of several siblings is the accepted one, for one random draw, [n, ranks].

    The siblings are drawn without replacement and tested in order, each against the residual after the
    siblings before it (as in Sequoia, arXiv 2402.12374). The mean over draws is
    `forerun.theory.acceptance.distinct_sibling_acceptance`.

    Args:
        target: rows over the draft's vocabulary, [n, Vd]; probability outside the vocabulary is missing
            from their sums.
        draft: rows that sum to one, [n, Vd].
    """
    left, row, outside = target, draft, (1 - target.sum(-1)).clamp(min=0)
    noise = torch.rand(draft.shape, generator=generator).clamp(min=1e-20).to(draft.device)
    # Exponential races: the order of arrival is distributed like draws without replacement.
    order = (-noise.log() / draft.clamp(min=1e-30)).topk(min(ranks, draft.shape[-1]), largest=False)
    shares, reached = draft.new_zeros(len(target), ranks), draft.new_ones(len(target))
    for rank, tokens in enumerate(order.indices.T):
        token = tokens[:, None]
        shares[:, rank] = reached * torch.minimum(left, row).sum(-1)
        passes = left.gather(1, token) / row.gather(1, token).clamp(min=1e-30)
        reached = reached * (1 - passes[:, 0].clamp(0, 1))
        left = (left - row).clamp(min=0)
        total = (left.sum(-1) + outside).clamp(min=1e-30)
        left, outside = left / total[:, None], outside / total
        row = row.scatter(1, token, 0.0)
        row = row / row.sum(-1, keepdim=True).clamp(min=1e-30)
    return shares


RANKS = 8
"""Number of siblings whose acceptance is measured; trees rarely have more."""
# Number of rows of a batch whose siblings are drawn.
RANKED = 32


class AnchoredTokens:
    """Tokens of the answers after some anchors, which drafts are to equal.

    Args:
        rows: index of the target's row that predicts each token of a batch, [B, S]; -1 for tokens that the
            target did not write.
        anchors: token that each draft begins with, [B, A].
        drawn: True for drafts, False for padding, bool [B, A].
        distance: distance from an anchor to the first drafted token.
        size: tokens of a draft.

    Attributes:
        tokens: position of each drafted token, [B, A, size].
        there: True for tokens that the target wrote, along with all before them in the draft, bool
            [B, A, size].
        targets: index of the target's row for each such token, [N].
    """

    def __init__(
        self, rows: Tensor, anchors: Tensor, drawn: Tensor, distance: int, size: int
    ) -> None:
        steps = torch.arange(distance, distance + size, device=anchors.device)
        self.anchors, self.tokens = anchors, anchors[..., None] + steps
        padded = functional.pad(rows, (0, 1), value=-1)
        places = self.tokens.clamp(max=rows.shape[1]).flatten(1)
        own = padded.gather(1, places).view(self.tokens.shape)
        self.there = ((own >= 0) & drawn[..., None]).int().cumprod(-1).bool()
        self.targets = own[self.there]

    @classmethod
    def drawn(
        cls, rows: Tensor, distance: int, size: int, density: float, seed: int
    ) -> AnchoredTokens:
        """Tokens after random anchors before tokens of the answers, at least one per conversation.

        Args:
            rows, distance, size: as above.
            density: share of the answers' tokens at which drafts begin.
            seed: seed of the choice, which depends on the batch too.
        """
        first = rows[:, distance:] >= 0
        generator = torch.Generator().manual_seed(seed * 1_000_003 + int(rows.max()))
        # Drawn on the CPU, so that drafts begin at the same tokens on every device.
        noise = torch.rand(first.shape, generator=generator).to(first.device)
        order = noise.masked_fill(~first, 2.0).argsort(-1)
        counts = (first.sum(-1) * density).ceil().long()
        most = max(int(counts.max()), 1)
        drawn = torch.arange(most, device=counts.device) < counts[:, None]
        return cls(rows, order[:, :most], drawn, distance, size)


@dataclass(frozen=True)
class Drafts:
    """Chains that a head drafts on a batch of conversations, with the text's own tokens.

    Args:
        following: the tokens that the chains are to equal.
        states: states of those that the target wrote, chain after chain, [N, h].
        matrix: output rows, [Vd, h]; the logits are `states @ matrix.T`.
    """

    following: AnchoredTokens
    states: Tensor
    matrix: Tensor

    @property
    def there(self) -> Tensor:
        """True for tokens that the target wrote, along with all before them in the chain, bool [C, K]."""
        return self.following.there.flatten(0, 1)

    @property
    def rows(self) -> Tensor:
        """Index of the conversation of each chain, [C]."""
        batch, count, _ = self.following.tokens.shape
        return torch.arange(batch, device=self.following.tokens.device).repeat_interleave(count)

    @property
    def targets(self) -> Tensor:
        """Index of the target's row for each of the tokens, [N]."""
        return self.following.targets

    @property
    def places(self) -> Tensor:
        """Position of each of the tokens in its chain, from 0, [N]."""
        size = self.there.shape[-1]
        return torch.arange(size, device=self.there.device).expand(self.there.shape)[self.there]


class Objective(ABC):
    """The training objective of a drafter: the probability that its drafted tokens are rejected.

    Args:
        module: drafter to train.
        teacher: the target, over the draft's vocabulary, with the states that the drafter reads.
        steps: tokens of a draft.
        density: share of the answers' tokens at which drafts begin.
        seed: seed of the choice of those tokens.

    Attributes:
        decay: weight of a drafted token relative to the one before it.
    """

    decay = 1.0

    def __init__(
        self,
        module: Any,
        teacher: Teacher,
        *,
        steps: int = 5,
        density: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.module, self.teacher = module, teacher
        self.steps, self.density, self.seed = steps, density, seed

    def drawn(
        self, lesson: Lesson, distance: int, size: int, density: float | None = None
    ) -> AnchoredTokens:
        """Tokens after random anchors, as many as the density says; see `AnchoredTokens.drawn`."""
        density = self.density if density is None else density
        return AnchoredTokens.drawn(lesson.rows, distance, size, density, self.seed)

    @abstractmethod
    def drafts(self, lesson: Lesson, *, training: bool = False) -> Drafts:
        """Drafts on a batch; training may use only some of them."""

    def __call__(self, batch: ExampleBatch) -> LossPart:
        """The loss of a batch: rejection probability mixed with KL.

        The share of KL, exp(-3 α), is larger the lower the acceptance α (as in speculators' lk_hybrid). It
        depends on the batch alone, so that a run that resumes repeats its losses.
        """
        lesson = self.teacher.show(batch)
        drafts = self.drafts(lesson, training=True)
        weights = self.decay ** drafts.places.float()
        tokens = (drafts.states, drafts.matrix, lesson.probs, drafts.targets)
        total, _ = rejection_loss(*tokens, weights, kl_share(*tokens))
        return LossPart(total, float(weights.sum()), batch.tokens)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[ExampleBatch]) -> AcceptanceTable:
        """Measure acceptance on held-out conversations, by category and by rank of siblings.

        Target and draft have the temperature that the conversation was drawn at; 0 is greedy.
        """
        table = AcceptanceTable()
        generator = torch.Generator().manual_seed(0)
        for batch in batches:
            lesson = self.teacher.show(batch, held_out=True)
            drafts = _as_drawn(self.drafts(lesson), lesson)
            chains = torch.zeros(2, *drafts.there.shape, device=drafts.there.device)
            chains[:, drafts.there] = torch.stack(_accepted(lesson, drafts))
            whole = drafts.there.all(-1)
            for row, conversation in enumerate(batch.conversations):
                table.add(
                    f"{conversation.category}, T={conversation.temperature:g}",
                    chains[int(conversation.temperature == 0), whole & (drafts.rows == row)],
                )
            _add_ranks(table, lesson, drafts, chains[0], generator)
        return table


def at(vectors: Tensor, tokens: Tensor) -> Tensor:
    """Select the vectors of tokens [B, A] from [B, S, size]; result [B, A, size]."""
    return vectors.gather(1, tokens[..., None].expand(-1, -1, vectors.shape[-1]))


def _most_probable(drafts: Drafts) -> Tensor:
    """The most probable draft token of each row, [N]."""
    parts = [(states @ drafts.matrix.T).argmax(-1) for states in torch.split(drafts.states, CHUNK)]
    return torch.cat(parts)


def _as_drawn(drafts: Drafts, lesson: Lesson) -> Drafts:
    """Drafts at the temperatures of the target's rows, by scaled states: logits are linear in them."""
    temperatures = lesson.batch.temperatures[drafts.targets, None]
    return replace(drafts, states=(drafts.states / temperatures).to(drafts.states.dtype))


def _accepted(lesson: Lesson, drafts: Drafts) -> tuple[Tensor, Tensor]:
    """Σ min(p, q) of each token, and 1 where p and q have the same most probable token, both [N]."""
    assert lesson.best is not None
    ones = torch.ones_like(drafts.targets, dtype=torch.float)
    tokens = (drafts.states, drafts.matrix, lesson.probs, drafts.targets)
    _, accepted = rejection_loss(*tokens, ones, 0.0)
    return accepted, (_most_probable(drafts) == lesson.best[drafts.targets]).float()


def _add_ranks(
    table: AcceptanceTable,
    lesson: Lesson,
    drafts: Drafts,
    chains: Tensor,
    generator: torch.Generator,
) -> None:
    """Add the acceptance of siblings at a sample of tokens, weighted by the probability to reach them."""
    reached = torch.cat((chains.new_ones(len(chains), 1), chains[:, :-1].cumprod(-1)), -1)
    weights, depths = reached[drafts.there], drafts.places
    drawn = torch.randperm(len(depths), generator=generator)[:RANKED].to(depths.device)
    tokens = drawn.sort().values
    draft = (drafts.states[tokens] @ drafts.matrix.T).float().softmax(-1)
    target = lesson.probs[drafts.targets[tokens]].float()
    shares = sibling_shares(target, draft, RANKS, generator)
    table.add_ranks(drafts.there.shape[1], depths[tokens], shares, weights[tokens])
