"""The recipe of the small diffusion models: images of handwritten digits, and clips of moving ones.

Run it with ``python -m recipes.diffusion --work DIR``. Every stage keeps its state in DIR, so a run
that was stopped goes on where it was, and ends with the same weights. The model of clips is not part of
the zoo: ``--stages images --clips FOLDER`` trains it and writes its pipeline into FOLDER.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from forerun.diffusion.step_distillation import DistillationConfig, Examples, Student, distill
from forerun.diffusion.training import AveragedTrainer, AveragedTraining
from forerun.errors import ConfigError
from forerun.files import atomic_path
from recipes.classifier import Classifier, save_classifier
from recipes.diffusion_models import (
    clip_pipeline,
    drop_labels,
    embed_labels,
    image_pipeline,
    make_clip_unet,
    make_image_unet,
    make_scheduler,
    make_vae,
    publish_pipeline,
)
from recipes.digits import NUM_FRAMES, SIZE, draw_clips, draw_images, load_digits

logger = logging.getLogger(__name__)

STAGES = ("classifier", "images", "student")
VAE_SETTINGS = AveragedTraining(steps=1200, learning_rate=3e-3, ema_decay=0.995)
IMAGE_SETTINGS = AveragedTraining(steps=2500, learning_rate=2e-3, warmup_steps=200, seed=1)
CLIP_SETTINGS = AveragedTraining(steps=6000, learning_rate=1.5e-3, warmup_steps=200, seed=2)
CLASSIFIER_SETTINGS = AveragedTraining(
    steps=2500, learning_rate=3e-3, warmup_steps=100, ema_decay=0.99, seed=3
)
STUDENT_SETTINGS = AveragedTraining(steps=600, learning_rate=6e-4, ema_decay=0.995, seed=4)
STUDENT = DistillationConfig(
    start_steps=64, end_steps=4, guidance=(1.0, 4.0), training=STUDENT_SETTINGS, final_factor=2
)
VAE_BATCH = 32
IMAGE_BATCH = 64
FRAMES_IN_BATCH = 128
KL_WEIGHT = 5e-4
NUM_IMAGES = 24_576
NUM_CLIPS = 4096
ENCODED_AT_ONCE = 256
DROPPED_LABELS = 0.15
STRIDES = (1, 1, 1, 2, 3, 4, 5)
"""Every n-th frame of a clip is trained on too: half the steps see all frames."""


def vae_loss(vae: Any, generator: Generator) -> Tensor:
    """Squared error of the pixels, and a weak pull of the latents to a standard Gaussian."""
    images = draw_images(load_digits(), VAE_BATCH // 2, generator)[0]
    frames = draw_clips(load_digits(), VAE_BATCH // 2, 1, generator)[0][:, 0]
    pixels = torch.cat((images, frames))
    posterior = vae.encode(pixels).latent_dist
    decoded = vae.decode(posterior.sample(generator)).sample
    divergence: Tensor = posterior.kl().mean() / posterior.mean[0].numel()
    error = mse_loss(decoded, pixels)
    return error + KL_WEIGHT * divergence


def train_vae(work: Path) -> Any:
    """The autoencoder; its latents are scaled to a standard deviation of 1."""
    vae = make_vae()
    AveragedTrainer(vae, vae_loss, VAE_SETTINGS, work / "vae.pt", what="autoencoder").run()
    images = draw_images(load_digits(), 1024, Generator().manual_seed(0))[0]
    with torch.no_grad():
        deviation = vae.encode(images).latent_dist.mean.std().item()
    vae.register_to_config(scaling_factor=round(1.0 / deviation, 4))
    return vae.requires_grad_(False)


def encode(vae: Any, pixels: Tensor) -> Tensor:
    """Scaled latents `[B, 4, 8, 8]` of images `[B, 1, 32, 32]`."""
    with torch.no_grad():
        latents: Tensor = vae.encode(pixels).latent_dist.mean * vae.config.scaling_factor
    return latents


def encoded_set(path: Path, vae: Any, draw: Callable[[Generator], tuple[Tensor, Tensor]]) -> Any:
    """Latents and labels of many drawn images or clips, computed once: a pair of tensors."""
    if not path.exists():
        latents, labels = [], []
        for part in range(NUM_IMAGES // ENCODED_AT_ONCE):
            pixels, label = draw(Generator().manual_seed(part))
            encoded = encode(vae, pixels.reshape(-1, 1, SIZE, SIZE))
            latents.append(encoded.view(*pixels.shape[:-3], *encoded.shape[1:]))
            labels.append(label)
        with atomic_path(path) as temporary:
            torch.save({"latents": torch.cat(latents), "labels": torch.cat(labels)}, temporary)
    content = torch.load(path, weights_only=True)
    return content["latents"], content["labels"]


def velocity_loss(unet: Any, latents: Tensor, labels: Tensor, generator: Generator) -> Tensor:
    """Squared error of the predicted velocity at random timesteps; some labels are dropped."""
    scheduler = make_scheduler()
    total = scheduler.config.num_train_timesteps
    steps = torch.randint(total, labels.shape, generator=generator)
    if latents.ndim == 5:
        # How frames hang together is decided while all is noise; details are the image model's already.
        steps = torch.maximum(steps, torch.randint(total, labels.shape, generator=generator))
    noise = torch.randn(latents.shape, generator=generator)
    noisy = scheduler.add_noise(latents, noise, steps)
    velocity = scheduler.get_velocity(latents, noise, steps)
    embeds = embed_labels(drop_labels(labels, DROPPED_LABELS, generator))
    if latents.ndim == 5:
        embeds = embeds.repeat_interleave(latents.shape[2], 0)
    return mse_loss(unet(noisy, steps, encoder_hidden_states=embeds).sample, velocity)


def image_loss(latents: Tensor, labels: Tensor, unet: nn.Module, generator: Generator) -> Tensor:
    index = torch.randint(len(labels), (IMAGE_BATCH,), generator=generator)
    return velocity_loss(unet, latents[index], labels[index], generator)


def clip_loss(latents: Tensor, labels: Tensor, unet: nn.Module, generator: Generator) -> Tensor:
    """Clips at a random stride, about as many frames in every batch."""
    stride = STRIDES[int(torch.randint(len(STRIDES), (1,), generator=generator))]
    start = int(torch.randint(stride, (1,), generator=generator))
    kept = torch.arange(start, NUM_FRAMES, stride)
    count = FRAMES_IN_BATCH // len(kept)
    index = torch.randint(len(labels), (count,), generator=generator)
    clips = latents[index][:, kept].transpose(1, 2)
    return velocity_loss(unet, clips, labels[index], generator)


def image_drawer() -> Callable[[Generator], tuple[Tensor, Tensor]]:
    return partial(draw_images, load_digits(), ENCODED_AT_ONCE)


def train_images(work: Path, vae: Any) -> Any:
    latents, labels = encoded_set(work / "images.latents", vae, image_drawer())
    unet = make_image_unet()
    loss = partial(image_loss, latents, labels)
    AveragedTrainer(unet, loss, IMAGE_SETTINGS, work / "images.pt", what="images").run()
    return unet


def train_clips(work: Path, vae: Any, image_unet: nn.Module) -> Any:
    count = NUM_CLIPS * ENCODED_AT_ONCE // NUM_IMAGES

    def draw(generator: Generator) -> tuple[Tensor, Tensor]:
        return draw_clips(load_digits(), count, NUM_FRAMES, generator)

    latents, labels = encoded_set(work / "clips.latents", vae, draw)
    unet = make_clip_unet(image_unet).requires_grad_(True)
    loss = partial(clip_loss, latents, labels)
    AveragedTrainer(unet, loss, CLIP_SETTINGS, work / "clips.pt", what="clips").run()
    return unet


def classifier_loss(classifier: nn.Module, generator: Generator) -> Tensor:
    """Cross-entropy on images and single frames, in [0, 1], some with noise."""
    images, labels = draw_images(load_digits(), IMAGE_BATCH // 2, generator)
    frames, moving = draw_clips(load_digits(), IMAGE_BATCH // 2, 1, generator)
    pixels = torch.cat((images, frames[:, 0])) / 2.0 + 0.5
    blur = 0.15 * torch.rand(len(pixels), 1, 1, 1, generator=generator)
    noisy = (pixels + blur * torch.randn(pixels.shape, generator=generator)).clamp(0.0, 1.0)
    return cross_entropy(classifier(noisy), torch.cat((labels, moving)))


def train_classifier(work: Path) -> Classifier:
    """The classifier whose features samples are compared by."""
    torch.manual_seed(3)
    classifier = Classifier()
    state = work / "classifier.pt"
    AveragedTrainer(
        classifier, classifier_loss, CLASSIFIER_SETTINGS, state, what="classifier"
    ).run()
    images, labels = draw_images(load_digits(held_out=True), 2000, Generator().manual_seed(0))
    with torch.no_grad():
        right = (classifier(images / 2.0 + 0.5).argmax(-1) == labels).float().mean().item()
    logger.info("the classifier is right about %.1f %% of held-out digits", 100.0 * right)
    return classifier.requires_grad_(False)


def distill_images(
    work: Path, vae: Any, unet: Any, after: Callable[[Student], None] = lambda _: None
) -> Student:
    """The image model's student of four steps; `after` is called with that of each halving."""
    latents, labels = encoded_set(work / "images.latents", vae, image_drawer())
    examples = Examples(latents, embed_labels(labels))
    return distill(image_pipeline(vae, unet), examples, STUDENT, work / "student", after=after)


