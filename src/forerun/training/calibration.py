"""Calibration of a confidence head: corrects its logits by position, fitted on held-out text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.training.acceptance import Chains

# Number of bins of equal width in the expected calibration error.
BINS = 10
# Regularization that keeps a correction finite if all tokens, or none, were accepted.
_RIDGE = 1e-4


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
