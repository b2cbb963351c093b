"""`forerun diffusion bench`."""

from __future__ import annotations

from typing import Any

import click

from forerun.cli.config import config_option
from forerun.cli.derived import derived
from forerun.cli.diffusion_flags import answered, pipeline_options, sampling_options
from forerun.cli.flags import json_option
from forerun.cli.lists import Wholes, list_option
from forerun.cli.options import Command, Option
from forerun.cli.results import check_plot, plot_option
from forerun.diffusion.commands.bench import DiffusionBenchRequest, run
from forerun.diffusion.commands.requests import OWN, Sampling
from forerun.options import schema_of


def bench(**values: Any) -> int:
    check_plot(values["plot"])
    return answered(run, DiffusionBenchRequest, values)


def _names(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    for name in names:
        if name not in OWN:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(OWN)}.")
    return names


_SCHEMA = schema_of(DiffusionBenchRequest)
_SHARED = schema_of(Sampling)
command = Command(
    "diffusion bench",
    params=[
        Option(
            "methods",
            "Methods",
            default=",".join(OWN),
            callback=_names,
            help=_SCHEMA["methods"]["description"],
        ),
        *pipeline_options(),
        *sampling_options(),
        *derived(DiffusionBenchRequest, "Other", {*_SHARED, "methods", "batches"}),
        list_option(
            "batches",
            "Other",
            Wholes(1, 4096),
            "1,2,4,8,16,32",
            _SCHEMA["batches"]["description"],
        ),
        json_option(),
        plot_option(),
        config_option(),
    ],
    callback=bench,
    help=(DiffusionBenchRequest.__doc__ or "").partition("\n\nArgs:")[0],
    example="forerun diffusion bench --methods speculative --steps 128",
    assumed="all methods, with the small model of digits",
)
