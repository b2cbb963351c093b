"""The result of `forerun tune`: predictions of the candidates, a table, a verdict and a config file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Any

import torch

from forerun.bench.engines import Workshop
from forerun.bench.settings import DEFAULT, tokens_text
from forerun.bench.tune.candidates import default_candidates, variants
from forerun.bench.tune.prediction import Prediction, predict
from forerun.bench.tune.records import RecordedOutput, Records
from forerun.bench.tune.request import TuneRequest
from forerun.bench.tune.run import Tuner, Tuning
from forerun.bench.workloads import built_in
from forerun.measure.questions import Question, in_turns, read_questions
from forerun.models.checkpoint import loading_once
from forerun.progress import say
from forerun.report.machine import hardware, versions
from forerun.report.result import Result
from forerun.report.table import Cell, Mark, Table
from forerun.report.target_file import check_writable, write_file
from forerun.theory.advice import advise

_PLACEMENT = ("dtype", "device", "backend", "kv_dtype")
_SAMPLING = ("temperature", "seed", "max_tokens")
_HEADER = (
    *("method", "tokens", "predicted", "confirmed", "error", "tokens a forward"),
    *("acceptance", "drafting", "loses on"),
)


def answer(request: TuneRequest) -> Result:
    """The result of the command; see `forerun.bench.tune.request.run`."""
    for name in ("output", "records"):
        if (file := getattr(request, name)) is not None:
            check_writable(f"--{name}", file)
    checkpoint = request.model.open()
    device = checkpoint.run_config(request.model.placement).device
    sample = sample_of(request.prompts, request.num_prompts)
    made_with = _made_with(request, sample, device)
    file, placement = request.records, {name: getattr(request.model, name) for name in _PLACEMENT}
    records = Records(made_with) if file is None else Records.open(file, made_with)
    workshop = Workshop(checkpoint, placement, request.model.max_context)
    try:
        with records, loading_once():
            tuning = _tuned(request, sample, workshop, records)
    except KeyboardInterrupt:
        if file is not None:
            say(f"what was measured is in {file}; the same command goes on from there")
        raise
    if request.output is not None:
        size = request.batch_sizes[0]
        content = config_values(tuning, size, _measured_at(made_with))
        write_file("config", request.output, _as_toml(content, verdict(tuning, (size,))[0]))
    return _result(request, tuning, records, device)


def _made_with(
    request: TuneRequest, sample: Sequence[Question], device: torch.device
) -> dict[str, Any]:
    """Settings that the records depend on."""
    return {
        "model": request.model.model,
        **{name: getattr(request.model, name) for name in (*_PLACEMENT, "max_context")},
        **{name: getattr(request.sampling, name) for name in _SAMPLING},
        "prompts": [question.turns[0] for question in sample],
        "system": request.system,
        "longest": request.longest,
        "batch_sizes": list(request.batch_sizes),
        "versions": versions()["forerun"],
        "hardware": hardware(device),
    }


def _tuned(
    request: TuneRequest, sample: Sequence[Question], workshop: Workshop, records: Records
) -> Tuning:
    model, params = request.model.model, request.sampling
    candidates = default_candidates(model, request.longest, request.methods, request.draft_model)
    prepared = workshop.prepare(sample, params, system=request.system)
    sizes, seconds = request.batch_sizes, request.seconds
    tuner = Tuner(workshop, model, prepared, params, records, sizes, seconds)
    made = variants(candidates, request.draft_dtypes, request.trees)
    return tuner.tune(made, request.confirm, must_fit=bool(request.methods))


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
    found = [text for size in sizes for text in advice_on(records, tuning.best(size))]
    said = verdict(tuning, sizes), contexts_in_words(tuning, sizes), found
    title = "Speed-up over plain decoding, batch {}: predicted, and confirmed by running it"
    content = {
        "hardware": made_with["hardware"],
        "model": made_with["model"],
        "verdict": said[0],
        "break_even_contexts": [
            {
                "candidate": one.candidate.name,
                "num_tokens": one.num_tokens,
                "batch_size": one.batch_size,
                **vars(one.break_even),
            }
            for one in tuning.from_contexts
        ],
        "contexts": said[1],
        "advice": said[2],
        "config": {str(size): config_values(tuning, size, model) for size in sizes},
        "rows": [one.as_dict() for one in tuning.predictions],
        "refused": tuning.refused,
    }
    return Result(
        content=content,
        tables=[
            Table.of(
                title.format(size),
                _HEADER,
                [_line(one) for one in tuning.predictions if one.batch_size == size],
            )
            for size in sizes
        ],
        endings=[line for part in said for line in part],
        device=device,
    )


def _line(one: Prediction) -> list[Cell | str]:
    return [
        one.candidate.name,
        str(one.num_tokens),
        Cell(f"{one.speedup:.2f}", Mark.SLOWER if one.speedup < 1.0 else Mark.NONE),
        _or_dash(one.confirmed, ".2f"),
        _or_dash(one.error, "+.0%"),
        f"{one.tokens_per_forward:.2f}",
        _or_dash(one.acceptance_rate, ".2f"),
        f"{one.draft_share:.0%}",
        ", ".join(one.loses_on) or "–",
    ]


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _measured_at(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options of model and sampler that were measured with, by the names of their flags."""
    parts = {name: values[name] for name in ("dtype", "kv_dtype") if values[name] != "auto"}
    parts |= {name: values[name] for name in ("temperature", "seed") if values[name] is not None}
    return {"model": values["model"]} | {
        name.replace("_", "-"): value for name, value in parts.items()
    }


