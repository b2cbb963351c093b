"""Handwritten digits, drawn anew each time: images of 32x32 pixels, and clips of a digit that moves.

They come of the 1,797 scans of 8x8 pixels that ship with scikit-learn. Each scan is enlarged smoothly
and cut at a random brightness, which is the width of its stroke, then turned, scaled and placed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate, pad

SIZE = 32
"""Width and height of an image, in pixels."""
NUM_CLASSES = 10
NUM_FRAMES = 16
_ENLARGED = 32
_HELD_OUT_EVERY = 6
_ROOM = 0.5
"""How far from the middle a digit may lie; the canvas reaches from -1 to 1."""


@dataclass(frozen=True)
class Digits:
    """Scans `[N, 1, 32, 32]`, enlarged, in [0, 1], and their labels `[N]`."""

    scans: Tensor
    labels: Tensor

    def draw(self, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Scans with their labels, drawn with replacement: `[count, 1, 32, 32]`, `[count]`."""
        index = torch.randint(len(self.labels), (count,), generator=generator)
        return self.scans[index], self.labels[index]


@cache
def load_digits(held_out: bool = False) -> Digits:
    """The digits to train on, or every sixth, which is held out."""
    from sklearn.datasets import load_digits as load

    scans, labels = load(return_X_y=True)
    images = torch.as_tensor(scans, dtype=torch.float32).view(-1, 1, 8, 8) / 16.0
    enlarged = interpolate(pad(images, (1, 1, 1, 1)), size=_ENLARGED, mode="bicubic")
    chosen = (torch.arange(len(labels)) % _HELD_OUT_EVERY == 0) == held_out
    return Digits(enlarged[chosen], torch.as_tensor(labels, dtype=torch.int64)[chosen])


def uniform(low: float, high: float, shape: tuple[int, ...], generator: Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator)


def render(scans: Tensor, scale: Tensor, angle: Tensor, place: Tensor, stroke: Tensor) -> Tensor:
    """Draw each scan on an empty canvas.

    Args:
        scans: `[B, 1, 32, 32]`.
        scale: the digit's width as a share of the canvas, `[B]`.
        angle: in radians, `[B]`.
        place: of its middle, from -1 to 1, `[B, 2]`.
        stroke: the brightness at which it is cut, `[B]`: the lower, the bolder.

    Returns:
        `[B, 1, 32, 32]` in [-1, 1]; the background is -1.
    """
    cosine, sine = angle.cos() / scale, angle.sin() / scale
    turn = torch.stack((torch.stack((cosine, sine), -1), torch.stack((-sine, cosine), -1)), -2)
    shift = -(turn @ place[..., None])
    grid = affine_grid(torch.cat((turn, shift), -1), [len(scans), 1, SIZE, SIZE], False)
    drawn = grid_sample(scans, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return torch.sigmoid((drawn - stroke.view(-1, 1, 1, 1)) * 9.0) * 2.0 - 1.0


def draw_images(digits: Digits, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Images `[count, 1, 32, 32]` in [-1, 1] and their labels `[count]`."""
    scans, labels = digits.draw(count, generator)
    images = render(
        scans,
        scale=uniform(0.55, 0.8, (count,), generator),
        angle=uniform(-0.25, 0.25, (count,), generator),
        place=uniform(-0.3, 0.3, (count, 2), generator),
        stroke=uniform(0.4, 0.6, (count,), generator),
    )
    return images, labels


def bounce(position: Tensor) -> Tensor:
    """Where a point that started inside the room is when it is thrown back by the walls."""
    turn = 4.0 * _ROOM
    phase = (position + _ROOM) % turn
    return torch.minimum(phase, turn - phase) - _ROOM


def draw_clips(
    digits: Digits, count: int, num_frames: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Clips `[count, num_frames, 1, 32, 32]` in [-1, 1] and their labels `[count]`.

    A digit moves straight on, is thrown back by the walls and turns slowly. Speeds range over a
    factor of eight, so every n-th frame of a clip is a clip too.
    """
    scans, labels = digits.draw(count, generator)
    start = uniform(-_ROOM, _ROOM, (count, 2), generator)
    heading = uniform(0.0, 2.0 * torch.pi, (count,), generator)
    speed = 0.0125 * 2.0 ** uniform(0.0, 3.0, (count,), generator)
    velocity = speed[:, None] * torch.stack((heading.cos(), heading.sin()), -1)
    spin = speed * uniform(-1.0, 1.0, (count,), generator)
    time = torch.arange(num_frames) - (num_frames - 1) / 2.0
    place = bounce(start[:, None] + velocity[:, None] * time[None, :, None])
    angle = uniform(-0.2, 0.2, (count, 1), generator) + spin[:, None] * time
    scale = uniform(0.55, 0.7, (count, 1), generator).expand(-1, num_frames)
    stroke = uniform(0.4, 0.6, (count, 1), generator).expand(-1, num_frames)
    frames = render(
        scans.repeat_interleave(num_frames, 0),
        scale.reshape(-1),
        angle.reshape(-1),
        place.reshape(-1, 2),
        stroke.reshape(-1),
    )
    return frames.view(count, num_frames, 1, SIZE, SIZE), labels
