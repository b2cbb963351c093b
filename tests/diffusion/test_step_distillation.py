"""Progressive distillation: its target is two steps of the teacher, a resumed run is the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline
from torch import Generator, Tensor

from forerun.diffusion.loading import open_pipeline
from forerun.diffusion.pipelines import draw_noise, kind_of, sample
from forerun.diffusion.step_distillation import (
    DistillationConfig,
    Examples,
    Halving,
    Student,
    distill,
    guided_copy,
    sampled_examples,
    save_student,
    with_denoiser,
)
from forerun.diffusion.training import AveragedTraining
from forerun.errors import ConfigError, TrainingError, UnsupportedModelError
from forerun.progress import watched_by
from tests.helpers import tiny_pipelines as tiny

SHORT = AveragedTraining(steps=3, learning_rate=1e-3, warmup_steps=1, save_every_seconds=0.0)
CONFIG = DistillationConfig(
    start_steps=8, end_steps=2, guidance=(1.0, 3.0), batch_size=4, training=SHORT
)


UNFIT_SCHEDULERS: list[tuple[dict[str, Any], str]] = [
    ({"timestep_spacing": "linspace"}, "timestep_spacing"),
    ({"clip_sample": True}, "clip_sample"),
]


def examples(width: int = tiny.WIDTH) -> Examples:
    torch.manual_seed(0)
    return Examples(torch.randn(16, 4, 8, 8), torch.randn(16, 1, width))


def run(pipeline: Any, steps: int, scale: float) -> Tensor:
    noise = draw_noise(kind_of(pipeline), [0, 1])
    return sample(pipeline, noise, steps=steps, labels=[1, 2], guidance_scale=scale, latent=True)


def test_examples_of_the_teachers_own_making_are_its_samples() -> None:
    pipeline = tiny.unet_pipeline()
    embeds = torch.zeros(2, 1, tiny.WIDTH)
    embeds[[0, 1], 0, [1, 2]] = 1.0
    for batch_size in (1, 2):
        made = sampled_examples(
            pipeline, embeds, steps=4, guidance_scale=2.0, batch_size=batch_size
        )
        torch.testing.assert_close(made.latents, run(pipeline, 4, 2.0), rtol=1e-4, atol=1e-4)
        assert torch.equal(made.prompt_embeds, embeds)
    with pytest.raises(UnsupportedModelError):
        sampled_examples(tiny.transformer_pipeline(), embeds)


def halving(pipeline: Any, steps: int) -> Halving:
    return Halving(pipeline, examples(), steps, CONFIG)


@pytest.mark.parametrize("prediction", ["v_prediction", "epsilon"])
def test_the_target_lands_where_two_steps_of_the_pipeline_do(prediction: str) -> None:
    """A step with the target is what the pipeline's own loop does in two, guidance and all."""
    pipeline = tiny.unet_pipeline(prediction)
    if (
        prediction == "epsilon"
    ):  # The cosine schedule starts where a prediction of noise says nothing.
        config = {**pipeline.scheduler.config, "beta_schedule": "linear"}
        pipeline.scheduler = type(pipeline.scheduler).from_config(config)
    stage = halving(pipeline, steps=1)
    noise = draw_noise(kind_of(pipeline), [0, 1])
    embeds = torch.zeros(2, 1, tiny.WIDTH)
    embeds[[0, 1], 0, [1, 2]] = 1.0
    first = torch.zeros(2, dtype=torch.long)
    target = stage.target(noise, first, embeds, torch.full((2,), 3.0))
    landed = stage.own.mean(first, noise, target)
    torch.testing.assert_close(landed, run(pipeline, 2, 3.0), rtol=1e-3, atol=1e-3)


def test_a_student_that_hits_the_target_has_no_loss() -> None:
    pipeline = tiny.unet_pipeline()
    stage = halving(pipeline, steps=4)

    class Perfect:
        config = guided_copy(pipeline.unet).config

        def __call__(self, noisy: Tensor, times: Tensor, **others: Any) -> Any:
            # The scales are drawn after latents, times and noise; the batch's own target is found again.
            generator = Generator().manual_seed(7)
            _, embeds = stage.examples.draw(4, generator)
            steps = torch.randint(4, (4,), generator=generator)
            torch.randn(noisy.shape, generator=generator)
            scales = 1.0 + 2.0 * torch.rand(4, generator=generator)
            found = stage.target(noisy, steps, embeds, scales)
            return SimpleNamespace(sample=found)

    assert stage.loss(Perfect(), Generator().manual_seed(7)) == 0.0
    assert stage.loss(guided_copy(pipeline.unet), Generator().manual_seed(7)) > 0.0


def test_a_copy_starts_as_the_teacher_without_guidance() -> None:
    pipeline = tiny.unet_pipeline()
    student = with_denoiser(pipeline, guided_copy(pipeline.unet))
    expected = run(pipeline, 4, 1.0)
    for scale in (1.0, 3.0):
        torch.testing.assert_close(run(student, 4, scale), expected)


