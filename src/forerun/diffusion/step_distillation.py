"""Progressive distillation: a student learns to take two steps of its teacher in one. Approximate.

Salimans & Ho, arXiv 2202.00512: each halving starts from the teacher's weights, and trains until one DDIM
step of the student lands where two of the teacher's do. The student is then the next teacher. Guidance is
distilled in the first halving (Meng et al., arXiv 2210.03142): the student gets the guidance scale besides
the timestep, and needs one run of the network per step instead of two. The result is an ordinary
StableDiffusionPipeline, in which `guidance_scale` has the same meaning as before.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from forerun.diffusion.ddim import Schedule
from forerun.diffusion.loading import save_pipeline
from forerun.diffusion.pipelines import draw_noise, kind_of, sample
from forerun.diffusion.training import AveragedTrainer, AveragedTraining
from forerun.errors import ConfigError, TrainingError, UnsupportedModelError
from forerun.progress import report

GUIDANCE_WIDTH = 32
"""Width of the embedding that gives the guidance scale to the student."""


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
        steps = self.start_steps
        while steps > self.end_steps and steps % 2 == 0:
            steps //= 2
        if steps != self.end_steps or self.start_steps == self.end_steps:
            raise ConfigError(
                f"start_steps must be end_steps times 2, 4, 8, …; got {self.start_steps} and "
                f"{self.end_steps}."
            )
        low, high = self.guidance
        if not 1.0 <= low <= high:
            raise ConfigError(f"guidance must be two scales in order, from 1, got {self.guidance}.")

    def halvings(self) -> list[int]:
        """Number of the student's steps in each halving."""
        steps, found = self.start_steps, []
        while steps > self.end_steps:
            steps //= 2
            found.append(steps)
        return found


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
        found = sample(
            pipeline,
            noise,
            steps=steps,
            prompt_embeds=embeds,
            guidance_scale=guidance_scale,
            latent=True,
        ).latents
        assert found is not None
        made.append(found)
        report("sampling examples", first + len(embeds), len(prompt_embeds))
    return Examples(torch.cat(made), prompt_embeds)


@dataclass(frozen=True)
class Student:
    """A pipeline distilled to `steps` steps, whose samples differ from the teacher's."""

    steps: int
    pipeline: Any
    approximate: bool = True


def distill(
    pipeline: Any,
    examples: Examples,
    config: DistillationConfig,
    work: Path,
    *,
    student: nn.Module | None = None,
    after: Callable[[Student], None] | None = None,
) -> Student:
    """Distill a pipeline to few steps.

    Args:
        pipeline: teacher, a StableDiffusionPipeline with a DDIM scheduler.
        examples: examples to train on.
        config: settings of the distillation.
        work: folder with the state of each halving. A call with the same arguments resumes from it and ends
            with the same weights.
        student: initial student, in place of a copy of the teacher; it must take a guidance scale.
        after: called with the student after each halving.

    Raises:
        UnsupportedModelError: for a pipeline that cannot be distilled.
        ConfigError: for a number of steps that does not match the scheduler, or a student of another shape.
        TrainingError: for a loss that is not finite, or a state of another run.
    """
    _check_teacher(pipeline)
    schedule = Schedule.of(pipeline.scheduler)
    for steps in (config.start_steps, *config.halvings()):
        schedule.check_steps(steps)
    _check_examples(pipeline.unet, examples)
    if student is not None:
        _check_student(pipeline.unet, student)
    teacher: Any = pipeline.unet.eval().requires_grad_(False)
    result = pipeline
    for number, steps in enumerate(config.halvings()):
        model = guided_copy(teacher) if student is None or number else student
        model.requires_grad_(True)
        guidance = teacher.config.get("time_cond_proj_dim") is None
        stage = Halving(pipeline, teacher, examples, schedule, steps, config, guided_twice=guidance)
        last = steps == config.end_steps
        settings = replace(
            config.training,
            steps=config.training.steps * (config.final_factor if last else 1),
            seed=config.training.seed + number,
        )
        AveragedTrainer(
            model,
            stage.loss,
            settings,
            work / f"to-{steps}.pt",
            what=f"distilling to {steps} steps",
        ).run()
        teacher = model.requires_grad_(False)
        result = with_denoiser(pipeline, model)
        if after is not None:
            after(Student(steps, result))
    return Student(config.end_steps, result)


