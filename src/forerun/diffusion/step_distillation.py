"""Progressive distillation: a student learns to take two steps of its teacher in one. Approximate.

Salimans & Ho, arXiv 2202.00512: each halving starts from the teacher's weights, and trains until one DDIM
step of the student lands where two of the teacher's do. The student is then the next teacher. Guidance is
distilled in the first halving (Meng et al., arXiv 2210.03142): the student gets the guidance scale besides
the timestep, and needs one run of the network per step instead of two. The result is an ordinary
StableDiffusionPipeline, in which `guidance_scale` has the same meaning as before.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from forerun.diffusion.loading import save_pipeline
from forerun.diffusion.pipelines import draw_noise, kind_of, sample
from forerun.diffusion.training import AveragedTrainer, AveragedTraining
from forerun.diffusion.transitions import Transitions
from forerun.errors import ConfigError, TrainingError, UnsupportedModelError
from forerun.progress import report

GUIDANCE_WIDTH = 32
"""Width of the embedding that gives the guidance scale to the student."""
# Upper bound of weights: where all is noise, a prediction of the noise says almost nothing.
_MOST_WEIGHT = 100.0


@dataclass(frozen=True)
class DistillationConfig:
    """Settings of a distillation.

    Args:
        start_steps: steps of the teacher in the first halving.
        end_steps: steps of the last student; `start_steps` is this times a power of two.
        guidance: range of guidance scales that the student learns.
        batch_size: samples of a training step.
        training: training settings of each halving.
        final_factor: factor by which the last halving, the hardest, trains longer.

    Raises:
        ConfigError: for values out of range.
    """

    start_steps: int = 64
    end_steps: int = 4
    guidance: tuple[float, float] = (1.0, 4.0)
    batch_size: int = 64
    training: AveragedTraining = field(
        default_factory=lambda: AveragedTraining(steps=1000, learning_rate=5e-4, ema_decay=0.995)
    )
    final_factor: int = 2

    def __post_init__(self) -> None:
        if self.end_steps < 1 or self.batch_size < 1 or self.final_factor < 1:
            raise ConfigError("end_steps, batch_size and final_factor must be at least 1.")
        halvings = len(self.halvings())
        if not halvings or self.start_steps != self.end_steps * 2**halvings:
            raise ConfigError(
                f"start_steps must be end_steps times 2, 4, 8, …; got {self.start_steps} and "
                f"{self.end_steps}."
            )
        low, high = self.guidance
        if not 1.0 <= low <= high:
            raise ConfigError(f"guidance must be two scales in order, from 1, got {self.guidance}.")

    def halvings(self) -> list[int]:
        """Number of the student's steps in each halving."""
        steps, halvings = self.start_steps, []
        while steps > self.end_steps:
            steps //= 2
            halvings.append(steps)
        return halvings


