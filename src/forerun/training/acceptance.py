"""Expected tokens per round, exactly from the target's and the draft's rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


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
    `forerun.theory.trees.distinct_sibling_acceptance`.

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
