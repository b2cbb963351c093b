"""`forerun diffusion bench`: every method beside the full sampler, and the network on a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from forerun import diffusion
from forerun.diffusion.commands.requests import Sampling, speculative_part
from forerun.diffusion.commands.sample import picture_path, save_rows
from forerun.diffusion.settings import SpeculativeSamplingConfig
from forerun.errors import ConfigError, ForerunError
from forerun.options import FileName, option, options
from forerun.progress import report, say
from forerun.report.chart import Dots, Roof
from forerun.report.result import Result
from forerun.report.table import Cell, Mark, Row, Table, long_table

if TYPE_CHECKING:
    from torch import Tensor


STOCHASTIC = 1.0
"""Eta at which speculative sampling is measured unless one is given."""


@options
class DiffusionBenchRequest(Sampling):
    """Find out what each method costs and saves beside the full sampler.

    From the same noise, in turns: network passes, seconds and PSNR. Speculative sampling is measured beside
    the same stochastic sampler, with the given eta or 1. Then runs of the network over batch sizes, as a
    roofline.
    """

    methods: tuple[
        Literal["none", "cfg_cache", "feature_cache", "key_frames", "speculative"], ...
    ] = option(
        section="Methods",
        default=("cfg_cache", "feature_cache", "key_frames", "speculative"),
        description="Methods to measure; what a pipeline cannot is left out. none: the roofline alone.",
    )
    speculative: SpeculativeSamplingConfig = speculative_part()
    pairs: int = option(
        default=3, ge=1, le=1000, description="Timed runs of each, in turns.", section="Effort"
    )
    batches: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field(
        default=(1, 2, 4, 8, 16, 32), description="Batch sizes of the roofline."
    )
    sheet: FileName | None = option(
        section="Other",
        default=None,
        description="Write the first ten samples of each there (.png, of clips .gif).",
    )


def run(request: DiffusionBenchRequest) -> Result:
    """Measure the methods, and runs of the network.

    Raises:
        ConfigError: if nothing can be measured; says why.
        ForerunError: for a pipeline or conditions that do not fit.
    """
    import torch

    pipeline = request.open()
    job = request.samples(pipeline)
    clips = job.num_frames is not None
    sheet = None if request.sheet is None else picture_path("sheet", request.sheet, clips=clips)
    pictures: dict[str, Tensor] = {}
    rows, notes = _measure(request, pipeline, pictures)
    runs: list[Row] = []
    try:
        runs = diffusion.methods.runs_by_batch(pipeline, request.batches, job.num_frames)
    except ForerunError as error:
        notes.append(f"without the roofline: {error}")
    if not rows and not runs:
        raise ConfigError("; ".join(notes) or "there is nothing to measure; give methods.")
    if sheet is not None:
        save_rows(list(pictures.values()), sheet)
        notes.append(f"{sheet} has the rows {', '.join(pictures)}")
    return Result(
        mode="diffusion bench",
        rows=rows,
        tables=[*([_table(rows)] if rows else []), *([_batches(runs)] if runs else [])],
        charts=[_roof(type(pipeline).__name__, runs, *diffusion.methods.machine_limits())]
        if runs
        else [],
        facts={"roofline": runs},
        notes=notes,
        device=torch.device("cpu"),
    )


def _measure(
    request: DiffusionBenchRequest, pipeline: Any, pictures: dict[str, Tensor]
) -> tuple[list[Row], list[str]]:
    """Rows of the settings, each reported once it is measured, and reasons for missing ones."""
    job = request.samples(pipeline)
    settings = _settings(request, clips=job.num_frames is not None)
    rows, notes = list[Row](), list[str]()
    for number, (name, (config, eta)) in enumerate(settings.items()):
        see = partial(_see, number * request.pairs, len(settings) * request.pairs)
        own = replace(job, eta=eta)
        try:
            row = diffusion.measure(
                pipeline, own, config, request.pairs, name, pictures.setdefault, see
            )
        except ForerunError as error:
            notes.append(f"without {name}: {error}")
            continue
        rows.append(row)
        say(_in_words(row))
    report("settings", 1, 1)
    return rows, notes


def _see(before: int, total: int, done: int) -> None:
    report("settings", before + done, total)


def _in_words(row: Row) -> str:
    texts = [f"{title} {column(row)}" for title, column in _COLUMNS.items() if column(row)]
    return f"{row['setting']} ({row['exactness']}): {', '.join(texts)}"


def _settings(
    request: DiffusionBenchRequest, clips: bool
) -> dict[str, tuple[diffusion.methods.Config, float]]:
    """Usual settings of the methods that make this kind of samples, and the eta of each."""
    eta = request.eta or 0.0
    guidance: dict[str, Any] = {f"every {k} steps": {"interval": k} for k in (2, 4)}
    guidance |= {f"drift {bound:g}": {"drift_bound": bound} for bound in (0.2, 0.3, 0.4)}
    usual: dict[str, dict[str, Any]] = {
        "cfg_cache": {
            name: (diffusion.CFGCacheConfig(**schedule, extrapolate=True), eta)
            for name, schedule in guidance.items()
        },
        "feature_cache": {
            f"every {k} steps": (diffusion.FeatureCacheConfig(k), eta) for k in (2, 3)
        },
    }
    if clips:
        few = {"refine_steps": 6, "refine_stride": 4, "finish_key_frames": False}
        keys: dict[str, Any] = {
            "slerp": {},
            "linear": {"interpolation": "linear"},
            "6 last steps of 4": few,
        }
        usual["key_frames"] = {
            f"every 5th, {name}": (diffusion.VideoLatentCacheConfig(5, **changed), eta)
            for name, changed in keys.items()
        }
    else:
        name = f"{request.speculative.num_draft_steps} steps"
        usual["speculative"] = {name: (request.speculative, request.eta or STOCHASTIC)}
    return {
        f"{method}, {name}": setting
        for method in request.methods
        for name, setting in usual.get(method, {}).items()
    }


def _evaluations(row: Row) -> str:
    fewer = row["full_evaluations"] / row["evaluations"]
    return f"{fewer:.2f} x fewer" if fewer >= 1 else f"{1 / fewer:.2f} x as many"


_COLUMNS: dict[str, Any] = {
    "passes": lambda row: f"{row['calls']} of {row['full_calls']}",
    "evaluations": _evaluations,
    "times as fast": lambda row: f"{row['speedup']:.2f} ({row['least']:.2f}-{row['most']:.2f})",
    "PSNR in dB": lambda row: "" if row["exactness"] == "exact" else f"{row['psnr']['value']:.1f}",
}


def _table(rows: Sequence[Row]) -> Table:
    def name(row: Row) -> Cell:
        mark = Mark.NONE if row["exactness"] == "exact" else Mark.APPROXIMATE
        return Cell(row["setting"], mark)

    title = "Methods beside the full sampler, from the same noise"
    return long_table(title, {"setting": name, **_COLUMNS}, rows)


def _batches(rows: Sequence[Row]) -> Table:
    columns: dict[str, Any] = {
        "batch": lambda row: str(row["batch"]),
        "ms a run": lambda row: f"{1e3 * row['seconds']:.2f}",
        "ms a sample": lambda row: f"{1e3 * row['seconds'] / row['batch']:.2f}",
        "FLOP a byte": lambda row: f"{row['intensity']:.1f}",
        "GFLOP/s": lambda row: f"{row['flops'] / row['seconds'] / 1e9:.1f}",
    }
    return long_table("Runs of the network by batch (bytes: its weights, read once)", columns, rows)


def _roof(name: str, runs: Sequence[Row], bandwidth: float, peak: float) -> Roof:
    dots = Dots(
        [run["intensity"] for run in runs],
        [run["flops"] / run["seconds"] for run in runs],
        [str(run["batch"]) for run in runs],
    )
    return Roof(
        title=f"{name}: runs of its network by batch",
        slopes={"memory": bandwidth},
        ceilings={"fp32": peak},
        ridge=(peak / bandwidth, peak),
        dots={"network": dots},
    )
