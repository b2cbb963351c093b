"""Reflection-maximal coupling: a draw from one Gaussian becomes one from another, mostly itself.

Two Gaussians with the same deviation in all dimensions and means apart: what was drawn from the one is kept
with probability min(1, q/p) and else mirrored in the plane between the means. The result has exactly the
law of the other, and no coupling keeps more often (Bou-Rabee, Eberle and Zimmer, arXiv 1805.00452; its use
for diffusion: De Bortoli et al., arXiv 2501.05370).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Coupling = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps draft means, target means, deviations, noise and uniform numbers to draws, and says which of these are
the draft's; see `couple`."""


def couple(
    draft_mean: Tensor, target_mean: Tensor, std: Tensor, noise: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Turn `draft_mean + std * noise` into draws from the Gaussian around `target_mean`.

    Args:
        draft_mean, target_mean: `[N, D]`.
        std: of both in each dimension, `[N, 1]`; where it is 0 the outcome is the target's mean.
        noise: standard normal, `[N, D]`.
        uniform: in [0, 1), `[N]`, independent of the noise.

    Returns:
        The draws `[N, D]`, and which of them are those of the draft, `[N]`.
    """
    # What was drafted from nothing that is a number is redrawn; that it was is decided by the past alone.
    usable = draft_mean.isfinite().all(-1, keepdim=True)
    draft_mean = torch.where(usable, draft_mean, target_mean)
    apart = draft_mean - target_mean
    moved = apart / torch.where(std > 0, std, 1.0)
    # log of q/p at the draft's draw, which is at noise + moved as the target sees it.
    log_ratio = -((noise * moved).sum(-1) + moved.square().sum(-1) / 2)
    kept = torch.log(uniform) < log_ratio
    kept = torch.where(std[:, 0] > 0, kept, ~apart.any(-1))
    length = moved.square().sum(-1, keepdim=True)
    along = (noise * moved).sum(-1, keepdim=True) / torch.where(length > 0, length, 1.0)
    mirrored = noise - 2 * along * moved
    drafted = draft_mean + std * noise
    drawn = torch.where(kept[:, None], drafted, target_mean + std * mirrored)
    return drawn, kept & usable[:, 0]


def chance_kept(draft_mean: Tensor, target_mean: Tensor, std: Tensor) -> Tensor:
    """The chance that a draw is kept, `[N]`: one less the total variation between the two Gaussians.

    The arguments are those of `couple`, with a `std` above 0.
    """
    apart = ((draft_mean - target_mean) / std).norm(dim=-1)
    chance: Tensor = torch.special.erfc(apart / (2 * math.sqrt(2)))
    return chance