@dataclass(frozen=True)
class Examples:
    """Training examples: latents with their prompts.

    Args:
        latents: latents scaled as the denoiser sees them, `[N, C, H, W]`.
        prompt_embeds: prompt embeddings, `[N, tokens, width]`.
        negative_prompt_embeds: embeddings of an empty prompt, `[1, tokens, width]`; zeros if not given.
    """

    latents: Tensor
    prompt_embeds: Tensor
    negative_prompt_embeds: Tensor | None = None

    def draw(self, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
        index = torch.randint(len(self.latents), (count,), generator=generator)
        return self.latents[index], self.prompt_embeds[index]

    def negative(self, count: int) -> Tensor:
        """Embeddings of `count` empty prompts."""
        if self.negative_prompt_embeds is None:
            return torch.zeros(count, *self.prompt_embeds.shape[1:])
        return self.negative_prompt_embeds.expand(count, -1, -1)


def sampled_examples(
    pipeline: Any,
    prompt_embeds: Tensor,
    *,
    steps: int = 64,
    guidance_scale: float = 1.0,
    seed: int = 0,
    batch_size: int = 64,
) -> Examples:
    """Sample examples from the teacher, for a pipeline without available training data.

    Args:
        pipeline: teacher.
        prompt_embeds: prompt embeddings of each example, `[N, tokens, width]`.
        steps: number of steps of the scheduler.
        guidance_scale: guidance scale; 1 makes the most diverse examples.
        seed: seed of the first example's noise; each example has its own.
        batch_size: number of examples sampled at once.

    Raises:
        UnsupportedModelError: for a pipeline that cannot be distilled.
    """
    _check_teacher(pipeline)
    kind, made = kind_of(pipeline), []
    for first in range(0, len(prompt_embeds), batch_size):
        embeds = prompt_embeds[first : first + batch_size]
        noise = draw_noise(kind, range(seed + first, seed + first + len(embeds)))
        made.append(
            sample(
                pipeline,
                noise,
                steps=steps,
                prompt_embeds=embeds,
                guidance_scale=guidance_scale,
                latent=True,
            )
        )
        report("sampling examples", first + len(embeds), len(prompt_embeds))
    return Examples(torch.cat(made), prompt_embeds)


@dataclass(frozen=True)
class Student:
    """A pipeline distilled to `steps` steps, whose samples differ from the teacher's."""

    steps: int
    pipeline: Any


def distill(
    pipeline: Any,
    examples: Examples,
    config: DistillationConfig,
    work: Path,
    *,
    after: Callable[[Student], None] = lambda _: None,
) -> Student:
    """Distill a pipeline to few steps.

    Args:
        pipeline: teacher, a StableDiffusionPipeline with a DDIM scheduler.
        examples: examples to train on.
        config: settings of the distillation.
        work: folder with the state of each halving. A call with the same arguments resumes from it and ends
            with the same weights.
        after: called with the student after each halving.

    Raises:
        UnsupportedModelError: for a pipeline that cannot be distilled.
        ConfigError: for a number of steps that does not match the scheduler, or examples of another shape.
        TrainingError: for a loss that is not finite, or a state of another run.
    """
    _check_teacher(pipeline)
    _check_scheduler(pipeline.scheduler, config)
    _check_examples(pipeline.unet, examples)
    student, training = Student(config.start_steps, pipeline), config.training
    for number, steps in enumerate(config.halvings()):
        teacher = student.pipeline.unet.eval().requires_grad_(False)
        model = guided_copy(teacher).requires_grad_(True)
        longer = config.final_factor if steps == config.end_steps else 1
        AveragedTrainer(
            model,
            Halving(student.pipeline, examples, steps, config).loss,
            replace(training, steps=training.steps * longer, seed=training.seed + number),
            work / f"to-{steps}.pt",
            what=f"distilling to {steps} steps",
        ).run()
        student = Student(steps, with_denoiser(pipeline, model.requires_grad_(False)))
        after(student)
    return student


class Halving:
    """One halving: the teacher's result after two steps, and the student's loss against it.

    Args:
        pipeline: teacher.
        examples: examples to train on.
        steps: number of the student's steps.
        config: settings of the distillation.
    """

    def __init__(
        self, pipeline: Any, examples: Examples, steps: int, config: DistillationConfig
    ) -> None:
        self.pipeline, self.teacher, self.examples = pipeline, pipeline.unet, examples
        self.config, scheduler = config, pipeline.scheduler
        self.own = Transitions.deterministic(scheduler, steps)
        self.teachers = Transitions.deterministic(scheduler, 2 * steps)
        alphas = scheduler.alphas_cumprod[self.own.timesteps].double()
        # The weighted error is the squared error of the clean sample times max(signal-to-noise ratio, 1).
        weights = self.own.clean_from_output.square() * (alphas / (1 - alphas)).clamp(min=1.0)
        self.weights = weights.clamp(max=_MOST_WEIGHT).float()

    def loss(self, student: Any, generator: Generator) -> Tensor:
        """Squared error of the student's prediction, with the paper's truncated weights."""
        count = self.config.batch_size
        latents, embeds = self.examples.draw(count, generator)
        steps = torch.randint(len(self.own), (count,), generator=generator)
        times = self.own.timesteps[steps]
        noise = torch.randn(latents.shape, generator=generator)
        low, high = self.config.guidance
        scales = low + (high - low) * torch.rand(count, generator=generator)
        noisy = self.pipeline.scheduler.add_noise(latents, noise, times)
        target = self.target(noisy, steps, embeds, scales)
        predicted = self._with_guidance(student, noisy, times, embeds, scales)
        errors: Tensor = self.weights[steps].view(-1, 1, 1, 1) * (predicted - target).square()
        return errors.mean()

    @torch.no_grad()
    def target(self, noisy: Tensor, steps: Tensor, embeds: Tensor, scales: Tensor) -> Tensor:
        """The prediction with which one step lands where two of the teacher's do, `[B, C, H, W]`."""
        samples = noisy
        for at in (2 * steps, 2 * steps + 1):
            predicted = self._teach(samples, self.teachers.timesteps[at], embeds, scales)
            samples = self.teachers.mean(at, samples, predicted)
        return self.own.output_to(steps, noisy, samples)

    def _teach(self, noisy: Tensor, times: Tensor, embeds: Tensor, scales: Tensor) -> Tensor:
        """The teacher's guided prediction."""
        if self.teacher.config.get("time_cond_proj_dim") is not None:
            return self._with_guidance(self.teacher, noisy, times, embeds, scales)
        both = torch.cat((self.examples.negative(len(noisy)), embeds))
        unconditional, conditional = self.teacher(
            torch.cat((noisy, noisy)), torch.cat((times, times)), encoder_hidden_states=both
        ).sample.chunk(2)
        guided: Tensor = unconditional + scales.view(-1, 1, 1, 1) * (conditional - unconditional)
        return guided

    def _with_guidance(
        self, model: Any, noisy: Tensor, times: Tensor, embeds: Tensor, scales: Tensor
    ) -> Tensor:
        """Prediction of a model that takes guidance scales, embedded as the pipeline itself does."""
        scale = self.pipeline.get_guidance_scale_embedding(
            scales - 1.0, embedding_dim=model.config.time_cond_proj_dim
        )
        predicted: Tensor = model(
            noisy, times, encoder_hidden_states=embeds, timestep_cond=scale
        ).sample
        return predicted


def guided_copy(unet: Any) -> Any:
    """A copy of a UNet with the guidance scale as an input, which at first has no effect."""
    if unet.config.get("time_cond_proj_dim") is not None:
        return copy.deepcopy(unet)
    # Private entries of the config would reset values that were left at their default.
    config = {key: value for key, value in unet.config.items() if not key.startswith("_")}
    twin = type(unet).from_config({**config, "time_cond_proj_dim": GUIDANCE_WIDTH})
    twin.load_state_dict(unet.state_dict(), strict=False)
    nn.init.zeros_(twin.time_embedding.cond_proj.weight)
    return twin


def with_denoiser(pipeline: Any, unet: Any) -> Any:
    """A pipeline with another UNet in place of its own."""
    made = copy.copy(pipeline)
    made.register_modules(unet=unet)
    return made


def save_student(student: Student, directory: Path) -> None:
    """Write a student as a pipeline directory, completely or not at all.

    Raises:
        TrainingError: if the directory exists already and is not empty.
    """
    if directory.exists() and any(directory.iterdir()):
        raise TrainingError(f"{directory} exists already; remove it or name another.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}.") as folder:
        made = Path(folder) / directory.name
        save_pipeline(student.pipeline, made)
        made.replace(directory)


def _check_teacher(pipeline: Any) -> None:
    kind = kind_of(pipeline)
    unet = type(pipeline.unet).__name__ if kind.denoiser == "unet" else "a transformer"
    able = hasattr(pipeline, "get_guidance_scale_embedding") and unet == "UNet2DConditionModel"
    if not able or kind.conditioning != "prompt" or kind.video:
        raise UnsupportedModelError(
            f"{kind.name} with {unet} cannot be distilled; a StableDiffusionPipeline can."
        )


def _check_scheduler(scheduler: Any, config: DistillationConfig) -> None:
    """Refuse a scheduler whose steps are not linear, or not among those of half as many."""
    name, own = type(scheduler).__name__, scheduler.config
    if name != "DDIMScheduler":
        raise ConfigError(f"the scheduler must be DDIMScheduler, got {name}.")
    if own.timestep_spacing not in ("trailing", "leading"):
        raise ConfigError(
            "the timesteps of half as many steps must be among those of all; set timestep_spacing to "
            f"trailing or leading, not {own.timestep_spacing!r}."
        )
    if own.clip_sample or own.thresholding:
        raise ConfigError(
            "a scheduler that clips its samples is not linear; set clip_sample=False."
        )
    total = own.num_train_timesteps
    if total % config.start_steps:
        known = ", ".join(str(count) for count in range(1, total + 1) if total % count == 0)
        raise ConfigError(
            f"{config.start_steps} steps do not divide the scheduler's {total} timesteps; use {known}."
        )


def _check_examples(unet: Any, examples: Examples) -> None:
    config = unet.config
    if len(examples.latents) != len(examples.prompt_embeds) or not len(examples.latents):
        raise ConfigError("there must be as many prompt embeddings as latents, and at least one.")
    channels, width = examples.latents.shape[1], examples.prompt_embeds.shape[-1]
    if (channels, width) != (config.in_channels, config.cross_attention_dim):
        raise ConfigError(
            f"examples have {channels} channels and embeddings of width {width}; the teacher takes "
            f"{config.in_channels} and {config.cross_attention_dim}."
        )
