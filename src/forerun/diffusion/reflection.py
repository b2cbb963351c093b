"""Reflection-maximal coupling: turns a draw from one Gaussian into a draw from another, mostly unchanged."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Coupling = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Function from draft means, target means, deviations, noise and uniform numbers to draws and a mask.

The mask is True for draws equal to the draft's; see `couple`.
"""


def couple(
    draft_mean: Tensor, target_mean: Tensor, std: Tensor, noise: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Turn `draft_mean + std * noise` into draws from the Gaussian around `target_mean`, mostly unchanged.

    A draw is kept with probability min(1, q/p), where p is the draft's density and q the target's, and
    otherwise mirrored in the plane between the means. The result has exactly the target's distribution, and
    no coupling keeps draws more often (Bou-Rabee, Eberle and Zimmer, arXiv 1805.00452; for diffusion: De
    Bortoli et al., arXiv 2501.05370).

    Args:
        draft_mean, target_mean: means, `[N, D]`.
        std: standard deviation of both in each dimension, `[N, 1]`; if 0, the outcome is the target's mean.
        noise: standard normal numbers, `[N, D]`.
        uniform: uniform numbers in [0, 1), independent of the noise, `[N]`.

    Returns:
        The draws `[N, D]`, and a mask of those equal to the draft's, `[N]`.
    """
    # Steps with non-finite draft means are drawn from the target. That choice depends on the past alone.
    usable = draft_mean.isfinite().all(-1, keepdim=True)
    draft_mean = torch.where(usable, draft_mean, target_mean)
    apart = draft_mean - target_mean
    moved = apart / torch.where(std > 0, std, 1.0)
    # log(q/p) at the draft's draw, which relative to the target's mean is noise + moved.
    log_ratio = -((noise * moved).sum(-1) + moved.square().sum(-1) / 2)
    equal = torch.log(uniform) < log_ratio
    equal = torch.where(std[:, 0] > 0, equal, ~apart.any(-1))
    length = moved.square().sum(-1, keepdim=True)
    along = (noise * moved).sum(-1, keepdim=True) / torch.where(length > 0, length, 1.0)
    mirrored = noise - 2 * along * moved
    drafted = draft_mean + std * noise
    drawn = torch.where(equal[:, None], drafted, target_mean + std * mirrored)
    return drawn, equal & usable[:, 0]
