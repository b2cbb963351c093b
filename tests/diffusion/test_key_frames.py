"""Key frames divide motion evenly; what lies between them has the right place and length."""

from __future__ import annotations

import itertools

import pytest
import torch

from forerun.diffusion.key_frames import (
    fill_between,
    frames_at,
    key_frames_by_motion,
    motion_of,
    slerp,
    spaced_key_frames,
    spread_key_frames,
    with_frames,
)
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


@pytest.mark.parametrize("frames", [2, 5, 16, 31])
def test_spread_key_frames_are_distinct_and_hold_both_ends(frames: int) -> None:
    for count in range(2, frames + 1):
        found = spread_key_frames(frames, count).tolist()
        assert (found[0], found[-1]) == (0, frames - 1)
        gaps = [later - earlier for earlier, later in itertools.pairwise(found)]
        assert min(gaps) >= 1
        assert max(gaps) - min(gaps) <= 1


def test_counts_and_intervals_that_do_not_fit() -> None:
    for interval in (0, 8, 9):
        with pytest.raises(ConfigError, match=rf"\[1, 7\] for a clip of 8 frames, got {interval}"):
            spaced_key_frames(8, interval)
    for count in (1, 9):
        with pytest.raises(ConfigError, match=rf"\[2, 8\] for a clip of 8 frames, got {count}"):
            spread_key_frames(8, count)
        with pytest.raises(ConfigError, match="key_frames"):
            key_frames_by_motion(torch.ones(1, 7), count)
    with pytest.raises(ConfigError, match="finite"):
        key_frames_by_motion(torch.tensor([[1.0, float("nan")]]), 2)


def test_motion_is_the_distance_of_neighbours() -> None:
    clips = torch.zeros(2, 4, 5, 3, 3)
    clips[0, 1, 2:, 0, 0] = 3.0
    clips[0, 2, 2:, 1, 1] = 4.0
    clips[1, :, 4] = 1.0
    assert motion_of(clips)[0].tolist() == [0.0, 5.0, 0.0, 0.0]
    assert motion_of(clips)[1].tolist() == [0.0, 0.0, 0.0, 6.0]


def test_key_frames_follow_motion() -> None:
    """Three synthetic clips: all motion at the end, at the start, and even."""
    motion = torch.tensor([[0.0] * 8 + [1.0] * 4, [1.0] * 4 + [0.0] * 8, [1.0] * 12])
    found = key_frames_by_motion(motion, 5).tolist()
    assert found[2] == [0, 3, 6, 9, 12]
    for clip, keys in zip(motion.tolist(), found, strict=True):
        stretches = [sum(clip[start:end]) for start, end in itertools.pairwise(keys)]
        assert max(stretches) <= sum(clip) / 4 + 1e-6
    assert found[0][1:] == [9, 10, 11, 12]
    assert found[1][:-1] == [0, 1, 2, 3]


def test_a_still_clip_is_divided_evenly() -> None:
    assert key_frames_by_motion(torch.zeros(1, 12), 4).tolist() == [[0, 4, 8, 12]]


def test_no_choice_divides_motion_more_evenly() -> None:
    """Against every possible choice of key frames."""
    motion = torch.rand(4, 9, generator=torch.Generator().manual_seed(0)) ** 3

    def unevenness(clip: list[float], keys: tuple[int, ...]) -> float:
        return sum(sum(clip[start:end]) ** 2 for start, end in itertools.pairwise(keys))

    for count in (2, 4, 7, 10):
        for clip, keys in zip(motion.tolist(), key_frames_by_motion(motion, count), strict=True):
            inner = itertools.combinations(range(1, 9), count - 2)
            best = min(unevenness(clip, (0, *between, 9)) for between in inner)
            # Every frame counts a little besides its own motion.
            assert unevenness(clip, tuple(keys.tolist())) <= best * 1.02


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
    """Values at key frames `[B, 2, K, 3, 3]` that are linear in time."""
    start = torch.randn(len(keys), 2, 1, 3, 3, generator=torch.Generator().manual_seed(2))
    slope = torch.randn(len(keys), 2, 1, 3, 3, generator=torch.Generator().manual_seed(3))
    return start + slope * keys[:, None, :, None, None]


def test_linear_interpolation_gives_back_what_is_linear_in_time() -> None:
    """With other key frames in each clip, unevenly spaced."""
    keys = torch.tensor([[0, 1, 5, 7], [0, 3, 4, 7]])
    every = torch.arange(8).expand(2, -1)
    filled = fill_between(line_clips(keys), keys, 8, "linear")
    torch.testing.assert_close(filled, line_clips(every))


def test_frames_between_have_slerps_length_and_key_frames_stay() -> None:
    keys = torch.tensor([[0, 2, 6]])
    values = torch.randn(1, 4, 3, 5, 5, generator=torch.Generator().manual_seed(4))
    values /= torch.linalg.vector_norm(values, dim=(1, 3, 4), keepdim=True)
    for how in ("slerp", "linear", "nearest"):
        filled = fill_between(values, keys, 7, how)
        assert torch.equal(frames_at(filled, keys), values)
        lengths = torch.linalg.vector_norm(filled, dim=(1, 3, 4))[0]
        if how == "slerp":
            torch.testing.assert_close(lengths, torch.ones(7))
        elif how == "linear":  # The middle of two nearly orthogonal vectors is shorter.
            assert float(lengths[[1, 4]].max()) < 0.8
        else:
            assert [bool((filled[0, :, f] == values[0, :, 1]).all()) for f in range(7)] == [
                *([False, True, True, True]),
                *([False] * 3),
            ]


def test_frames_are_taken_and_replaced_clip_by_clip() -> None:
    clips = torch.arange(2 * 6).view(2, 1, 6, 1, 1).float()
    keys = torch.tensor([[0, 5], [2, 3]])
    assert frames_at(clips, keys).flatten().tolist() == [0, 5, 8, 9]
    changed = with_frames(clips, keys, -torch.ones(2, 1, 2, 1, 1))
    assert changed.flatten().tolist() == [-1, 1, 2, 3, 4, -1, 6, 7, -1, -1, 10, 11]
    assert clips.min() == 0.0
