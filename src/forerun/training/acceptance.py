"""Expected tokens per round, exactly from the target's and the draft's rows, and confidence beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

# Upper edges, in tokens, of the groups of contexts; one more group lies beyond the last.
CONTEXTS = (256, 512, 1024)
# Number of bins of equal width in the expected calibration error.
BINS = 10
# Regularization that keeps a correction finite if all tokens, or none, were accepted.
_RIDGE = 1e-4


def expected_length(accepted: Tensor) -> Tensor:
    """Expected tokens of a round with a chain, the bonus token included, [...].

    Args:
        accepted: probability that token k of the chain is accepted if the tokens before it are,
            [..., K]: Σ min(p, q), or 1 where p and q have the same most probable token.
    """
    return 1 + accepted.cumprod(-1).sum(-1)


@dataclass(frozen=True)
class Chains:
    """Chains of one conversation.

    Args:
        accepted: acceptance probability of each token, [n, K].
        contexts: number of tokens before each chain, [n].
        confidence: logits of the head's confidence, [n, K]; None for a head without confidence.
    """

    accepted: Tensor
    contexts: Tensor
    confidence: Tensor | None = None


@dataclass
class AcceptanceTable:
    """Acceptance by category and temperature; means are taken over all chains added."""

    chains: dict[str, list[Chains]] = field(default_factory=lambda: defaultdict(list))
    _ranks: Tensor | None = None
    _weights: Tensor | None = None

    def add(
        self,
        category: str,
        accepted: Tensor,
        contexts: Tensor | None = None,
        confidence: Tensor | None = None,
    ) -> None:
        """Add chains of a category; see `Chains` for the arguments."""
        if len(accepted):
            where = contexts if contexts is not None else torch.zeros(len(accepted)).long()
            own = None if confidence is None else confidence.float().cpu()
            self.chains[category].append(Chains(accepted.float().cpu(), where.cpu(), own))

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

    @property
    def contexts(self) -> Mapping[str, Mapping[str, float]]:
        """Mean acceptance length by tokens before the draft, over all categories, by temperature."""
        parts: dict[tuple[str, int], list[Tensor]] = defaultdict(list)
        for category, chains in self.chains.items():
            kind = category.rsplit(", ", 1)[-1]
            for some in chains:
                edges = torch.bucketize(some.contexts, torch.tensor(CONTEXTS))
                for edge in sorted(set(edges.tolist())):
                    parts[kind, edge].append(expected_length(some.accepted[edges == edge]))
        table: dict[str, dict[str, float]] = {}
        for (kind, edge), lengths in sorted(parts.items()):
            mean = float(torch.cat(lengths).mean())
            table.setdefault(kind, {})[_label(edge)] = round(mean, 4)
        return table

    @property
    def mean_length(self) -> float:
        """Mean acceptance length over the categories, with equal weights; 1.0 without categories."""
        lengths = self.lengths.values()
        return sum(lengths) / len(lengths) if lengths else 1.0

    def _accepted(self, category: str) -> Tensor:
        return torch.cat([part.accepted for part in self.chains[category]])


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


def _label(edge: int) -> str:
    return f"beyond {CONTEXTS[-1]}" if edge == len(CONTEXTS) else f"to {CONTEXTS[edge]}"


@dataclass(frozen=True)
class Calibration:
    """A correction of the logits of each position: `scale * logit + bias`.

    Args:
        lines: scale (not negative) and bias of each position.
        before, after: expected calibration error of each position before and after the correction, on
            conversations that it was not fitted to. The predicted event is that the position is reached
            and its token accepted.
    """

    lines: tuple[tuple[float, float], ...]
    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def helps(self) -> bool:
        """True if the correction lowers the sum of the errors."""
        return sum(self.after) < sum(self.before)


def calibrate(chains: Mapping[str, Sequence[Chains]]) -> Calibration | None:
    """Fit a correction to every other conversation of each category, and measure it on the others.

    Each position is fitted by Platt's scaling to the chains that reach it, weighted by how often they
    do. The product over a chain then matches the probability of being reached and accepted.

    Args:
        chains: chains of conversations, by category.

    Returns:
        The correction; None for fewer than two conversations, or for a head without confidence.
    """
    ordered = [part for own in chains.values() for part in own if part.confidence is not None]
    fitted, judged = (_joined(ordered[begin::2]) for begin in (0, 1))
    if fitted is None or judged is None:
        return None
    logits, accepted = fitted
    reached = torch.cat((torch.ones(len(accepted), 1), accepted[:, :-1].cumprod(-1)), -1)
    lines = tuple(
        _fit(*columns)
        for columns in zip(logits.unbind(-1), accepted.unbind(-1), reached.unbind(-1), strict=True)
    )
    scales, biases = torch.tensor(lines).unbind(-1)
    logits, accepted = judged
    return Calibration(lines, errors(logits, accepted), errors(logits * scales + biases, accepted))


def errors(logits: Tensor, accepted: Tensor) -> tuple[float, ...]:
    """Expected calibration error of each position, for being reached and accepted.

    Args:
        logits: logits of the confidence that each token is accepted if those before it are, [n, K].
        accepted: probability of that acceptance, [n, K].
    """
    expected, happened = logits.sigmoid().cumprod(-1), accepted.cumprod(-1)
    bins = (expected * BINS).long().clamp(max=BINS - 1)
    means = []
    for position in range(logits.shape[1]):
        gaps = torch.zeros(BINS).index_add_(
            0, bins[:, position], expected[:, position] - happened[:, position]
        )
        means.append(round(float(gaps.abs().sum()) / len(logits), 5))
    return tuple(means)


def _joined(parts: Sequence[Chains]) -> tuple[Tensor, Tensor] | None:
    """Logits and acceptance of all chains, [n, K] each."""
    logits = [part.confidence for part in parts if part.confidence is not None]
    if not logits:
        return None
    return torch.cat(logits), torch.cat([part.accepted for part in parts])


def _fit(logits: Tensor, accepted: Tensor, weights: Tensor) -> tuple[float, float]:
    """Scale and bias of a position by maximum likelihood."""
    free = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.LBFGS([free], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        corrected = logits * free[0].exp() + free[1]
        total = functional.binary_cross_entropy_with_logits(
            corrected, accepted.clamp(0, 1), weights, reduction="sum"
        )
        value = total / weights.sum().clamp(min=1e-9) + _RIDGE * free.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    log_scale, bias = free.tolist()
    return round(float(torch.tensor(log_scale).exp()), 5), round(bias, 5)
