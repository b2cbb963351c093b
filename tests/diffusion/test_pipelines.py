"""Pipelines are opened without running code of theirs, and sampled from given noise."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun.diffusion import loading
from forerun.diffusion.loading import INDEX, open_pipeline, save_pipeline
from forerun.diffusion.pipelines import draw_noise, kind_of, label_embeds, sample
from forerun.errors import CheckpointError, ConfigError, UnknownNameError, UnsupportedModelError
from tests.helpers import tiny_pipelines as tiny

MADE = {
    "unet": tiny.unet_pipeline,
    "transformer": tiny.transformer_pipeline,
    "unguided": tiny.unguided_pipeline,
    "clips": tiny.clip_pipeline,
}


def run(pipeline: Any, seeds: tuple[int, ...] = (0, 1), latent: bool = False) -> torch.Tensor:
    kind = kind_of(pipeline)
    noise = draw_noise(kind, seeds, 5 if kind.video else None)
    settings: dict[str, Any] = {"steps": 4, "generator": torch.Generator().manual_seed(0)}
    if kind.conditioning != "none":
        settings |= {"labels": [1 + seed % 3 for seed in seeds], "guidance_scale": 3.0}
    return sample(pipeline, noise, latent=latent, **settings)


@pytest.mark.parametrize("name", MADE)
def test_a_saved_pipeline_samples_as_before(name: str, tmp_path: Path) -> None:
    pipeline = MADE[name]()
    save_pipeline(pipeline, tmp_path / "saved")
    again = open_pipeline(tmp_path / "saved")
    assert kind_of(again) == kind_of(pipeline)
    images = run(pipeline)
    assert torch.equal(run(again), images)
    assert images.shape[:2] == ((2, 5) if name == "clips" else (2, 1))
    assert images.min() >= 0.0
    assert images.max() <= 1.0


def test_each_sample_follows_from_its_own_noise() -> None:
    pipeline = tiny.transformer_pipeline()
    both = run(pipeline, (0, 1))
    swapped = sample(
        pipeline,
        draw_noise(kind_of(pipeline), (1, 0)),
        steps=4,
        labels=[2, 1],
        guidance_scale=3.0,
    )
    torch.testing.assert_close(swapped.flip(0), both)
    assert not torch.allclose(both[0], both[1], atol=1e-3)


@pytest.mark.skipif(find_spec("accelerate") is not None, reason="accelerate is installed")
def test_parts_of_mixed_precision_ask_for_accelerate(tmp_path: Path) -> None:
    save_pipeline(tiny.wan_pipeline(), tmp_path / "wan")
    with pytest.raises(CheckpointError, match="install"):
        open_pipeline(tmp_path / "wan")


def index_of(folder: Path, **changed: Any) -> Path:
    """A saved pipeline with an index that says something else."""
    save_pipeline(tiny.unet_pipeline(), folder)
    path = folder / INDEX
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    return folder


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"_class_name": ["mine", "Mine"]}, CheckpointError, "its code is not run"),
        ({"unet": ["mine", "Mine"]}, CheckpointError, "no code of a checkpoint"),
        ({"unet": ["mine"]}, CheckpointError, "no class for unet"),
        ({"_class_name": "NoSuchPipeline"}, UnsupportedModelError, "no pipeline"),
        ({"_class_name": "os"}, UnsupportedModelError, "no pipeline"),
        ({"scheduler": ["diffusers", "DDIMSheduler"]}, UnknownNameError, "DDIMScheduler"),
        ({"unet": ["diffusers", "AutoencoderKL"]}, CheckpointError, "cannot be loaded"),
    ],
)
def test_what_is_refused(
    changed: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    folder = index_of(tmp_path / "saved", **changed)
    with pytest.raises(error, match=words):
        open_pipeline(folder)


def test_code_beside_a_pipeline_is_not_run(tmp_path: Path) -> None:
    folder = index_of(tmp_path / "saved", unet=["mine", "Mine"])
    (folder / "unet" / "mine.py").write_text("raise SystemExit('was run')")
    (folder / "mine.py").write_text("raise SystemExit('was run')")
    with pytest.raises(CheckpointError):
        open_pipeline(folder)


def test_only_safetensors_are_loaded(tmp_path: Path) -> None:
    folder = index_of(tmp_path / "saved")
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    torch.save(tiny.unet().state_dict(), weights.with_suffix(".bin"))
    weights.unlink()
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        open_pipeline(folder)


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_what_is_no_pipeline(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / INDEX).write_text(content)
    with pytest.raises(CheckpointError):
        open_pipeline(tmp_path)


def test_arguments_that_a_pipeline_does_not_take() -> None:
    unguided, guided = tiny.unguided_pipeline(), tiny.unet_pipeline()
    noise = draw_noise(kind_of(unguided), [0])
    with pytest.raises(ConfigError, match="guidance_scale"):
        sample(unguided, noise, steps=2, guidance_scale=3.0)
    with pytest.raises(ConfigError, match="not conditional"):
        sample(unguided, noise, steps=2, labels=[1])
    with pytest.raises(ConfigError, match="latents"):
        sample(unguided, noise, steps=2, latent=True)
    with pytest.raises(ConfigError, match="does not fit"):
        sample(unguided, noise[..., :4], steps=2)
    noise = draw_noise(kind_of(guided), [0])
    with pytest.raises(ConfigError, match="1 of them"):
        sample(guided, noise, steps=2, labels=[1, 2])
    with pytest.raises(ConfigError, match="either labels"):
        sample(guided, noise, steps=2)
    with pytest.raises(ConfigError, match="label 8"):
        label_embeds([8], 8)
    with pytest.raises(ConfigError, match="no frames"):
        draw_noise(kind_of(guided), [0], 4)
    with pytest.raises(ConfigError, match="how many frames"):
        draw_noise(kind_of(tiny.clip_pipeline()), [0])


def test_without_diffusers_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "diffusers", None)
    with pytest.raises(ConfigError, match=r"pip install 'forerun\[diffusion\]'"):
        loading.diffusers()
