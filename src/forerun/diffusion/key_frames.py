"""Choice of key frames in a clip, and interpolation between them."""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.diffusion.settings import Interpolation
from forerun.errors import ConfigError

# Sine of the angle below which two directions count as parallel or opposite.
_LEAST_SINE = 1e-4
# Share of the mean motion added to every frame's motion, so that a still clip is split evenly.
_LEAST_MOTION = 1e-3


def spaced_key_frames(num_frames: int, interval: int) -> Tensor:
    """Key frames at every `interval`-th frame and at the last, ascending, `[K]`.

    Raises:
        ConfigError: for an interval longer than the clip.
    """
    if not 1 <= interval < num_frames:
        raise ConfigError(
            f"key_interval must lie in [1, {num_frames - 1}] for a clip of {num_frames} frames, "
            f"got {interval}."
        )
    return torch.tensor([*range(0, num_frames - 1, interval), num_frames - 1])


def spread_key_frames(num_frames: int, count: int) -> Tensor:
    """Key frames spread evenly, including the first and the last frame, ascending, `[K]`.

    Raises:
        ConfigError: for a `count` below 2 or above the number of frames.
    """
    check_count(num_frames, count)
    return torch.linspace(0, num_frames - 1, count, dtype=torch.float64).round().long()


def check_count(num_frames: int, count: int) -> None:
    """Check that a clip can have `count` key frames.

    Raises:
        ConfigError: for a `count` below 2 or above the number of frames.
    """
    if not 2 <= count <= num_frames:
        raise ConfigError(
            f"key_frames must lie in [2, {num_frames}] for a clip of {num_frames} frames, got {count}."
        )


def motion_of(latents: Tensor) -> Tensor:
    """Distance of each frame from the one before, `[B, F - 1]`, for clips `[B, C, F, H, W]`."""
    differences = latents[:, :, 1:] - latents[:, :, :-1]
    return differences.square().sum((1, 3, 4)).sqrt()


def key_frames_by_motion(motion: Tensor, count: int) -> Tensor:
    """Key frames with about equal motion between them, for each clip.

    They minimize the sum over stretches of the squared motion in the stretch, which is least if all
    stretches have equal motion.

    Args:
        motion: motion between neighbouring frames, `[B, F - 1]`.
        count: number of key frames, including the first and the last frame.

    Returns:
        Key frames of each clip, ascending, `[B, K]`.

    Raises:
        ConfigError: for a `count` below 2 or above the number of frames, and for motion that is not finite.
    """
    check_count(motion.shape[1] + 1, count)
    if not bool(motion.isfinite().all()):
        raise ConfigError(
            "motion must be finite to choose key frames by it; it holds NaN or infinity."
        )
    return torch.tensor([_even_stretches(clip, count) for clip in motion.double().tolist()])


def _even_stretches(motion: list[float], count: int) -> list[int]:
    """Key frames of one clip, by dynamic programming over the last stretch."""
    least = _LEAST_MOTION * sum(motion) / len(motion) or 1.0
    places = [0.0]
    for step in motion:
        places.append(places[-1] + step + least)
    # By frame: cost of the best stretches that end there, and their key frames.
    best = {0: (0.0, [0])}
    for done in range(1, count):
        longer = {}
        for end in range(done, len(places)):
            longer[end] = min(
                (cost + (places[end] - places[start]) ** 2, [*keys, end])
                for start, (cost, keys) in best.items()
                if start < end
            )
        best = longer
    return best[len(places) - 1][1]


def frames_at(clips: Tensor, frames: Tensor) -> Tensor:
    """Select frames `[B, K]` from clips `[B, C, F, H, W]`; result `[B, C, K, H, W]`."""
    return clips.gather(2, _index(clips, frames))


def with_frames(clips: Tensor, frames: Tensor, values: Tensor) -> Tensor:
    """Replace frames `[B, K]` of clips `[B, C, F, H, W]` by values `[B, C, K, H, W]`."""
    return clips.scatter(2, _index(clips, frames), values)


def _index(clips: Tensor, frames: Tensor) -> Tensor:
    count, channels, _, height, width = clips.shape
    shape = (count, channels, frames.shape[1], height, width)
    return frames.to(clips.device)[:, None, :, None, None].expand(shape)


def fill_between(values: Tensor, keys: Tensor, num_frames: int, how: Interpolation) -> Tensor:
    """Interpolate whole clips from their key frames, by each frame's place in time.

    Args:
        values: values of the key frames, `[B, C, K, H, W]`.
        keys: indices of the key frames, ascending from 0 to `num_frames` - 1, `[B, K]`.
        num_frames: number of frames of the clips.
        how: `slerp` goes along the arc between two frames, each taken as one vector; `linear` goes along
            the line; `nearest` repeats the nearer key frame, and half-way the later one.

    Returns:
        Clips `[B, C, F, H, W]` with unchanged key frames.
    """
    keys = keys.to(values.device).contiguous()
    places = torch.arange(num_frames, device=keys.device).expand(len(keys), -1).contiguous()
    before = (torch.searchsorted(keys, places, right=True) - 1).clamp(max=keys.shape[1] - 2)
    start, end = keys.gather(1, before), keys.gather(1, before + 1)
    weights = ((places - start) / (end - start)).to(values.dtype)
    first, second = (frames_at(values, index) for index in (before, before + 1))
    flat = [side.transpose(1, 2).flatten(2) for side in (first, second)]
    filled = _between(flat[0], flat[1], weights, how)
    clips = filled.view(first.transpose(1, 2).shape).transpose(1, 2)
    return with_frames(clips, keys, values)


def _between(first: Tensor, second: Tensor, weights: Tensor, how: Interpolation) -> Tensor:
    if how == "nearest":
        return torch.where(weights[..., None] < 0.5, first, second)
    if how == "linear":
        return torch.lerp(first, second, weights[..., None])
    return slerp(first, second, weights)


def slerp(first: Tensor, second: Tensor, weights: Tensor) -> Tensor:
    """Interpolate spherically (Shoemake, SIGGRAPH 1985): direction and length both change evenly.

    The middle of a line between two vectors is shorter than both, and latents that are too short are
    denoised to pale pictures. The middle of the arc is not too short. Vectors without an arc between them
    (parallel, opposite or zero) are interpolated linearly.

    Args:
        first, second: vectors `[..., n]`.
        weights: weights `[...]`; 0 gives the first vector, 1 the second.
    """
    lengths = first.norm(dim=-1), second.norm(dim=-1)
    product = (lengths[0] * lengths[1]).clamp_min(torch.finfo(first.dtype).tiny)
    angle = ((first * second).sum(-1) / product).clamp(-1.0, 1.0).acos()
    sine = angle.sin()
    flat = (sine < _LEAST_SINE) | (lengths[0] == 0.0) | (lengths[1] == 0.0)
    divisor = torch.where(flat, torch.ones_like(sine), sine)
    shares = ((1.0 - weights) * angle).sin() / divisor, (weights * angle).sin() / divisor
    length = torch.lerp(lengths[0], lengths[1], weights)
    ratios = [length / one.clamp_min(torch.finfo(first.dtype).tiny) for one in lengths]
    arc = (shares[0] * ratios[0])[..., None] * first + (shares[1] * ratios[1])[..., None] * second
    return torch.where(flat[..., None], torch.lerp(first, second, weights[..., None]), arc)