@pytest.mark.slow
def test_training_brings_the_student_closer_to_two_steps_of_its_teacher(tmp_path: Path) -> None:
    pipeline = tiny.unet_pipeline()
    before = run(with_denoiser(pipeline, guided_copy(pipeline.unet)), 2, 3.0)
    config = replace(
        CONFIG,
        start_steps=4,
        guidance=(3.0, 3.0),
        batch_size=16,
        training=replace(SHORT, steps=60, learning_rate=2e-3, save_every_seconds=60.0),
    )
    noise = draw_noise(kind_of(pipeline), range(64))
    own = Examples(noise, torch.eye(tiny.WIDTH)[1:3].repeat(32, 1)[:, None])
    student = distill(pipeline, own, config, tmp_path)
    teacher = run(pipeline, 4, 3.0)
    errors = [
        (found - teacher).square().mean() for found in (run(student.pipeline, 2, 3.0), before)
    ]
    assert errors[0] < 0.7 * errors[1]


class StoppedError(Exception):
    pass


def test_an_interrupted_distillation_ends_with_the_same_weights(tmp_path: Path) -> None:
    pipeline = tiny.unet_pipeline()
    whole = distill(pipeline, examples(), CONFIG, tmp_path / "whole")

    def watch(what: str, done: int, total: int) -> None:
        if done == 2 and "2 steps" in what:
            raise StoppedError

    with pytest.raises(StoppedError), watched_by(watch):
        distill(pipeline, examples(), CONFIG, tmp_path / "stopped")
    seen: list[int] = []
    again = distill(
        pipeline,
        examples(),
        CONFIG,
        tmp_path / "stopped",
        after=lambda student: seen.append(student.steps),
    )
    assert seen == [4, 2]
    weights = zip(whole.pipeline.unet.parameters(), again.pipeline.unet.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)


def test_a_saved_student_is_an_ordinary_pipeline(tmp_path: Path) -> None:
    student = distill(tiny.unet_pipeline(), examples(), CONFIG, tmp_path / "work")
    (tmp_path / "student").mkdir()  # An empty folder is as good as none.
    save_student(student, tmp_path / "student")
    alone = StableDiffusionPipeline.from_pretrained(
        tmp_path / "student", text_encoder=None, tokenizer=None, low_cpu_mem_usage=False
    )
    alone.set_progress_bar_config(disable=True)
    assert torch.equal(run(alone, 2, 2.0), run(student.pipeline, 2, 2.0))
    opened = open_pipeline(tmp_path / "student")
    assert not torch.equal(run(opened, 2, 2.0), run(opened, 2, 3.0)), "it knows the guidance scale"
    with pytest.raises(TrainingError, match="exists already"):
        save_student(student, tmp_path / "student")


def test_a_student_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(pipeline: Any, folder: Path) -> None:
        folder.mkdir()
        (folder / "half").write_text("written")
        raise OSError("the disk is full")

    monkeypatch.setattr("forerun.diffusion.step_distillation.save_pipeline", broken)
    with pytest.raises(OSError, match="full"):
        save_student(Student(2, tiny.unet_pipeline()), tmp_path / "student")
    assert not list(tmp_path.iterdir())


def test_what_is_refused(tmp_path: Path) -> None:
    pipeline = tiny.unet_pipeline()
    for other in (tiny.transformer_pipeline(), tiny.clip_pipeline(), tiny.unguided_pipeline()):
        with pytest.raises(UnsupportedModelError, match="cannot be distilled"):
            distill(other, examples(), CONFIG, tmp_path)
    with pytest.raises(ConfigError, match="embeddings of width 5"):
        distill(pipeline, examples(width=5), CONFIG, tmp_path)
    with pytest.raises(ConfigError, match="48 steps do not divide"):
        distill(pipeline, examples(), replace(CONFIG, start_steps=48, end_steps=24), tmp_path)
    for changed, words in UNFIT_SCHEDULERS:
        pipeline.scheduler = DDIMScheduler.from_config({**tiny.scheduler().config, **changed})
        with pytest.raises(ConfigError, match=words):
            distill(pipeline, examples(), CONFIG, tmp_path)
    pipeline.scheduler = tiny.unguided_pipeline().scheduler
    with pytest.raises(ConfigError, match="DDIMScheduler"):
        distill(pipeline, examples(), CONFIG, tmp_path)
    assert not list(tmp_path.iterdir())


def test_weights_make_errors_of_predictions_errors_of_the_clean_sample() -> None:
    for prediction in ("v_prediction", "epsilon"):
        pipeline = tiny.unet_pipeline(prediction)
        stage = halving(pipeline, steps=8)
        kept = pipeline.scheduler.alphas_cumprod[stage.own.timesteps][1:]
        # An error of 1 in the prediction is one of sigma, or sigma / alpha, in the clean sample.
        share = 1 - kept if prediction == "v_prediction" else (1 - kept) / kept
        truncated = (kept / (1 - kept)).clamp_min(1.0)
        torch.testing.assert_close(stage.weights[1:], truncated * share)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start_steps": 64, "end_steps": 5},
        {"start_steps": 4, "end_steps": 4},
        {"end_steps": 0},
        {"guidance": (0.5, 2.0)},
        {"batch_size": 0},
    ],
)
def test_a_config_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DistillationConfig(**wrong)
