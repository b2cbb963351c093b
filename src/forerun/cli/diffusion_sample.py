"""`forerun diffusion sample`."""

from __future__ import annotations

from typing import Any

from forerun.cli.config import config_option
from forerun.cli.derived import derived
from forerun.cli.diffusion_flags import answered, pipeline_options, sampling_options
from forerun.cli.flags import json_option
from forerun.cli.options import Command
from forerun.diffusion.commands.requests import Methods, Sampling
from forerun.diffusion.commands.sample import SampleRequest, run
from forerun.options import schema_of


def sample(**values: Any) -> int:
    return answered(run, SampleRequest, values)


command = Command(
    "diffusion sample",
    params=[
        *pipeline_options(),
        *sampling_options(),
        *derived(Methods, "Methods"),
        *derived(SampleRequest, "Other", {**schema_of(Methods), **schema_of(Sampling)}),
        json_option(),
        config_option(),
    ],
    callback=sample,
    help=(SampleRequest.__doc__ or "").partition("\n\nArgs:")[0],
    example="forerun diffusion sample --method speculative --output digits.png",
    assumed="ten digits of the small model that comes along",
)
