"""How many tokens a round would emit, computed exactly from the target's and the draft's rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


def expected_length(accepted: Tensor) -> Tensor:
    """Expected tokens of a round with a chain, the bonus token included, [...].

    Args:
        accepted: the probability that token k of the chain is accepted once those before it are,
            [..., K]: Σ min(p, q), or whether p and q agree on the most probable token.
    """
    return 1 + accepted.cumprod(-1).sum(-1)


@dataclass
class AcceptanceTable:
    """Acceptance by category and temperature; means are taken once all text has been seen."""

    _sums: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    def add(self, category: str, accepted: Tensor) -> None:
        """Chains [n, K] of a category."""
        if len(accepted):
            self._sums[category].append(accepted.float().cpu())

    @property
    def lengths(self) -> Mapping[str, float]:
        """Mean acceptance length by category."""
        return {
            category: round(float(expected_length(torch.cat(parts)).mean()), 4)
            for category, parts in sorted(self._sums.items())
        }

    @property
    def positions(self) -> Mapping[str, list[float]]:
        """Mean acceptance of each token of the chain by category."""
        return {
            category: [round(float(value), 4) for value in torch.cat(parts).mean(0)]
            for category, parts in sorted(self._sums.items())
        }

    @property
    def mean_length(self) -> float:
        """Over the categories, each counting alike; 1.0 without any."""
        lengths = self.lengths.values()
        return sum(lengths) / len(lengths) if lengths else 1.0
