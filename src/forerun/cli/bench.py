"""`forerun bench`: which drafter pays for one's own model and prompts, and how much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from forerun.bench.peers import peer_names
from forerun.bench.settings import Axes, Crossed, cross, likely_methods
from forerun.bench.workloads import built_in
from forerun.cli.asked import add_method_options, open_checkpoint, sampling_params
from forerun.cli.bench_flags import bench_options
from forerun.cli.options import Command, given, warn
from forerun.cli.quiet import quiet_libraries
from forerun.cli.results import give
from forerun.drafters.lookup.corpus_cache import CorpusOptions
from forerun.errors import ConfigError, PromptError, UnknownNameError
from forerun.measure.questions import in_turns, read_questions
from forerun.options import changes, pick
from forerun.report.target_file import check_writable

if TYPE_CHECKING:
    from forerun.cli.bench_run import BenchRun
    from forerun.measure.questions import Question


@click.pass_context
def bench(ctx: click.Context, /, **values: Any) -> int:
    """Find out which drafter pays for a model and prompts, in turns with plain decoding.

    Without options it measures the likely drafters for SmolLM2 on built-in prompts, for five minutes.
    The verdict in words comes first, then a table: every figure is the median over prompts of the ratio
    to plain decoding of the same prompt just before, with its 95 % interval.
    """
    _check(ctx, values)
    questions = _questions(values)
    params = sampling_params({**values, "temperature": values["temperatures"][0]})
    quiet_libraries()
    crossed = _crossed(ctx, values)
    checkpoint = open_checkpoint(values)
    from forerun.cli.bench_run import measuring

    with measuring(values, checkpoint, crossed, questions, params) as run:
        try:
            run.run()
        except KeyboardInterrupt:
            run.notes.append("interrupted: these are the pairs that were measured until then")
            _finish(values, run)
            raise
        return _finish(values, run)


def _check(ctx: click.Context, values: Mapping[str, Any]) -> None:
    for name, other in (("prompts", "workloads"), ("rows", "resume")):
        if values[name] and given(ctx, other) and values[other] is not None:
            raise ConfigError(f"--{name} and --{other} exclude each other; leave one out.")
    for engine in values["against"] or ():
        if engine not in peer_names():
            raise UnknownNameError("engine", engine, peer_names())
    for name in ("html", "markdown", "rows", "resume"):
        if values[name] is not None:
            check_writable(f"--{name}", values[name])


def _questions(values: Mapping[str, Any]) -> list[Question]:
    """The workload.

    Raises:
        PromptError: where there is none, or a line is no question.
    """
    if not values["prompts"]:
        return in_turns(built_in(values["workloads"]), values["limit"])
    bad: list[PromptError] = []
    on_bad = bad.append if values["skip_bad"] else None
    questions = read_questions(values["prompts"], on_bad, by_file=values["by_file"])
    if bad:
        lines = "1 line is" if len(bad) == 1 else f"{len(bad)} lines are"
        warn(f"{lines} no question and left out: {bad[0]}")
    return in_turns(questions, values["limit"])


def _crossed(ctx: click.Context, values: Mapping[str, Any]) -> Crossed:
    target = values["model"]
    axes = Axes(
        methods=values["methods"] or likely_methods(target, values["draft_model"]),
        lengths=values["lengths"],
        trees=values["trees"],
        nodes=values["tree_nodes"],
        policies=values["policies"],
        models=values["draft_model"],
        common={name: values[name] for name in ("rejection_sample_method", "draft_sample_method")},
        options=add_method_options(ctx, values, changes(pick(CorpusOptions, values))),
    )
    return cross(axes, target)


def _finish(values: Mapping[str, Any], run: BenchRun) -> int:
    """Show the report and write its files."""
    from forerun.bench.tables import result_of

    report = run.report(values["model"])
    if not report.cells:
        why = "; ".join(report.remarks) or "no prompt was run"
        raise ConfigError(f"nothing was measured: {why}.")
    return give(result_of(report), values, run.session.plain.target.device)


command = Command(
    "bench",
    params=bench_options(),
    callback=bench,
    example="forerun bench --model smollm2 --prompts mine.jsonl",
    assumed="measuring the likely drafters on built-in prompts",
)