def config_values(
    tuning: Tuning, batch_size: int, measured_at: Mapping[str, Any]
) -> dict[str, Any]:
    """Options that follow from the verdict on a batch size, by the names of their flags.

    Args:
        measured_at: the options that it holds for: those that say what the model is, and the sampler.
    """
    values, found = dict(measured_at), tuning.verdict(batch_size)
    if not found.decided or found.use == DEFAULT:
        return values
    if found.use is None:
        return {**values, "speculative": False}
    best = tuning.best(batch_size)
    candidate = best.candidate
    values["method"] = candidate.method
    if candidate.model is not None:
        values["draft-model"] = candidate.model
    values["num-speculative-tokens"] = best.num_tokens
    if candidate.tree_nodes is not None:
        values |= {"tree": "auto", "num-tree-nodes": candidate.tree_nodes}
    return values | {name.replace("_", "-"): value for name, value in candidate.options}


def _as_toml(values: Mapping[str, Any], comment: str) -> str:
    """A file for `--config`."""
    # JSON's texts, numbers and booleans are TOML's.
    lines = [f"# {comment}", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    return "".join(f"{line}\n" for line in lines)


SUPPOSED = (
    "Contexts are predicted from what drafts read of the cache, supposing that as much is accepted, and that "
    "the rest of a round takes as many plain rounds, as on these prompts"
)
# Tests of a position, below which its share says nothing.
FEW = 5
# The formulas are about drafts in every round; lookups that find something less often than that are none.
NEARLY_ALWAYS = 0.9
# The share of predictions that should be within this error.
CLOSE = 0.1


def verdict(tuning: Tuning, batch_sizes: Sequence[int]) -> list[str]:
    """The verdicts, how good the predictions were, and what was not tried, as sentences."""
    lines = [_verdict(tuning, size, len(batch_sizes) > 1) for size in batch_sizes]
    run = tuning.confirmed
    if run:
        close = sum(abs(one.error or 0.0) <= CLOSE for one in run)
        lines.append(
            f"{close} of {len(run)} predictions that were run are within {CLOSE:.0%} of what was measured."
        )
    lines += [f"Not tried: {name} ({reason})" for name, reason in tuning.refused.items()]
    return lines


def _verdict(tuning: Tuning, batch_size: int, several: bool) -> str:
    found = tuning.verdict(batch_size)
    said = "; ".join([found.advice, *found.details])
    run = any(one.batch_size == batch_size for one in tuning.confirmed)
    predicted = "" if run else "predicted, not run: "
    return f"{predicted}{found.where}: {said}." if several else f"{predicted}{said}."


def _named(one: Prediction) -> str:
    return f"{one.candidate.name} with {tokens_text(one.num_tokens)} a round"


def contexts_in_words(tuning: Tuning, batch_sizes: Sequence[int]) -> list[str]:
    """Sentences on the shortest contexts at which drafts pay that read less of the cache."""
    found = tuning.from_contexts
    lines = [_pays_from(one, len(batch_sizes) > 1) for one in found]
    if not found:
        return []
    traffic = [one.break_even.traffic_context for one in found if one.break_even is not None]
    lines.append(f"{SUPPOSED}, of {sum(traffic) / len(traffic):.0f} tokens on average.")
    untested = [one.candidate.name for one in found if one.break_even and one.break_even.untested]
    if untested:
        lines.append(
            f"These prompts are so short that drafts of {_list(untested)} leave out nothing of the cache; at "
            "longer contexts fewer may be accepted: give longer prompts to know."
        )
    return lines


def _pays_from(one: Prediction, several: bool) -> str:
    where, found = f"Batch {one.batch_size}: " if several else "", one.break_even
    assert found is not None
    if found.context is None:
        most = f"{found.model_context:,} tokens"
        return f"{where}{one.candidate.name} pays at no context up to the model's {most}."
    if found.context <= 1:
        return f"{where}{_named(one)} pays at every context."
    # The keys of all requests count, the weights once: with more of them it pays sooner.
    about = "about" if one.batch_size == 1 else "at most about"
    return f"{where}{_named(one)} pays from a context of {about} {found.context:,} tokens."


def _list(names: Sequence[str]) -> str:
    *others, last = dict.fromkeys(names)
    return f"{', '.join(others)} and {last}" if others else last


def advice_on(records: Records, setting: Prediction) -> list[str]:
    """Sentences on why a setting's candidate gains or loses; none where it drafts only now and then.

    The costs are those of the predictions, so that the gain of a length is its predicted one.
    """
    candidate, size = setting.candidate, setting.batch_size
    outputs = records.of(candidate.name)
    drafting = [depth > 0 for output in outputs for depth in output.depths]
    if sum(drafting) < NEARLY_ALWAYS * len(drafting):
        return []
    predictions = predict(records, [candidate], [size])
    best = max(predictions, key=lambda one: one.speedup)
    acceptance = acceptance_by_position(outputs, best.num_tokens)[: candidate.longest]
    if not acceptance:
        return []
    share = _round_cost(best, acceptance) * best.draft_share / best.num_tokens
    checking = {}
    for length in range(1, len(acceptance) + 1):
        # A length that is not predicted takes the time of the next one: it never looks better.
        one = next(one for one in predictions if one.num_tokens >= length)
        cost = _round_cost(one, acceptance)
        checking[length + 1] = max(cost - share * length, cost * (1.0 - one.draft_share))
    advice = advise(acceptance, share, verification_cost=checking, longest=len(acceptance))
    where = f"batch {size}, " if len(records.made_with.get("batch_sizes", ())) > 1 else ""
    return [
        f"Why, by the predictions of {where}{candidate.name}: acceptance is accepted over tested tokens (in "
        "the table over drafted ones), and costs include the prompts.",
        *(finding.text for finding in advice.findings),
    ]


def _round_cost(one: Prediction, acceptance: Sequence[float]) -> float:
    """Cost of a round in plain rounds, prompts included, that gives the predicted speed-up."""
    survival: Iterable[float] = accumulate(acceptance[: one.num_tokens], mul)
    return (1.0 + sum(survival)) / one.speedup


def acceptance_by_position(outputs: Sequence[RecordedOutput], num_tokens: int) -> tuple[float, ...]:
    """Share of tested tokens that is accepted, by position in the draft, as far as it was seen a few times.

    A token is tested where all before it are accepted. Only the rounds that drafts of `num_tokens` lead
    to are counted.
    """
    tested: dict[int, int] = {}
    passed: dict[int, int] = {}
    for output in outputs:
        at = 0
        while at < len(output):
            accepted = output.accepted[at]
            for position in range(min(accepted + 1, output.depths[at])):
                tested[position] = tested.get(position, 0) + 1
                passed[position] = passed.get(position, 0) + (position < accepted)
            at += output.advance(at, output.drafted(at, num_tokens) or 0)
    shares = []
    for position in range(len(tested)):
        if tested[position] < FEW:
            break
        shares.append(passed[position] / tested[position])
    return tuple(shares)
