"""The result of `forerun tune`: predictions of the candidates, a table, a verdict and a config file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from forerun.bench.prompts import Preparation
from forerun.bench.tune.prediction import Prediction
from forerun.bench.tune.records import Records
from forerun.bench.tune.request import TuneRequest
from forerun.bench.tune.run import Tuning, default_candidates, tune, variants
from forerun.bench.tune.words import (
    advice_on,
    as_toml,
    config_values,
    contexts_in_words,
    verdict,
)
from forerun.bench.tune.workbench import Candidate, Workbench
from forerun.bench.workloads import built_in
from forerun.measure.questions import Question, in_turns, read_questions
from forerun.progress import say
from forerun.report.machine import hardware, versions
from forerun.report.result import Result
from forerun.report.table import Cell, Mark, long_table
from forerun.report.target_file import check_writable, write_file

_PLACEMENT = ("dtype", "device", "backend", "kv_dtype", "max_context")
_SAMPLING = ("temperature", "seed", "max_tokens")


def answer(request: TuneRequest) -> Result:
    """The result of the command; see `forerun.bench.tune.request.run`."""
    for name in ("output", "records"):
        if (file := getattr(request, name)) is not None:
            check_writable(f"--{name}", file)
    checkpoint = request.model.open()
    device = checkpoint.run_config(request.model.placement).device
    sample = sample_of(request.prompts, request.num_prompts)
    made_with = _made_with(request, sample, device)
    file = request.records
    records = Records(made_with) if file is None else Records.open(file, made_with)
    placement = {name: getattr(request.model, name) for name in _PLACEMENT}

    def load(candidate: Candidate, rows: int) -> Workbench:
        return Workbench.load(checkpoint, candidate, max_batch_size=rows, **placement)

    try:
        with records:
            tuning = _tuned(request, sample, load, records)
    except KeyboardInterrupt:
        if file is not None:
            say(f"what was measured is in {file}; the same command goes on from there")
        raise
    if request.output is not None:
        size = request.batch_sizes[0]
        content = config_values(tuning, size, _measured_at(made_with))
        write_file("config", request.output, as_toml(content, verdict(tuning, (size,))[:1]))
    return _result(request, tuning, records, device)


def _made_with(
    request: TuneRequest, sample: Sequence[Question], device: torch.device
) -> dict[str, Any]:
    """Settings that the records depend on."""
    return {
        "model": request.model.model,
        **{name: getattr(request.model, name) for name in _PLACEMENT},
        **{name: getattr(request.sampling, name) for name in _SAMPLING},
        "prompts": [question.turns[0] for question in sample],
        "system": request.system,
        "longest": request.longest,
        "batch_sizes": list(request.batch_sizes),
        "versions": versions()["forerun"],
        "hardware": hardware(device),
    }


def _tuned(
    request: TuneRequest,
    sample: Sequence[Question],
    load: Callable[[Candidate, int], Workbench],
    records: Records,
) -> Tuning:
    model, params = request.model.model, request.sampling
    candidates = default_candidates(model, request.longest, request.methods, request.draft_model)
    return tune(
        load,
        lambda bench: (
            Preparation(bench.engine, params, system=request.system).prepare(sample).prompts
        ),
        variants(candidates, request.draft_dtypes, request.trees),
        params,
        records,
        batch_sizes=request.batch_sizes,
        confirm=request.confirm,
        seconds=request.seconds,
        must_fit=bool(request.methods),
    )


def sample_of(paths: Sequence[str], limit: int) -> list[Question]:
    """First turns of questions, numbered, of all categories in turns."""
    questions = in_turns(read_questions(paths) if paths else built_in())
    return [
        replace(question, turns=question.turns[:1], question_id=str(number))
        for number, question in enumerate(questions[:limit])
    ]


def _result(request: TuneRequest, tuning: Tuning, records: Records, device: torch.device) -> Result:
    sizes, made_with = request.batch_sizes, records.made_with
    model = _measured_at(made_with)
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
    content = {
        "hardware": made_with["hardware"],
        "model": made_with["model"],
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
    return Result(
        content=content,
        tables=tables,
        endings=[line for part in said for line in part],
        device=device,
    )


def _measured_at(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options of model and sampler that were measured with, by the names of their flags."""
    parts = {name: values[name] for name in ("dtype", "kv_dtype") if values[name] != "auto"}
    parts |= {name: values[name] for name in ("temperature", "seed") if values[name] is not None}
    return {"model": values["model"]} | {
        name.replace("_", "-"): value for name, value in parts.items()
    }


def _advice(sizes: Sequence[int], tuning: Tuning, records: Records) -> list[str]:
    """Reasons why the best setting of each batch size gains or loses."""
    found = [advice_on(records, tuning.best(size)) for size in sizes]
    return [finding.text for one in found if one is not None for finding in one.findings]


def _columns() -> dict[str, Any]:
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
