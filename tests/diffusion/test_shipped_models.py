"""The shipped models are ordinary pipelines, small, and draw the digit that they are asked for."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionPipeline

from forerun.diffusion.loading import PIPELINES, open_pipeline
from forerun.diffusion.methods import psnr
from forerun.diffusion.pipelines import draw_noise, kind_of, sample
from recipes.classifier import label_accuracy, load_classifier

MODELS = Path(str(files("forerun_zoo"))) / "diffusion"
pytestmark = pytest.mark.zoo


def images_of(name: str, count: int, steps: int) -> torch.Tensor:
    pipeline = open_pipeline(MODELS / name)
    labels = [number % 10 for number in range(count)]
    noise = draw_noise(kind_of(pipeline), range(count))
    return sample(pipeline, noise, steps=steps, labels=labels, guidance_scale=3.0)


@pytest.mark.parametrize(("name", "steps"), [("images", 12), ("images-4-steps", 4)])
def test_images_show_their_label(name: str, steps: int) -> None:
    classifier = load_classifier(MODELS / "classifier.safetensors")
    images = images_of(name, 40, steps)
    assert label_accuracy(classifier, images, [number % 10 for number in range(40)]).value > 0.8


def test_the_student_is_nearer_to_many_steps_than_its_teacher_at_four() -> None:
    full, plain, student = (
        images_of(*choice)
        for choice in (("images", 30, 32), ("images", 30, 4), ("images-4-steps", 30, 4))
    )
    assert psnr(student, full).low > psnr(plain, full).high


@pytest.mark.parametrize("name", ["images", "images-4-steps"])
def test_they_load_with_diffusers_alone(name: str) -> None:
    pipeline = StableDiffusionPipeline.from_pretrained(
        MODELS / name, text_encoder=None, tokenizer=None, low_cpu_mem_usage=False
    )
    pipeline.set_progress_bar_config(disable=True)
    embeds = torch.zeros(1, 1, 16)
    embeds[0, 0, 7] = 1.0
    output = pipeline(
        prompt_embeds=embeds,
        negative_prompt_embeds=torch.zeros_like(embeds),
        num_inference_steps=2,
    )[0]
    assert output[0].size == (32, 32)


def test_they_are_small_and_hold_no_code() -> None:
    held = [path for path in MODELS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in held) <= 5 * 2**20
    assert {path.name for path in MODELS.iterdir()} == {*PIPELINES, "classifier.safetensors"}
    assert {path.suffix for path in held} <= {".safetensors", ".json", ".md"}
