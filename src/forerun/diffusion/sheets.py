"""Contact sheets of images as PNG, and clips as GIF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from forerun.errors import ConfigError
from forerun.files import atomic_path

_GAP = 1
_GREY = 0.35
# Time for which each frame of a clip is shown.
_MILLISECONDS = 100


def sheet(rows: Tensor, scale: int = 2) -> Any:
    """A contact sheet: images in rows, as one picture.

    Args:
        rows: images `[rows, columns, C, H, W]` in [0, 1]; C is 1 or 3.
        scale: factor of enlargement, across and down.

    Raises:
        ConfigError: for another shape, or pixels that are not numbers.
    """
    if rows.ndim != 5 or rows.shape[2] not in (1, 3) or not rows.numel():
        raise ConfigError(f"a sheet takes [rows, columns, 1 or 3, H, W], got {list(rows.shape)}.")
    if not bool(rows.isfinite().all()):
        raise ConfigError("a sheet takes finite pixels; these hold NaN or infinity.")
    cells = pad(rows, (_GAP, 0, _GAP, 0), value=_GREY)
    lines, columns, channels, height, width = cells.shape
    canvas = cells.permute(2, 0, 3, 1, 4).reshape(channels, lines * height, columns * width)
    return to_picture(pad(canvas, (0, _GAP, 0, _GAP), value=_GREY), scale)


def to_picture(pixels: Tensor, scale: int = 1) -> Any:
    """A PIL image of pixels `[C, H, W]`, clamped to [0, 1]."""
    levels = (pixels.float().clamp(0.0, 1.0) * 255.0).round().to(torch.uint8)
    values = levels[0].numpy() if len(levels) == 1 else levels.permute(1, 2, 0).numpy()
    picture = Image.fromarray(values)
    size = (picture.width * scale, picture.height * scale)
    return picture.resize(size, Image.Resampling.NEAREST)


def save_sheet(rows: Tensor, path: Path, scale: int = 2) -> None:
    """Write a contact sheet as PNG, atomically; see `sheet`."""
    picture = sheet(rows, scale)
    with atomic_path(path) as temporary:
        picture.save(temporary, format="PNG", optimize=True)


def save_clips(rows: Tensor, path: Path) -> None:
    """Write clips side by side as one repeating GIF, atomically.

    Args:
        rows: clips `[rows, columns, F, C, H, W]` in [0, 1].
        path: path of the file.
    """
    if rows.ndim != 6:
        raise ConfigError(f"clips are [rows, columns, F, C, H, W], got {list(rows.shape)}.")
    frames = [sheet(rows[:, :, frame]) for frame in range(rows.shape[2])]
    with atomic_path(path) as temporary:
        frames[0].save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=frames[1:],
            duration=_MILLISECONDS,
            loop=0,
        )