def run(
    work: Path, stages: Sequence[str], package: Path | None = None, clips: Path | None = None
) -> None:
    """Train what the stages name, and what those build on.

    Args:
        work: where the stages keep their state.
        stages: of `STAGES`.
        package: folder of the zoo package to write into; takes all stages.
        clips: folder to write a pipeline of clips into, which is trained for it.

    Raises:
        ConfigError: for a package with some stages alone, or a folder of clips that is not empty.
    """
    if package is not None and set(stages) != set(STAGES):
        raise ConfigError("publishing takes all stages; leave --stages out.")
    if clips is not None and clips.exists() and not (clips.is_dir() and not any(clips.iterdir())):
        raise ConfigError(f"--clips {clips} is not an empty folder; name another.")
    if "classifier" in stages:
        train_classifier(work)
    vae = train_vae(work)
    logger.info("latents are scaled by %s", vae.config.scaling_factor)
    unet = train_images(work, vae)
    if clips is not None:
        publish_pipeline(clip_pipeline(vae, train_clips(work, vae, unet)), clips)
    student = distill_images(work, vae, unet) if "student" in stages else None
    if package is None or student is None:
        return
    folder = package / "diffusion"
    publish_pipeline(image_pipeline(vae, unet), folder / "images")
    publish_pipeline(student.pipeline, folder / "images-4-steps")
    save_classifier(train_classifier(work), folder / "classifier.safetensors")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.diffusion", description=__doc__)
    parser.add_argument(
        "--work", type=Path, required=True, help="where the stages keep their state"
    )
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--publish", type=Path, help="folder of the zoo package to write into")
    parser.add_argument(
        "--clips", type=Path, help="train a model of clips too, and write its pipeline there"
    )
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    options = parse_arguments(arguments)
    torch.set_num_threads(options.threads)
    run(options.work, options.stages, options.publish, options.clips)


if __name__ == "__main__":
    main()
