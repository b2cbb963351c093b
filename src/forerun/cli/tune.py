"""`forerun tune`: which drafter and length to use for a model and prompts of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from forerun.bench.tune.request import TuneSettings
from forerun.cli.asked import open_checkpoint
from forerun.cli.bars import bars
from forerun.cli.config import config_option
from forerun.cli.derived import derived
from forerun.cli.flags import (
    json_option,
    kv_dtype_option,
    model_options,
    questions_option,
    system_option,
)
from forerun.cli.options import Command, Option
from forerun.cli.param_types import FileName
from forerun.cli.quiet import quiet_libraries
from forerun.cli.results import give
from forerun.options import pick, schema_of
from forerun.params import SamplingParams
from forerun.report.target_file import check_writable, write_file

if TYPE_CHECKING:
    from forerun.bench.tune.prediction import Prediction
    from forerun.bench.tune.records import Records
    from forerun.bench.tune.run import Tuning
    from forerun.measure.questions import Question
    from forerun.models import Checkpoint
    from forerun.report.result import Result

_PLACEMENT = ("dtype", "device", "backend", "kv_dtype")
_SECTION = "Tuning (lists: 1,4,16)"
_SAMPLING = ("temperature", "seed", "max_tokens")
_OTHERS = schema_of(SamplingParams).keys() - set(_SAMPLING)


def tune(**values: Any) -> None:
    """Find out which drafter and length to use for a model and your own prompts.

    Every candidate drafts at every position of some answers; from what would have been accepted, and
    from the times of rounds, the gain of every length is computed without running it. The best few are
    run beside plain decoding. Standard output is a table and a verdict in words; --output writes a file
    that every command takes with --config.
    """
    settings = pick(TuneSettings, values)
    for name in ("output", "records"):
        if values[name] is not None:
            check_writable(f"--{name}", values[name])
    quiet_libraries()
    checkpoint = open_checkpoint(values)
    try:
        with bars():
            records, tuning = _run(values, settings, checkpoint)
    except KeyboardInterrupt:
        if values["records"] is not None:
            click.echo(
                f"forerun: what was measured is in {values['records']}; the same command goes on from there",
                err=True,
            )
        raise
    _write_config(values, settings, tuning)
    give(_result(settings, tuning, records), values, _device(values, checkpoint))


def _run(
    values: dict[str, Any], settings: TuneSettings, checkpoint: Checkpoint
) -> tuple[Records, Tuning]:
    from forerun.bench.prompts import Preparation
    from forerun.bench.tune.records import Records
    from forerun.bench.tune.run import default_candidates, tune, variants
    from forerun.bench.tune.workbench import Candidate, Workbench
    from forerun.report.machine import hardware, versions

    sample = _sample(values["prompts"], settings.num_prompts)
    placement = {name: values[name] for name in (*_PLACEMENT, "max_context")}
    sampling = {name: values[name] for name in _SAMPLING}
    params = SamplingParams(**sampling)
    made_with = {
        "model": values["model"],
        **placement,
        **sampling,
        "longest": settings.longest,
        "batch_sizes": list(settings.batch_sizes),
        "versions": versions()["forerun"],
        "hardware": hardware(_device(values, checkpoint)),
    }
    file = values["records"]
    records = Records(made_with) if file is None else Records.open(file, made_with)

    def load(candidate: Candidate, rows: int) -> Workbench:
        return Workbench.load(checkpoint, candidate, max_batch_size=rows, **placement)

    candidates = default_candidates(
        values["model"], settings.longest, settings.methods, settings.draft_model
    )
    with records:
        tuning = tune(
            load,
            lambda bench: (
                Preparation(bench.engine, params, system=values["system"]).prepare(sample).prompts
            ),
            variants(candidates, settings.draft_dtypes, settings.trees),
            params,
            records,
            batch_sizes=settings.batch_sizes,
            confirm=settings.confirm,
            seconds=settings.seconds,
            must_fit=bool(settings.methods),
        )
    return records, tuning


def _sample(paths: Sequence[str], limit: int) -> list[Question]:
    """First turns of questions, numbered, of all categories in turns."""
    from forerun.bench.workloads import built_in
    from forerun.measure.questions import in_turns, read_questions

    questions = in_turns(read_questions(paths) if paths else built_in())
    return [
        replace(question, turns=question.turns[:1], question_id=str(number))
        for number, question in enumerate(questions[:limit])
    ]


def _device(values: dict[str, Any], checkpoint: Checkpoint) -> Any:
    from forerun.models.placement import Placement

    placement = Placement(**{name: values[name] for name in _PLACEMENT})
    return checkpoint.run_config(placement).device


def _write_config(values: dict[str, Any], settings: TuneSettings, tuning: Tuning) -> None:
    from forerun.bench.tune.words import as_toml, config_values, verdict

    if values["output"] is not None:
        size = settings.batch_sizes[0]
        content = config_values(tuning, size, _measured_at(values))
        write_file("config", values["output"], as_toml(content, verdict(tuning, (size,))[:1]))


def _result(settings: TuneSettings, tuning: Tuning, records: Records) -> Result:
    from forerun.bench.tune.words import config_values, contexts_in_words, verdict
    from forerun.report.result import Result
    from forerun.report.table import long_table

    sizes, made_with, model = (
        settings.batch_sizes,
        records.made_with,
        _measured_at(records.made_with),
    )
    said = verdict(tuning, sizes), contexts_in_words(tuning, sizes), _advice(sizes, tuning, records)
    tables = []
    for size in sizes:
        rows = [
            one.as_dict() | {"one": one} for one in tuning.predictions if one.batch_size == size
        ]
        title = (
            f"Speed-up over plain decoding, batch {size}: predicted, and confirmed by running it"
        )
        tables.append(long_table(title, _columns(), rows))
    placed = {name: made_with[name] for name in (*_PLACEMENT, *_SAMPLING)}
    content = {
        "hardware": made_with["hardware"],
        "model": made_with["model"],
        "settings": asdict(settings) | placed,
        "verdict": said[0],
        "break_even_contexts": [
            {name: getattr(one, name) for name in ("candidate", "num_tokens", "batch_size")}
            | asdict(one.break_even)
            for one in tuning.from_contexts
            if one.break_even is not None
        ],
        "contexts": said[1],
        "advice": said[2],
        "config": {str(size): config_values(tuning, size, model) for size in sizes},
        "rows": [one.as_dict() for one in tuning.predictions],
        "refused": tuning.refused,
    }
    return Result(content=content, tables=tables, endings=[line for part in said for line in part])


def _measured_at(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of model and sampler that were measured with, by the names of their flags."""
    parts = {name: values[name] for name in ("dtype", "kv_dtype") if values[name] != "auto"}
    parts |= {name: values[name] for name in ("temperature", "seed") if values[name] is not None}
    return {"model": values["model"]} | {
        name.replace("_", "-"): value for name, value in parts.items()
    }


