"""`forerun diffusion sample`: images as a contact sheet, clips as a GIF."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.bars import bars, waiting
from forerun.cli.config import config_option
from forerun.cli.diffusion_flags import (
    ACROSS,
    check_methods_own,
    check_numbers,
    check_output,
    config_of,
    job_of,
    method_options,
    open_named,
    pipeline_options,
    sampling_options,
    save_rows,
)
from forerun.cli.flags import json_option
from forerun.cli.options import Command, Option
from forerun.cli.param_types import FileName
from forerun.cli.quiet import quiet_libraries
from forerun.cli.results import give, settings_in
from forerun.report.result import Result

if TYPE_CHECKING:
    from torch import Tensor

    from forerun.diffusion.methods import Made

METHODS = ("none", "cfg_cache", "feature_cache", "key_frames", "speculative")


def sample(**values: Any) -> None:
    """Make images or clips, with fewer network passes if you like.

    Methods are cfg_cache, feature_cache and key_frames (of clips), which change the samples, and speculative,
    which is exact: its samples have the law of the stochastic sampler, so give an --eta above 0 or
    another --scheduler.
    """
    output = values["output"]
    check_numbers(values)
    check_methods_own(click.get_current_context(), values["method"])
    quiet_libraries()
    with waiting("starting"):
        pipeline = open_named(values)
        job, config = job_of(pipeline, values), config_of(values["method"], values)
        check_output("--output", output, job.num_frames is not None)
        from forerun.diffusion.methods import make
    with bars():
        made = make(pipeline, job, config)
        full = make(pipeline, job) if values["compare"] else None
    _say(values, made, full)
    if output is not None:
        save_rows(_in_rows(made.images), output)
        click.echo(f"forerun: written to {output}", err=True)


def _in_rows(images: Tensor) -> list[Tensor]:
    """As many in a row as fit; the last row is filled up with grey."""
    import torch

    columns = min(ACROSS, len(images))
    missing = -len(images) % columns
    filled = torch.cat((images, torch.full((missing, *images.shape[1:]), 0.35)))
    return [filled[first : first + columns] for first in range(0, len(filled), columns)]


def _say(values: dict[str, Any], made: Made, full: Made | None) -> None:
    from forerun.diffusion.quality import psnr

    exactness = "exact" if made.exact else "approximate"
    content: dict[str, Any] = {
        "method": values["method"],
        "exactness": exactness,
        "calls": made.evaluations.calls,
        "evaluations": made.evaluations.samples,
        "seconds": made.seconds,
        **made.facts,
    }
    if full is not None:
        content["full"] = {
            "calls": full.evaluations.calls,
            "evaluations": full.evaluations.samples,
            "seconds": full.seconds,
        }
        content["psnr"] = asdict(psnr(made.images, full.images))
    said = [
        f"{len(made.images)} samples ({exactness}): {made.evaluations.calls} passes of the network, "
        f"{made.evaluations.samples} samples in them, {made.seconds:.2f} s"
    ]
    if full is not None:
        said.append(
            f"the sampler as it is: {full.evaluations.calls} passes, {full.evaluations.samples} samples, "
            f"{full.seconds:.2f} s; PSNR of these against its own {content['psnr']['value']:.1f} dB"
        )
    notes = [] if made.exact else ["approximate: changes the samples"]
    content = {"mode": "diffusion sample", "settings": settings_in(values), **content}
    give(Result(content=content, answers=said, notes=notes), values, made.images.device)


command = Command(
    "diffusion sample",
    params=[
        Option(
            "method",
            "Methods",
            type=click.Choice(METHODS),
            default="none",
            help="How to take fewer passes.",
        ),
        *pipeline_options(),
        *sampling_options(),
        *method_options(),
        Option(
            "compare",
            "Other",
            is_flag=True,
            help="Run the sampler as it is too, from the same noise.",
        ),
        Option(
            "output",
            "Other",
            type=FileName(),
            help="A contact sheet (.png), or of clips a .gif, to write.",
        ),
        json_option(),
        config_option(),
    ],
    callback=sample,
    example="forerun diffusion sample --method speculative --eta 1 --output digits.png",
    assumed="ten digits of the small model that comes along",
)
