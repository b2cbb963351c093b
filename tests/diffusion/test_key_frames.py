"""Key frames are every n-th frame; what lies between them has the right place and length."""

from __future__ import annotations

import pytest
import torch

from forerun.diffusion.video_latent_cache import fill_between, slerp, spaced_key_frames
from forerun.errors import ConfigError


@pytest.mark.parametrize(
    ("frames", "interval", "expected"),
    [
        (16, 5, [0, 5, 10, 15]),
        (16, 4, [0, 4, 8, 12, 15]),
        (8, 7, [0, 7]),
        (3, 1, [0, 1, 2]),
        (2, 1, [0, 1]),
    ],
)
def test_every_nth_frame_and_the_last(frames: int, interval: int, expected: list[int]) -> None:
    assert spaced_key_frames(frames, interval).tolist() == expected


def test_intervals_that_do_not_fit() -> None:
    for interval in (0, 8, 9):
        with pytest.raises(ConfigError, match=rf"\[1, 7\] for a clip of 8 frames, got {interval}"):
            spaced_key_frames(8, interval)


def vectors(count: int = 6, width: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(1)
    first, second = (
        torch.randn(count, width, generator=source, dtype=torch.float64) for _ in range(2)
    )
    return first, 2.5 * second


def test_slerp_ends_at_its_vectors_and_changes_length_and_angle_evenly() -> None:
    first, second = vectors()
    whole = torch.nn.functional.cosine_similarity(first, second, dim=-1).acos()
    for weight in (0.0, 0.25, 0.5, 0.9, 1.0):
        found = slerp(first, second, torch.full((6,), weight, dtype=torch.float64))
        lengths = (1 - weight) * first.norm(dim=-1) + weight * second.norm(dim=-1)
        torch.testing.assert_close(found.norm(dim=-1), lengths)
        cosine = torch.nn.functional.cosine_similarity(first, found, dim=-1)
        torch.testing.assert_close(cosine.clamp(max=1.0).acos(), weight * whole, atol=1e-6, rtol=0)
    torch.testing.assert_close(slerp(first, second, torch.zeros(6, dtype=torch.float64)), first)
    torch.testing.assert_close(slerp(first, second, torch.ones(6, dtype=torch.float64)), second)


def test_slerp_without_an_arc_is_linear() -> None:
    first, _ = vectors()
    half = torch.full((6,), 0.5, dtype=torch.float64)
    torch.testing.assert_close(slerp(first, 3.0 * first, half), 2.0 * first)
    torch.testing.assert_close(slerp(first, -3.0 * first, half), -first)
    torch.testing.assert_close(slerp(first, torch.zeros_like(first), half), 0.5 * first)
    assert slerp(torch.zeros(1, 4), torch.zeros(1, 4), torch.tensor([0.5])).isfinite().all()


def line_clips(keys: torch.Tensor) -> torch.Tensor:
    """Values at key frames `[2, 2, K, 3, 3]` that are linear in time."""
    start = torch.randn(2, 2, 1, 3, 3, generator=torch.Generator().manual_seed(2))
    slope = torch.randn(2, 2, 1, 3, 3, generator=torch.Generator().manual_seed(3))
    return start + slope * keys[None, None, :, None, None]


def test_linear_interpolation_gives_back_what_is_linear_in_time() -> None:
    """With key frames that are unevenly spaced."""
    keys = torch.tensor([0, 1, 5, 7])
    filled = fill_between(line_clips(keys), keys, "linear")
    torch.testing.assert_close(filled, line_clips(torch.arange(8)))


def test_frames_between_have_slerps_length_and_key_frames_stay() -> None:
    keys = torch.tensor([0, 2, 6])
    values = torch.randn(1, 4, 3, 5, 5, generator=torch.Generator().manual_seed(4))
    values /= torch.linalg.vector_norm(values, dim=(1, 3, 4), keepdim=True)
    for how in ("slerp", "linear"):
        filled = fill_between(values, keys, how)
        assert torch.equal(filled[:, :, keys], values)
        lengths = torch.linalg.vector_norm(filled, dim=(1, 3, 4))[0]
        if how == "slerp":
            torch.testing.assert_close(lengths, torch.ones(7))
        else:  # The middle of two nearly orthogonal vectors is shorter.
            assert float(lengths[[1, 4]].max()) < 0.8
