"""`forerun diffusion prove`."""

from __future__ import annotations

from typing import Any

from forerun.cli.config import config_option
from forerun.cli.derived import derived
from forerun.cli.diffusion_flags import answered, pipeline_options
from forerun.cli.flags import json_option
from forerun.cli.options import Command
from forerun.diffusion.commands.prove import DiffusionProofRequest, run
from forerun.diffusion.commands.requests import PIPELINE, Sampler
from forerun.options import schema_of


def prove(**values: Any) -> int:
    return answered(run, DiffusionProofRequest, values)


command = Command(
    "diffusion prove",
    params=[
        *derived(DiffusionProofRequest, "Effort", schema_of(Sampler)),
        *pipeline_options(DiffusionProofRequest),
        *derived(Sampler, "Sampling", PIPELINE),
        json_option(),
        config_option(),
    ],
    callback=prove,
    help=(DiffusionProofRequest.__doc__ or "").partition("\n\nArgs:")[0],
    example="forerun diffusion prove --steps 50",
    assumed="targets in closed form",
)