class Halving:
    """One halving: the teacher's result after two steps, and the student's loss against it."""

    def __init__(
        self,
        pipeline: Any,
        teacher: Any,
        examples: Examples,
        schedule: Schedule,
        steps: int,
        config: DistillationConfig,
        *,
        guided_twice: bool,
    ) -> None:
        self.pipeline, self.teacher, self.examples = pipeline, teacher, examples
        self.schedule, self.steps, self.config = schedule, steps, config
        self.guided_twice = guided_twice

    def loss(self, student: Any, generator: Generator) -> Tensor:
        """Squared error of the student's prediction, with the paper's truncated weights."""
        count = self.config.batch_size
        latents, embeds = self.examples.draw(count, generator)
        starts = self.schedule.timesteps(self.steps)
        times = starts[torch.randint(len(starts), (count,), generator=generator)]
        noise = torch.randn(latents.shape, generator=generator)
        low, high = self.config.guidance
        scales = low + (high - low) * torch.rand(count, generator=generator)
        noisy = self.schedule.noisy(latents, noise, times)
        target = self.target(noisy, times, embeds, scales)
        predicted = student(
            noisy, times, encoder_hidden_states=embeds, timestep_cond=self.told(student, scales)
        ).sample
        weights = self.schedule.weights(times)
        errors: Tensor = weights.view(-1, 1, 1, 1) * (predicted - target).square()
        return errors.mean()

    @torch.no_grad()
    def target(self, noisy: Tensor, times: Tensor, embeds: Tensor, scales: Tensor) -> Tensor:
        """The prediction with which one step lands where two of the teacher's do, `[B, C, H, W]`."""
        stride = self.schedule.stride(self.steps)
        middle, end = times - stride // 2, times - stride
        half = self.schedule.step(noisy, self.predict(noisy, times, embeds, scales), times, middle)
        landed = self.schedule.step(half, self.predict(half, middle, embeds, scales), middle, end)
        return self.schedule.prediction_to_land(noisy, landed, times, end)

    def predict(self, noisy: Tensor, times: Tensor, embeds: Tensor, scales: Tensor) -> Tensor:
        """The teacher's guided prediction."""
        teacher = self.teacher
        if not self.guided_twice:
            told = self.told(teacher, scales)
            found: Tensor = teacher(
                noisy, times, encoder_hidden_states=embeds, timestep_cond=told
            ).sample
            return found
        both = torch.cat((self.examples.negative(len(noisy)), embeds))
        unconditional, conditional = teacher(
            torch.cat((noisy, noisy)), torch.cat((times, times)), encoder_hidden_states=both
        ).sample.chunk(2)
        guided: Tensor = unconditional + scales.view(-1, 1, 1, 1) * (conditional - unconditional)
        return guided

    def told(self, model: Any, scales: Tensor) -> Tensor:
        """Embedding of guidance scales, as made by the pipeline itself."""
        width = model.config.time_cond_proj_dim
        embedding: Tensor = self.pipeline.get_guidance_scale_embedding(
            scales - 1.0, embedding_dim=width
        )
        return embedding


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
    parts = {**pipeline.components, "unet": unet}
    kept = {name: pipeline.config[name] for name in ("requires_safety_checker",)}
    made = type(pipeline)(**parts, **kept)
    made.set_progress_bar_config(disable=True)
    return made


def save_student(student: Student, directory: Path) -> None:
    """Write a student as a pipeline directory, completely or not at all.

    Raises:
        TrainingError: if the directory exists already.
    """
    if directory.exists():
        raise TrainingError(f"{directory} exists already; remove it or name another.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
    try:
        save_pipeline(student.pipeline, temporary)
        temporary.chmod(0o755)
        os.replace(temporary, directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _check_teacher(pipeline: Any) -> None:
    kind = kind_of(pipeline)
    unet = type(pipeline.unet).__name__ if kind.denoiser == "unet" else "a transformer"
    able = hasattr(pipeline, "get_guidance_scale_embedding") and unet == "UNet2DConditionModel"
    if not able or kind.conditioning != "prompt" or kind.video:
        raise UnsupportedModelError(
            f"{kind.name} with {unet} cannot be distilled; a StableDiffusionPipeline can."
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


def _check_student(teacher: Any, student: Any) -> None:
    """Refuse a student that does not take the teacher's latents, prompts or guidance."""
    names = ("in_channels", "out_channels", "sample_size", "cross_attention_dim")
    for name in names:
        mine, other = student.config.get(name), teacher.config.get(name)
        if mine != other:
            raise ConfigError(
                f"the student's {name} is {mine}, the teacher's {other}; use the same."
            )
    if student.config.get("time_cond_proj_dim") is None:
        raise ConfigError(
            f"the student takes no guidance scale; set its time_cond_proj_dim, such as {GUIDANCE_WIDTH}."
        )
