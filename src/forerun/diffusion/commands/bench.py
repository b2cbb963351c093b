"""`forerun diffusion bench`: every method beside the full sampler, and the network on a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from forerun.diffusion.commands.requests import DRAFT, NUM_DRAFT_STEPS, Sampling
from forerun.diffusion.commands.sample import picture_path, save_rows
from forerun.diffusion.settings import DraftKind, DraftSteps
from forerun.errors import ConfigError, ForerunError
from forerun.options import FileName, option, options
from forerun.progress import report, say
from forerun.report.chart import Dots, Roof
from forerun.report.result import Result
from forerun.report.table import Cell, Mark, Row, Table, long_table

if TYPE_CHECKING:
    from torch import Tensor

    from forerun.diffusion.classifier import Classifier
    from forerun.diffusion.measuring import BatchRun, MethodSetting

STOCHASTIC = 1.0
"""Eta at which speculative sampling is measured unless one is given."""
_INTERPOLATIONS: tuple[Literal["slerp", "linear"], ...] = ("slerp", "linear")


@options
class DiffusionBenchRequest(Sampling):
    """Find out what each method costs and saves beside the full sampler.

    From the same noise, in turns: network passes, seconds, PSNR and, where the small classifier of digits
    fits, the share of right labels. Speculative sampling is measured beside the same stochastic sampler,
    with the given eta or 1. Then runs of the network over batch sizes, as a roofline.
    """

    methods: tuple[
        Literal["none", "cfg_cache", "feature_cache", "key_frames", "speculative"], ...
    ] = option(
        section="Methods",
        default=("cfg_cache", "feature_cache", "key_frames", "speculative"),
        description="Methods to measure; what a pipeline cannot is left out. none: the roofline alone.",
    )
    num_draft_steps: DraftSteps = NUM_DRAFT_STEPS
    draft: DraftKind = DRAFT
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

    from forerun.diffusion.measuring import machine_limits, runs_by_batch

    pipeline = request.open()
    job = request.samples(pipeline)
    clips = job.num_frames is not None
    sheet = None if request.sheet is None else picture_path("sheet", request.sheet, clips=clips)
    pictures: dict[str, Tensor] = {}
    rows, notes = _measure(request, pipeline, pictures)
    runs: list[BatchRun] = []
    try:
        runs = runs_by_batch(pipeline, request.batches, job.num_frames)
    except ForerunError as error:
        notes.append(f"without the roofline: {error}")
    if not rows and not runs:
        raise ConfigError("; ".join(notes) or "there is nothing to measure; give methods.")
    if sheet is not None:
        save_rows(list(pictures.values()), sheet)
        notes.append(f"{sheet} has the rows {', '.join(pictures)}")
    roofline = [{**asdict(run), "intensity": run.intensity} for run in runs]
    return Result(
        mode="diffusion bench",
        rows=rows,
        tables=[*([_table(rows)] if rows else []), *([_batches(roofline)] if runs else [])],
        charts=[_roof(type(pipeline).__name__, runs, *machine_limits())] if runs else [],
        facts={"roofline": roofline},
        notes=notes,
        device=torch.device("cpu"),
    )


def _measure(
    request: DiffusionBenchRequest, pipeline: Any, pictures: dict[str, Tensor]
) -> tuple[list[Row], list[str]]:
    """A row for each setting, which is reported as soon as it is measured, and why others have none."""
    from forerun.diffusion.measuring import measure

    job = request.samples(pipeline)
    settings = _settings(request, clips=job.num_frames is not None)
    classifier, rows, notes = _classifier(pipeline), list[Row](), list[str]()
    for number, setting in enumerate(settings):
        see = partial(_see, number * request.pairs, len(settings) * request.pairs)
        try:
            measured = measure(
                pipeline, job, setting, request.pairs, classifier, pictures.setdefault, see
            )
        except ForerunError as error:
            notes.append(f"without {setting.name}: {error}")
            continue
        rows.append(asdict(measured))
        say(_in_words(rows[-1]))
    report("settings", 1, 1)
    return rows, notes


def _see(before: int, total: int, done: int) -> None:
    report("settings", before + done, total)


def _in_words(row: Row) -> str:
    texts = [f"{title} {column(row)}" for title, column in _COLUMNS.items() if column(row)]
    return f"{row['setting']} ({row['exactness']}): {', '.join(texts)}"


def _settings(request: DiffusionBenchRequest, clips: bool) -> list[MethodSetting]:
    """The usual settings of each method that is asked for and made for this kind of samples."""
    from forerun.diffusion.cfg_cache import CFGCacheConfig
    from forerun.diffusion.feature_cache import FeatureCacheConfig
    from forerun.diffusion.measuring import MethodSetting
    from forerun.diffusion.speculative_sampling import SpeculativeSamplingConfig
    from forerun.diffusion.video_latent_cache import VideoLatentCacheConfig

    def cfg(**schedule: Any) -> CFGCacheConfig:
        return CFGCacheConfig(**schedule, extrapolate=True)

    eta = request.eta or 0.0
    usual: dict[str, list[MethodSetting]] = {
        "cfg_cache": [
            *(MethodSetting(f"every {k} steps", cfg(interval=k), eta) for k in (2, 4)),
            *(MethodSetting(f"drift {b:g}", cfg(drift_bound=b), eta) for b in (0.2, 0.3, 0.4)),
        ],
        "feature_cache": [
            MethodSetting(f"every {k} steps", FeatureCacheConfig(k), eta) for k in (2, 3)
        ],
    }
    if clips:
        keys = (VideoLatentCacheConfig(key_interval=5, interpolation=i) for i in _INTERPOLATIONS)
        few = VideoLatentCacheConfig(
            key_interval=5, refine_steps=6, refine_stride=4, finish_key_frames=False
        )
        usual["key_frames"] = [
            *(MethodSetting(f"every 5th, {key.interpolation}", key) for key in keys),
            MethodSetting("every 5th, 6 last steps of 4", few),
        ]
    else:
        config = SpeculativeSamplingConfig(request.num_draft_steps, request.draft)
        name = f"{request.num_draft_steps} steps"
        usual["speculative"] = [MethodSetting(name, config, request.eta or STOCHASTIC)]
    return [
        replace(setting, name=f"{method}, {setting.name}")
        for method in request.methods
        for setting in usual.get(method, [])
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


def _evaluations(row: Row) -> str:
    fewer = row["full_evaluations"] / row["evaluations"]
    return f"{fewer:.2f} x fewer" if fewer >= 1 else f"{1 / fewer:.2f} x as many"


def _value(field: str, row: Row) -> str:
    return "" if row[field] is None else f"{row[field]['value']:.3f}"


_COLUMNS: dict[str, Any] = {
    "passes": lambda row: f"{row['calls']} of {row['full_calls']}",
    "evaluations": _evaluations,
    "times as fast": lambda row: f"{row['speedup']:.2f} ({row['least']:.2f}-{row['most']:.2f})",
    "PSNR in dB": lambda row: "" if row["exactness"] == "exact" else f"{row['psnr']['value']:.1f}",
    "Fréchet": partial(_value, "frechet"),
    "right labels": partial(_value, "accuracy"),
    "neighbours alike": partial(_value, "consistency"),
}


def _table(rows: Sequence[Row]) -> Table:
    def name(row: Row) -> Cell:
        mark = Mark.NONE if row["exactness"] == "exact" else Mark.APPROXIMATE
        return Cell(row["setting"], mark)

    always = list(_COLUMNS)[:4]
    filled = {
        title: column
        for title, column in _COLUMNS.items()
        if title in always or any(map(column, rows))
    }
    title = "Methods beside the full sampler, from the same noise"
    return long_table(title, {"setting": name, **filled}, rows)


def _batches(rows: Sequence[Row]) -> Table:
    columns: dict[str, Any] = {
        "batch": lambda row: str(row["batch"]),
        "ms a run": lambda row: f"{1e3 * row['seconds']:.2f}",
        "ms a sample": lambda row: f"{1e3 * row['seconds'] / row['batch']:.2f}",
        "FLOP a byte": lambda row: f"{row['intensity']:.1f}",
        "GFLOP/s": lambda row: f"{row['flops'] / row['seconds'] / 1e9:.1f}",
    }
    return long_table("Runs of the network by batch (bytes: its weights, read once)", columns, rows)


def _roof(name: str, runs: Sequence[BatchRun], bandwidth: float, peak: float) -> Roof:
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
