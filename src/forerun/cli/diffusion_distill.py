"""`forerun diffusion distill`: a student that does two steps in one, again and again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from forerun.cli.bars import bars, waiting
from forerun.cli.config import config_option
from forerun.cli.derived import derived
from forerun.cli.diffusion_flags import (
    check_numbers,
    job_of,
    open_named,
    pipeline_options,
    sampling_options,
)
from forerun.cli.flags import json_option
from forerun.cli.options import Command, Option
from forerun.cli.param_types import FileName
from forerun.cli.quiet import quiet_libraries
from forerun.cli.results import give
from forerun.errors import ConfigError
from forerun.options import options, pick
from forerun.report.result import Result

if TYPE_CHECKING:
    from forerun.diffusion.step_distillation import Examples


@options
class Distillation:
    """How to distill."""

    start_steps: int = Field(default=64, ge=2, le=4096, description="Of the teacher.")
    end_steps: int = Field(
        default=4, ge=1, le=2048, description="Of the student: halved again and again."
    )
    train_steps: int = Field(
        default=1000, ge=1, le=10**9, description="Of the optimizer in each halving."
    )
    batch_size: int = Field(default=64, ge=1, le=4096, description="Of a training step.")
    learning_rate: float = Field(default=5e-4, gt=0.0, le=1.0, description="At its peak.")
    examples: int = Field(
        default=1024, ge=1, le=1_000_000, description="Samples of the teacher's own, to train on."
    )


def distill(**values: Any) -> None:
    """Distill a pipeline to few steps: each student does two steps of its teacher in one. Approximate.

    The teacher makes the samples that students train on, so no data is needed; its labels, or
    --conditions, are theirs. State is kept in --work: a run that was stopped goes on there, and ends with
    the same weights. The result is an ordinary pipeline directory.
    """
    asked, output = pick(Distillation, values), Path(values["output"])
    work = Path(values["work"] or f"{output}.work")
    for flag, folder in (("--output", output), ("--work", work)):
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{flag} {folder} is a file; name a folder.")
    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"--output {output} is not empty; name another folder.")
    check_numbers(values)
    quiet_libraries()
    with waiting("starting"):
        from forerun.diffusion.step_distillation import DistillationConfig, save_student
        from forerun.diffusion.step_distillation import distill as run
        from forerun.diffusion.training import TrainingSettings

        pipeline = open_named(values)
    config = DistillationConfig(
        start_steps=asked.start_steps,
        end_steps=asked.end_steps,
        batch_size=asked.batch_size,
        training=TrainingSettings(steps=asked.train_steps, learning_rate=asked.learning_rate),
    )
    with bars():
        examples = _examples(pipeline, values, work / "examples.safetensors")
        student = run(pipeline, examples, config, work)
    save_student(student, output)
    content = {"steps": student.steps, "approximate": True, "output": str(output)}
    said = f"a student of {student.steps} steps (approximate) in {output}"
    result = Result(content={"mode": "diffusion distill", **content}, answers=[said])
    give(result, values, pipeline.device)


def _examples(pipeline: Any, values: dict[str, Any], path: Path) -> Examples:
    """The teacher's samples with their conditions, made once and kept."""
    import json

    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    from forerun.diffusion.pipelines import denoiser_of, label_embeds
    from forerun.diffusion.step_distillation import Examples, sampled_examples
    from forerun.files import atomic_path

    asked = json.dumps({name: values[name] for name in _OF_EXAMPLES})
    if path.exists():
        with safe_open(path, "pt") as file:
            made_for = (file.metadata() or {}).get("options")
        if made_for != asked:
            raise ConfigError(f"{path} is of other options: {made_for}; give another --work.")
        kept = load_file(path)
        return Examples(kept["latents"], kept["prompt_embeds"], kept.get("negative"))
    job = job_of(pipeline, {**values, "count": values["examples"], "steps": values["start_steps"]})
    embeds = job.prompt_embeds
    if embeds is None:
        width = getattr(denoiser_of(pipeline).config, "cross_attention_dim", None)
        if job.labels is None or not isinstance(width, int):
            raise ConfigError(f"{type(pipeline).__name__} takes no prompt embeddings.")
        embeds = label_embeds(job.labels, width)
    made = sampled_examples(
        pipeline, embeds, steps=job.steps, guidance_scale=job.guidance_scale, seed=values["seed"]
    )
    tensors = {"latents": made.latents, "prompt_embeds": made.prompt_embeds}
    negative = job.negative_prompt_embeds
    if negative is not None:
        negative = tensors["negative"] = negative[:1].contiguous()
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, {"options": asked})
    return replace(made, negative_prompt_embeds=negative)


_OF_EXAMPLES = (
    "pipeline",
    "conditions",
    "labels",
    "examples",
    "start_steps",
    "guidance_scale",
    "seed",
)
_LEFT_OUT = ("count", "steps", "eta", "scheduler", "frames")
command = Command(
    "diffusion distill",
    params=[
        *derived(Distillation, "Distillation"),
        *pipeline_options(),
        *(option for option in sampling_options() if option.name not in _LEFT_OUT),
        Option(
            "output",
            "Other",
            type=FileName(),
            required=True,
            help="A folder for the student's pipeline.",
        ),
        Option(
            "work",
            "Other",
            type=FileName(),
            help="A folder for the state; that of the output and .work.",
        ),
        json_option(),
        config_option(),
    ],
    callback=distill,
    example="forerun diffusion distill --pipeline images --output few-steps",
)
