"""PSNR of known errors; sheets and clips hold what was made."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from forerun.diffusion.methods import psnr
from forerun.diffusion.sheets import save_clips, save_sheet
from forerun.errors import ConfigError


def test_psnr_of_a_known_error() -> None:
    reference = torch.rand(20, 1, 8, 8)
    found = psnr(reference + 0.1, reference)
    assert found.value == pytest.approx(20.0, abs=1e-4)
    assert psnr(reference, reference).value == pytest.approx(120.0)


def test_samples_of_another_shape_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be compared"):
        psnr(torch.rand(2, 8, 1, 4, 4), torch.rand(2, 6, 1, 4, 4))


def test_a_sheet_holds_every_image_where_it_belongs(tmp_path: Path) -> None:
    rows = torch.rand(2, 3, 1, 5, 4)
    save_sheet(rows, tmp_path / "sheet.png", scale=2)
    pixels = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert pixels.shape == ((2 * 6 + 1) * 2, (3 * 5 + 1) * 2)
    cell = pixels[::2, ::2][7:12, 11:15]
    assert np.array_equal(cell, (rows[1, 2, 0] * 255).round().byte().numpy())
    with pytest.raises(ConfigError, match="NaN"):
        save_sheet(rows * math.nan, tmp_path / "bad.png")
    with pytest.raises(ConfigError, match="rows, columns"):
        save_sheet(rows[0], tmp_path / "bad.png")
    assert not (tmp_path / "bad.png").exists()


def test_clips_keep_their_frames(tmp_path: Path) -> None:
    rows = torch.zeros(1, 2, 6, 3, 5, 4)
    rows[:, :, torch.arange(6), :] = torch.linspace(0, 1, 6).view(1, 1, 6, 1, 1, 1)
    save_clips(rows, tmp_path / "clips.gif")
    with Image.open(tmp_path / "clips.gif") as picture:
        assert getattr(picture, "n_frames", 0) == 6
    with pytest.raises(ConfigError, match="clips are"):
        save_clips(rows[0], tmp_path / "bad.gif")
