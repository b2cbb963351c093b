"""`forerun diffusion bench`: every method beside the full sampler, and the network on a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

import click

from forerun.cli.bars import bars, waiting
from forerun.cli.config import config_option
from forerun.cli.diffusion_flags import (
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
from forerun.cli.lists import Wholes, list_option
from forerun.cli.options import Command, Option
from forerun.cli.param_types import FileName
from forerun.cli.quiet import quiet_libraries
from forerun.cli.results import check_plot, give, plot_option, settings_in
from forerun.errors import ConfigError, ForerunError
from forerun.report.chart import Dots, Roof
from forerun.report.result import Result
from forerun.report.table import Cell, Mark, Table, long_table

if TYPE_CHECKING:
    from torch import Tensor

    from forerun.diffusion.classifier import Classifier
    from forerun.diffusion.measuring import Run, Setting

_INTERPOLATIONS: tuple[Literal["slerp", "linear"], ...] = ("slerp", "linear")
_STOCHASTIC = 1.0
"""The eta at which speculative sampling is measured where none is given."""


def bench(**values: Any) -> None:
    """Find out what each method costs and saves beside the full sampler.

    From the same noise, in turns: network passes, seconds, PSNR and, where the small classifier of digits
    fits, the share of right labels. Speculative sampling is measured beside the same stochastic sampler,
    at --eta, or 1. Then runs of the network over batch sizes, as a roofline.
    """
    check_plot(values["plot"])
    check_numbers(values)
    quiet_libraries()
    with waiting("starting"):
        import torch

        from forerun.diffusion.measuring import machine_limits, measure, runs_by_batch

        pipeline = open_named(values)
        job = job_of(pipeline, values)
        check_output("--sheet", values["sheet"], job.num_frames is not None)
        settings = _settings(values, clips=job.num_frames is not None)
        classifier = _classifier(pipeline)
    rows, notes = [], []
    pictures: dict[str, Tensor] = {}
    with bars():
        for setting in settings:
            try:
                found = measure(
                    pipeline, job, [setting], values["pairs"], classifier, pictures.setdefault
                )
                rows += [asdict(row) for row in found]
            except ForerunError as error:
                notes.append(f"without {setting.name}: {error}")
        runs: list[Run] = []
        try:
            runs = runs_by_batch(pipeline, values["batches"], job.num_frames)
        except ForerunError as error:
            notes.append(f"without the roofline: {error}")
        limits = machine_limits() if runs else None
    if not rows and not runs:
        raise ConfigError("; ".join(notes) or "there is nothing to measure; give --methods.")
    result = Result(
        mode="diffusion bench",
        settings=settings_in(values),
        rows=rows,
        tables=[*([_table(rows)] if rows else []), *([_batches(runs)] if runs else [])],
        charts=[_roof(type(pipeline).__name__, runs, *limits)] if limits else [],
        facts={"roofline": [{**asdict(run), "intensity": run.intensity} for run in runs]},
        notes=notes,
    )
    if values["sheet"] is not None:
        save_rows(list(pictures.values()), values["sheet"])
        click.echo(f"forerun: {values['sheet']} has the rows {', '.join(pictures)}", err=True)
    give(result, values, torch.device("cpu"))


def _settings(values: dict[str, Any], clips: bool) -> list[Setting]:
    """The usual settings of each method that is asked for and made for this kind of samples."""
    from forerun.diffusion.cfg_cache import CFGCacheConfig
    from forerun.diffusion.feature_cache import FeatureCacheConfig
    from forerun.diffusion.measuring import Setting
    from forerun.diffusion.video_latent_cache import VideoLatentCacheConfig

    eta, noisy = values["eta"], values["eta"] or _STOCHASTIC
    usual = {
        "cfg_cache": [
            *(
                Setting(f"every {k} steps", CFGCacheConfig(interval=k, extrapolate=True), eta)
                for k in (2, 4)
            ),
            *(
                Setting(f"drift {b:g}", CFGCacheConfig(drift_bound=b, extrapolate=True), eta)
                for b in (0.2, 0.3, 0.4)
            ),
        ],
        "feature_cache": [Setting(f"every {k} steps", FeatureCacheConfig(k), eta) for k in (2, 3)],
    }
    if clips:
        keys = (VideoLatentCacheConfig(key_interval=5, interpolation=i) for i in _INTERPOLATIONS)
        usual["key_frames"] = [
            *(Setting(f"every 5th, {key.interpolation}", key) for key in keys),
            Setting(
                "every 5th, 6 last steps of 4",
                VideoLatentCacheConfig(
                    key_interval=5, refine_steps=6, refine_stride=4, finish_key_frames=False
                ),
            ),
        ]
    else:
        steps = f"{values['num_draft_steps']} steps"
        usual["speculative"] = [Setting(steps, config_of("speculative", values), noisy)]
    asked = {method: usual.get(method, []) for method in values["methods"]}
    return [
        replace(setting, name=f"{method}, {setting.name}")
        for method, found in asked.items()
        for setting in found
    ]


def _classifier(pipeline: Any) -> Classifier | None:
    """The shipped classifier, where it is installed and takes what the pipeline makes."""
    from forerun.diffusion.classifier import load_classifier
    from forerun.diffusion.loading import CLASSIFIER, shipped

    vae = getattr(pipeline, "vae", None)
    if vae is None or vae.config.out_channels != 1 or vae.config.sample_size != 32:
        return None
    try:
        return load_classifier(shipped(CLASSIFIER))
    except ForerunError:
        return None


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    def name(row: Any) -> Cell:
        mark = Mark.NONE if row["exactness"] == "exact" else Mark.APPROXIMATE
        return Cell(row["setting"], mark)

    columns: dict[str, Any] = {
        "setting": name,
        "passes": lambda row: f"{row['calls']} of {row['full_calls']}",
        "evaluations": _evaluations,
        "seconds fewer by": lambda row: (
            f"{row['speedup']:.2f} ({row['least']:.2f}-{row['most']:.2f})"
        ),
        "PSNR in dB": lambda row: (
            "" if row["exactness"] == "exact" else f"{row['psnr']['value']:.1f}"
        ),
    }
    for field, title in (
        ("frechet", "Fréchet"),
        ("accuracy", "right labels"),
        ("consistency", "neighbours alike"),
    ):
        if rows and rows[0][field] is not None:
            columns[title] = lambda row, field=field: f"{row[field]['value']:.3f}"
    return long_table("Methods beside the full sampler, from the same noise", columns, rows)


def _evaluations(row: Any) -> str:
    fewer = row["full_evaluations"] / row["evaluations"]
    return f"{fewer:.2f} x fewer" if fewer >= 1 else f"{1 / fewer:.2f} x as many"


def _batches(runs: Sequence[Run]) -> Table:
    columns: dict[str, Any] = {
        "batch": lambda row: str(row["batch"]),
        "ms a run": lambda row: f"{1e3 * row['seconds']:.2f}",
        "ms a sample": lambda row: f"{1e3 * row['seconds'] / row['batch']:.2f}",
        "FLOP a byte": lambda row: f"{row['flops'] / row['bytes']:.1f}",
        "GFLOP/s": lambda row: f"{row['flops'] / row['seconds'] / 1e9:.1f}",
    }
    rows = [asdict(run) for run in runs]
    return long_table("Runs of the network by batch (bytes: its weights, read once)", columns, rows)


def _roof(name: str, runs: Sequence[Run], bandwidth: float, peak: float) -> Roof:
    dots = Dots(
        [run.intensity for run in runs],
        [run.flops / run.seconds for run in runs],
        [str(run.batch) for run in runs],
    )
    return Roof(
        title=f"{name}: runs of its network by batch",
        slopes={"memory": bandwidth},
        ceilings={"fp32": peak},
        ridge=(peak / bandwidth, peak),
        dots={"network": dots},
    )


_METHODS = ("cfg_cache", "feature_cache", "key_frames", "speculative")


def _names(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    for name in names:
        if name not in _METHODS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(_METHODS)}.")
    return names


_BENCHED = {"num_draft_steps", "draft"}
command = Command(
    "diffusion bench",
    params=[
        Option(
            "methods",
            "Methods",
            default=",".join(_METHODS),
            callback=_names,
            help="Those to measure, with commas between; what a pipeline cannot is left out.",
        ),
        *(option for option in method_options() if option.name in _BENCHED),
        *pipeline_options(),
        *sampling_options(),
        Option(
            "pairs",
            "Effort",
            type=click.IntRange(1, 1000),
            default=3,
            help="Timed runs of each, in turns.",
        ),
        list_option(
            "batches",
            "Effort",
            Wholes(1, 4096),
            "1,2,4,8,16,32",
            "Batch sizes of the roofline.",
        ),
        Option(
            "sheet",
            "Other",
            type=FileName(),
            help="Write the first ten samples of each there (.png, of clips .gif).",
        ),
        json_option(),
        plot_option(),
        config_option(),
    ],
    callback=bench,
    example="forerun diffusion bench --methods speculative --steps 128",
    assumed="all methods, with the small model of digits",
)