def _advice(sizes: Sequence[int], tuning: Tuning, records: Records) -> list[str]:
    """Why the best setting of each batch size gains or loses."""
    from forerun.bench.tune.words import advice_on

    found = [advice_on(records, tuning.best(size)) for size in sizes]
    return [finding.text for one in found if one is not None for finding in one.findings]


def _columns() -> dict[str, Any]:
    from forerun.report.table import Cell, Mark

    def gain(row: Any) -> Cell:
        one: Prediction = row["one"]
        return Cell(f"{one.speedup:.2f}", Mark.SLOWER if one.speedup < 1.0 else Mark.NONE)

    def or_dash(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    return {
        "method": lambda row: row["candidate"],
        "tokens": lambda row: str(row["num_tokens"]),
        "predicted": gain,
        "confirmed": lambda row: or_dash(row["confirmed"], ".2f"),
        "error": lambda row: or_dash(row["one"].error, "+.0%"),
        "tokens a forward": lambda row: f"{row['tokens_per_forward']:.2f}",
        "acceptance": lambda row: or_dash(row["acceptance_rate"], ".2f"),
        "drafting": lambda row: f"{row['draft_share']:.0%}",
        "loses on": lambda row: ", ".join(row["one"].loses_on) or "–",
    }


def _options() -> list[click.Parameter]:
    return [
        questions_option(
            "prompts", "Prompts", "A sample of your prompts", "Left out, small built-in ones."
        ),
        system_option(),
        *derived(TuneSettings, _SECTION),
        *derived(
            SamplingParams,
            _SECTION,
            without=set(schema_of(SamplingParams)) - set(_SAMPLING),
            defaults={"temperature": 0.0},
        ),
        Option(
            "records",
            _SECTION,
            type=FileName(),
            help="Keep what is measured there, and go on from what is there already.",
        ),
        Option(
            "output",
            _SECTION,
            type=FileName(),
            help="Write the best setting there, as TOML for --config.",
        ),
        *model_options(
            context="Tokens of prompt and output at most; the model's context up to 4096."
        ),
        kv_dtype_option(),
        json_option(),
        config_option(),
    ]


command = Command(
    "tune",
    params=_options(),
    callback=tune,
    example="forerun tune --model smollm2 --prompts mine.txt --output tuned.toml",
)
