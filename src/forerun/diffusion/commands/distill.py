"""`forerun diffusion distill`: a student that does two steps in one, again and again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from forerun import diffusion
from forerun.diffusion.commands.requests import Conditions
from forerun.errors import ConfigError
from forerun.files import atomic_path
from forerun.options import FileName, option, options
from forerun.report.result import Result

_OF_EXAMPLES = (
    "pipeline",
    "conditions",
    "labels",
    "examples",
    "start_steps",
    "guidance_scale",
    "seed",
)


@options
class DistillRequest(Conditions):
    """Distill a pipeline to few steps: each student does two steps of its teacher in one. Approximate.

    The teacher makes the samples that students train on, so no data is needed; its labels, or
    conditions, are theirs. State is kept in the work folder: a run that was stopped goes on there, and ends
    with the same weights. The result is an ordinary pipeline directory.
    """

    start_steps: int = option(
        default=64, ge=2, le=4096, description="Steps of the teacher.", section="Distillation"
    )
    end_steps: int = Field(
        default=4, ge=1, le=2048, description="Steps of the student: halved again and again."
    )
    train_steps: int = Field(
        default=1000, ge=1, le=10**9, description="Steps of the optimizer in each halving."
    )
    batch_size: int = Field(default=64, ge=1, le=4096, description="Samples of a training step.")
    learning_rate: float = Field(default=5e-4, gt=0.0, le=1.0, description="Peak learning rate.")
    examples: int = Field(
        default=1024, ge=1, le=1_000_000, description="Samples of the teacher's own, to train on."
    )
    output: FileName = option(
        description="Folder for the student's pipeline.", section="Other", kw_only=True
    )
    work: FileName | None = Field(
        default=None, description="Folder for the state; that of the output and .work."
    )


def run(request: DistillRequest) -> Result:
    """Distill a pipeline, and write the student.

    Raises:
        ConfigError: for folders that cannot be written, and settings that do not fit the pipeline.
        TrainingError: for a loss that is not finite, or a state of another run.
    """
    output = Path(request.output)
    work = Path(request.work or f"{output}.work")
    for name, folder in (("output", output), ("work", work)):
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{name} {folder} is a file; name a folder.")
    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"output {output} is not empty; name another folder.")
    pipeline = request.open()
    config = diffusion.DistillationConfig(
        start_steps=request.start_steps,
        end_steps=request.end_steps,
        batch_size=request.batch_size,
        training=diffusion.AveragedTraining(request.train_steps, request.learning_rate),
    )
    examples = _examples(request, pipeline, work / "examples.safetensors")
    student = diffusion.distill(pipeline, examples, config, work)
    diffusion.step_distillation.save_student(student, output)
    content = {"steps": student.steps, "approximate": True, "output": str(output)}
    answer = f"a student of {student.steps} steps (approximate) in {output}"
    return Result(
        content={"mode": "diffusion distill", **content}, answers=[answer], device=pipeline.device
    )


def _examples(request: DistillRequest, pipeline: Any, path: Path) -> diffusion.Examples:
    """The teacher's samples with their conditions, made once and kept."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    wanted = json.dumps({name: getattr(request, name) for name in _OF_EXAMPLES})
    if path.exists():
        with safe_open(path, "pt") as file:
            made_for = (file.metadata() or {}).get("options")
        if made_for != wanted:
            raise ConfigError(f"{path} is of other options: {made_for}; give another work folder.")
        stored = load_file(path)
        return diffusion.Examples(
            stored["latents"], stored["prompt_embeds"], stored.get("negative")
        )
    job = request.job(pipeline, request.examples, request.start_steps, 0.0, None)
    embeds = job.prompt_embeds
    if embeds is None:
        width = getattr(
            diffusion.pipelines.denoiser_of(pipeline).config, "cross_attention_dim", None
        )
        if job.labels is None or not isinstance(width, int):
            raise ConfigError(f"{type(pipeline).__name__} takes no prompt embeddings.")
        embeds = diffusion.pipelines.label_embeds(job.labels, width)
    made = diffusion.step_distillation.sampled_examples(
        pipeline,
        embeds,
        steps=job.steps,
        guidance_scale=job.guidance_scale,
        seed=request.seed,
    )
    tensors = {"latents": made.latents, "prompt_embeds": made.prompt_embeds}
    negative = job.negative_prompt_embeds
    if negative is not None:
        negative = tensors["negative"] = negative[:1].contiguous()
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, {"options": wanted})
    return replace(made, negative_prompt_embeds=negative)
