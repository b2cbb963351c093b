"""The run of `forerun bench`: engines, prompts and the session, and the facts that its report states."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from forerun.bench.contestants import Workshop, files_of, invited
from forerun.bench.pairs import ROWS, MeasuredPair, PairKey
from forerun.bench.peers.process import RemoteEngine
from forerun.bench.report import BenchReport, result_of
from forerun.bench.request import BenchRequest, built_in
from forerun.bench.runs import Prepared
from forerun.bench.session import BenchSession
from forerun.bench.settings import DEFAULT, Crossed, Setting, cross, likely_methods
from forerun.engine.engine import Engine
from forerun.engine.options import with_method_options
from forerun.errors import ConfigError, PromptError, counted
from forerun.files import cache_folder, check_writable
from forerun.measure.ledger import Ledger
from forerun.measure.questions import Question, in_turns, read_questions
from forerun.models import Checkpoint
from forerun.models.checkpoint import loading_once
from forerun.models.cpu.threads import threads_in_use
from forerun.options import changes
from forerun.params import SamplingParams, in_words
from forerun.progress import say
from forerun.report.machine import hardware, versions
from forerun.report.result import Interrupted, Result


def measured(
    request: BenchRequest, finalists: int = 0, most: int | None = None
) -> tuple[BenchRun, Result]:
    """A session that has ended, and its result.

    Args:
        finalists: settings that a knock-out leaves; 0 measures all on all prompts.
        most: questions at most.

    Raises:
        Interrupted: with the pairs until then.
    """
    if request.records is not None:
        check_writable("--records", request.records)
    questions = questions_of(request)[:most]
    crossed = _crossed(request, cold=not finalists)
    checkpoint = request.model.open()
    with measuring(request, checkpoint, crossed, questions) as bench:
        bench.session.finalists = finalists
        try:
            bench.run()
        except KeyboardInterrupt:
            bench.report.notes.append(
                "interrupted: these are the pairs that were measured until then"
            )
            raise Interrupted(bench.result()) from None
        return bench, bench.result()


def questions_of(request: BenchRequest) -> list[Question]:
    """Questions of the workload or of the files of prompts.

    Raises:
        PromptError: if the file is missing, or a line is not a question.
    """
    if not request.prompts:
        return in_turns(built_in(request.workloads), request.limit)
    bad: list[PromptError] = []
    on_bad = bad.append if request.skip_bad else None
    questions = read_questions(request.prompts, on_bad, by_file=request.by_file)
    if bad:
        lines = (
            "1 line is not a question" if len(bad) == 1 else f"{len(bad)} lines are not questions"
        )
        say(f"warning: {lines} and left out: {bad[0]}")
    return in_turns(questions, request.limit)


def _crossed(request: BenchRequest, cold: bool) -> Crossed:
    target, axes = request.model.model, request.axes
    axes = replace(
        axes,
        method=axes.method or likely_methods(target, axes.draft_model),
        common=changes(request.rules),
        options=with_method_options(request.method_option, changes(request.corpus)),
    )
    return cross(axes, target, cold)


@dataclass
class BenchRun:
    """A session, the report that grows with it, and the file that its rows are added to."""

    session: BenchSession
    report: BenchReport
    file: Ledger[MeasuredPair] | None
    settings: Sequence[Setting]

    def run(self) -> None:
        """Measure all that is missing; an interruption leaves the rows until then."""
        for row in self.session.run():
            self.report.rows.append(row)
            try:
                if self.file is not None:
                    self.file.append([row])
            except ConfigError as error:
                # The measurements are worth more than the file.
                self.file = None
                say(f"warning: {error}")
                self.report.notes.append(str(error))

    def result(self) -> Result:
        """The result of the pairs so far.

        Raises:
            ConfigError: if there are none.
        """
        report, session = self.report, self.session
        report.notes.extend(session.notes)
        report.rows[:] = [row for row in report.rows if row.key.place not in session.knocked_out]
        for entry in session.contestants:
            report.notes.extend(entry.notes)
        if not report.cells:
            why = "; ".join(report.remarks) or "no prompt was run"
            raise ConfigError(f"nothing was measured: {why}.")
        return replace(result_of(report), device=session.plain.target.device)


@contextmanager
def measuring(
    request: BenchRequest, checkpoint: Checkpoint, crossed: Crossed, questions: Sequence[Question]
) -> Iterator[BenchRun]:
    """A session that is ready to run."""
    params = replace(request.sampling, temperature=request.temperature[0])
    placement = vars(request.model.placement)
    workshop = Workshop(checkpoint, placement, request.model.max_context)
    with ExitStack() as stack:
        with loading_once():
            prepared = workshop.prepare(
                questions,
                params,
                raw=request.raw,
                system=request.template.system,
                variables=request.template.template_var,
            )
            most = prepared, params, max(request.batch_sizes)
            plain = workshop.engine(False, *most)
            contestants = stack.enter_context(workshop.drafting(crossed.settings, *most))
        facts = _facts(request, plain, prepared, params) | _default_fact(crossed)
        done: dict[PairKey, MeasuredPair] = {}
        file = None
        if request.records is not None:
            header = {key: facts[key] for key in ("engine", "machine", "sampling")}
            header = {"model": request.model.model, **header}
            file = Ledger(request.records, ROWS, header, lambda row: done.update({row.key: row}))
            stack.enter_context(file)
        opponents, missing = stack.enter_context(
            invited(request.against, lambda name: _peer(name, request, workshop, crossed))
        )
        session = BenchSession(
            plain,
            [*contestants, *opponents],
            prepared.prompts,
            params,
            request.temperature,
            request.batch_sizes,
            request.minutes,
            done,
        )
        report = BenchReport(
            model=request.model.model,
            command=shlex.join(["forerun", *sys.argv[1:]]),
            facts=facts,
            rows=session.usable(),
            exactness={entry.name: str(entry.engine.exactness) for entry in contestants},
            peers={entry.name: entry.facts for entry in opponents},
            notes=[*crossed.notes, *_left_out(prepared.too_long), *missing],
        )
        yield BenchRun(session, report, file, crossed.settings)


def _peer(name: str, request: BenchRequest, workshop: Workshop, crossed: Crossed) -> RemoteEngine:
    """One of the engines of `--against`, with the models of this run."""
    precision = workshop.checkpoint.run_config(request.model.placement).precision
    models = [s.config.model for s in crossed.settings if s.config.method == "draft_model"]
    drafts = [files_of(Checkpoint.open(model)) for model in models if model is not None]
    # One precision is that of both.
    fitting = [str(d) for d in drafts[:1] if d.is_file() == (precision == "stored")]
    return RemoteEngine(
        name,
        name=name,
        python=request.peers_python,
        checkpoint_dir=str(files_of(workshop.checkpoint)),
        precision=precision,
        threads=threads_in_use(),
        draft_dir=fitting[0] if fitting else None,
        cache_dir=str(cache_folder("peers")),
    )


def _default_fact(crossed: Crossed) -> dict[str, str]:
    """Meaning of the setting called default."""
    shown = {
        setting.name: replace(setting, method=str(setting.config.method)).name
        for setting in crossed.settings
        if setting.method == DEFAULT and not setting.cold
    }
    return {name: f"is {text}" for name, text in shown.items()}


def _left_out(count: int) -> list[str]:
    turns = "1 turn leaves" if count == 1 else f"{count} turns leave"
    return [f"{turns} no room for an answer in the context, and are left out"] if count else []


def _facts(
    request: BenchRequest, plain: Engine, prepared: Prepared, params: SamplingParams
) -> dict[str, str]:
    machine = hardware(plain.target.device)
    placement = request.model.placement
    placed = f"backend {placement.backend}, dtype {placement.dtype}, kv_dtype {placement.kv_dtype}"
    made = ", ".join(f"{name} {version}" for name, version in versions().items())
    options = in_words(replace(params, temperature=1.0)).removeprefix("temperature 1")
    ends = ", end of text ignored" if params.ignore_eos else ""
    categories = ", ".join(dict.fromkeys(prompt.category for prompt in prepared.prompts))
    length = sum(len(prompt.token_ids) for prompt in prepared.prompts) / len(prepared.prompts)
    count = counted(len(prepared.prompts), "prompt")
    template = "the chat template" if prepared.template else "no template"
    return {
        "engine": f"{made}, {placed}",
        "machine": f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores, {machine['device']}",
        "sampling": f"at most {params.max_tokens} tokens{options}{ends}",
        "workload": f"{count} of {length:.0f} tokens by {template}: {categories}",
    }
