"""`forerun diffusion distill`."""

from __future__ import annotations

from typing import Any

from forerun.cli.config import config_option
from forerun.cli.derived import derived
from forerun.cli.diffusion_flags import answered, pipeline_options
from forerun.cli.flags import json_option
from forerun.cli.options import Command, Option
from forerun.cli.param_types import FileName
from forerun.diffusion.commands.distill import DistillRequest, run
from forerun.diffusion.commands.requests import PIPELINE, Conditions
from forerun.options import schema_of


def distill(**values: Any) -> int:
    return answered(run, DistillRequest, values)


_SCHEMA = schema_of(DistillRequest)
command = Command(
    "diffusion distill",
    params=[
        *derived(DistillRequest, "Distillation", {**schema_of(Conditions), "output": 0, "work": 0}),
        *pipeline_options(),
        *derived(Conditions, "Sampling", PIPELINE),
        Option(
            "output",
            "Other",
            type=FileName(),
            required=True,
            help=_SCHEMA["output"]["description"],
        ),
        Option("work", "Other", type=FileName(), help=_SCHEMA["work"]["description"]),
        json_option(),
        config_option(),
    ],
    callback=distill,
    help=(DistillRequest.__doc__ or "").partition("\n\nArgs:")[0],
    example="forerun diffusion distill --pipeline images --output few-steps",
)
