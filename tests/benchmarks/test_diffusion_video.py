"""Roughness of clips, by which the benchmark of key frames compares their motion."""

from __future__ import annotations

import pytest
import torch

from benchmarks.diffusion_video import roughness
from forerun.errors import ConfigError


def moving(step: float, jump: float = 0.0) -> torch.Tensor:
    """A bright square that moves straight on, with a jump to and fro."""
    clip = torch.zeros(1, 8, 1, 32, 32)
    for frame in range(8):
        across = round(4 + step * frame + jump * (frame % 2))
        clip[0, frame, 0, 10:14, across : across + 4] = 1.0
    return clip


def test_roughness_is_the_acceleration_of_the_centre() -> None:
    assert roughness(moving(2.0)).value == pytest.approx(0.0, abs=1e-9)
    # To and fro by 3 pixels: an acceleration of 6 at each frame.
    assert roughness(moving(2.0, 3.0)).value == pytest.approx(6.0)
    with pytest.raises(ConfigError, match="3 frames"):
        roughness(moving(1.0)[:, :2])
