"""The recipe writes its model of clips where it is told, as an ordinary pipeline of diffusers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import AnimateDiffPipeline

from benchmarks import diffusion_video
from benchmarks.diffusion_models import MAKE_CLIPS
from forerun.diffusion.loading import open_pipeline
from forerun.diffusion.pipelines import draw_noise, kind_of, sample
from forerun.errors import ConfigError
from recipes import diffusion
from recipes.digits import NUM_FRAMES


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of training each, on few digits."""
    for name in ("VAE_SETTINGS", "IMAGE_SETTINGS", "CLIP_SETTINGS"):
        settings = replace(getattr(diffusion, name), steps=1, warmup_steps=0)
        monkeypatch.setattr(diffusion, name, settings)
    for name, value in {"ENCODED_AT_ONCE": 32, "NUM_IMAGES": 32, "NUM_CLIPS": 8}.items():
        monkeypatch.setattr(diffusion, name, value)


@pytest.mark.usefixtures("short")
def test_the_command_that_benchmarks_name_makes_clips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They open here, and load with diffusers alone."""
    monkeypatch.chdir(tmp_path)
    python, option, module, *arguments = MAKE_CLIPS.split()
    assert (python, option, module) == ("python", "-m", diffusion.__name__)
    diffusion.main([*arguments, "--threads", "1"])
    pipeline = open_pipeline("clips")
    noise = draw_noise(kind_of(pipeline), [0], NUM_FRAMES)
    images = sample(pipeline, noise, steps=2, labels=[7], guidance_scale=3.0)
    assert images.shape == (1, NUM_FRAMES, 1, 32, 32)

    plain = AnimateDiffPipeline.from_pretrained(
        tmp_path / "clips", text_encoder=None, tokenizer=None, low_cpu_mem_usage=False
    )
    plain.set_progress_bar_config(disable=True)
    embeds = torch.zeros(1, 1, 16)
    embeds[0, 0, 7] = 1.0
    nothing = torch.zeros_like(embeds)
    settings = {"num_frames": NUM_FRAMES, "num_inference_steps": 2}
    made = plain(prompt_embeds=embeds, negative_prompt_embeds=nothing, **settings)[0]
    assert (len(made[0]), made[0][0].size) == (NUM_FRAMES, (32, 32))


@pytest.mark.usefixtures("short")
def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """What is in the folder of clips stays; that is said before anything is trained."""
    kept = tmp_path / "kept.txt"
    kept.write_text("x")
    for folder in (tmp_path, kept):
        with pytest.raises(ConfigError, match="is not an empty folder"):
            diffusion.run(tmp_path / "work", ["images"], clips=folder)
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.usefixtures("short")
def test_a_package_takes_all_stages(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="all stages"):
        diffusion.run(tmp_path / "work", ["images", "student"], package=tmp_path / "zoo")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("named", [(), ("--pipeline", "nowhere")])
def test_the_benchmark_of_clips_says_how_to_make_them(
    named: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        diffusion_video.main([*named, "--out", str(tmp_path / "out.json")])
    assert ended.value.code == 2
    assert MAKE_CLIPS in capsys.readouterr().err
