"""The run of `forerun bench`: engines, prompts and the session, and the facts that its report states."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forerun.bench.bandwidth import Bandwidth
from forerun.bench.contestants import Drafting
from forerun.bench.engines import Workshop
from forerun.bench.opponents import Invitation, Opponents, files_of, invited
from forerun.bench.prompts import Prepared
from forerun.bench.report import BenchReport
from forerun.bench.request import BenchRequest
from forerun.bench.rows import ROWS, MeasuredPair, PairKey
from forerun.bench.session import BenchSession
from forerun.bench.settings import DEFAULT, Axes, Crossed, cross, likely_methods
from forerun.bench.tables import result_of
from forerun.bench.workloads import built_in
from forerun.engine.engine import Engine
from forerun.engine.speculation_options import with_method_options
from forerun.errors import CheckpointError, ConfigError, PromptError
from forerun.files import printable
from forerun.measure.ledger import Ledger
from forerun.measure.questions import Question, in_turns, read_questions
from forerun.models import Checkpoint
from forerun.models.checkpoint import loading_once
from forerun.models.cpu.threads import threads_in_use
from forerun.models.placement import Placement
from forerun.options import changes
from forerun.params import SamplingParams, in_words
from forerun.progress import say
from forerun.report.machine import hardware, versions
from forerun.report.result import Interrupted, Result
from forerun.report.target_file import check_writable

_PLACEMENT = ("dtype", "device", "backend", "kv_dtype")


def answer(request: BenchRequest) -> Result:
    """The result of the command; see `forerun.bench.request.run`."""
    for name in ("rows", "resume"):
        if (file := getattr(request, name)) is not None:
            check_writable(f"--{name}", file)
    questions = questions_of(request)
    crossed = _crossed(request)
    checkpoint = request.model.open()
    with measuring(request, checkpoint, crossed, questions) as bench:
        try:
            bench.run()
        except KeyboardInterrupt:
            bench.notes.append("interrupted: these are the pairs that were measured until then")
            raise Interrupted(_result(request, bench)) from None
        return _result(request, bench)


def questions_of(request: BenchRequest) -> list[Question]:
    """The workload.

    Raises:
        PromptError: if the file is missing, or a line is not a question.
    """
    if not request.prompts:
        return in_turns(built_in(request.workloads), request.limit)
    bad: list[PromptError] = []
    on_bad = bad.append if request.skip_bad else None
    questions = read_questions(request.prompts, on_bad, by_file=request.by_file)
    if bad:
        lines = "1 line is" if len(bad) == 1 else f"{len(bad)} lines are"
        say(f"warning: {lines} no question and left out: {bad[0]}")
    return in_turns(questions, request.limit)


def _crossed(request: BenchRequest) -> Crossed:
    target, rules = request.model.model, request.rules
    axes = Axes(
        methods=request.methods or likely_methods(target, request.draft_model),
        lengths=request.lengths,
        trees=request.trees,
        nodes=request.tree_nodes,
        policies=request.policies,
        models=request.draft_model,
        common={
            "rejection_sample_method": rules.rejection_sample_method,
            "draft_sample_method": rules.draft_sample_method,
        },
        options=with_method_options(request.method_option, changes(request.corpus)),
    )
    return cross(axes, target)


def _result(request: BenchRequest, bench: BenchRun) -> Result:
    """The result of the pairs so far.

    Raises:
        ConfigError: if there are none.
    """
    report = bench.report(request.model.model)
    if not report.cells:
        why = "; ".join(report.remarks) or "no prompt was run"
        raise ConfigError(f"nothing was measured: {why}.")
    return replace(result_of(report), device=bench.session.plain.target.device)


@dataclass
class BenchRun:
    """A session, its rows so far, and what the report says beside them.

    Args:
        session: to be run.
        rows: of an earlier session, and those that come.
        file: that they are added to.
        facts, exactness, peers, notes: as the report has them.
    """

    session: BenchSession
    rows: list[MeasuredPair]
    file: Ledger[MeasuredPair] | None
    facts: Mapping[str, str]
    exactness: Mapping[str, str]
    peers: Mapping[str, Mapping[str, Any]]
    notes: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Measure all that is missing; an interruption leaves the rows until then."""
        for row in self.session.run():
            self.rows.append(row)
            self._save(row)

    def _save(self, row: MeasuredPair) -> None:
        if self.file is None:
            return
        try:
            self.file.append([row])
        except ConfigError as error:
            # The measurements are worth more than the file.
            self.file = None
            say(f"warning: {error}")
            self.notes.append(str(error))

    def report(self, model: str) -> BenchReport:
        """The report of the rows so far."""
        return BenchReport(
            model=model,
            command=shlex.join(["forerun", *sys.argv[1:]]),
            facts=self.facts,
            rows=self.rows,
            exactness=self.exactness,
            peers=self.peers,
            notes=[*self.notes, *self.session.notes, *self._of_policies()],
            bandwidth=self.session.bandwidth,
        )

    def _of_policies(self) -> list[str]:
        """Sentences on what policies decided in this session, and which drafters they gave up."""
        ours = (entry for entry in self.session.contestants if isinstance(entry, Drafting))
        return [note for entry in ours for note in entry.notes]


@contextmanager
def measuring(
    request: BenchRequest, checkpoint: Checkpoint, crossed: Crossed, questions: Sequence[Question]
) -> Iterator[BenchRun]:
    """A session that is ready to run."""
    params = replace(request.sampling, temperature=request.temperatures[0])
    placement = {name: getattr(request.model, name) for name in _PLACEMENT}
    workshop = Workshop(checkpoint, placement, request.model.max_context)
    batch = max(request.batch_sizes)
    with ExitStack() as stack:
        with loading_once():
            prepared = workshop.prepare(
                questions,
                params,
                raw=request.raw,
                system=request.system,
                variables=dict(request.template_var) or None,
            )
            plain = workshop.engine(False, prepared, params, batch)
            drafting = workshop.drafting(crossed.settings, prepared, params, batch)
            contestants = stack.enter_context(drafting)
        facts = _facts(request, plain, prepared, params) | _default_fact(crossed)
        done: dict[PairKey, MeasuredPair] = {}
        file = _rows_file(request, facts, lambda row: done.update({row.key: row}))
        if file is not None:
            stack.enter_context(file)
        exactness = {entry.name: str(entry.engine.exactness) for entry in contestants}
        opponents = stack.enter_context(_opponents(request, workshop, crossed, prepared))
        session = BenchSession(
            plain,
            [*contestants, *opponents.contestants],
            prepared.prompts,
            params,
            request.temperatures,
            request.batch_sizes,
            request.minutes,
            done,
            bandwidth=_bandwidth(plain, prepared, params),
        )
        notes = [
            *crossed.notes,
            *_left_out(prepared.too_long),
            *_other_caches(request),
            *opponents.notes,
        ]
        rows = session.usable()
        yield BenchRun(session, rows, file, facts, exactness, opponents.facts, notes)


@contextmanager
def _opponents(
    request: BenchRequest, workshop: Workshop, crossed: Crossed, prepared: Prepared
) -> Iterator[Opponents]:
    """The engines of `--against`; none without."""
    if not request.against:
        yield Opponents()
        return
    checkpoint = workshop.checkpoint
    models = [s.config.model for s in crossed.settings if s.config.method == "draft_model"]
    drafts = [files_of(Checkpoint.open(model)) for model in models if model is not None]
    invitation = Invitation(
        names=request.against,
        checkpoint=checkpoint,
        precision=checkpoint.run_config(Placement(**workshop.placement)).precision,
        threads=threads_in_use(),
        cache=Path(request.peers_cache or Path.home() / ".cache" / "forerun" / "peers"),
        draft=drafts[0] if drafts else None,
        python=request.peers_python,
        limit=request.peers_limit,
    )
    with invited(invitation, prepared.prompts) as opponents:
        yield opponents


def _bandwidth(plain: Engine, prepared: Prepared, params: SamplingParams) -> Bandwidth | None:
    lengths = [len(prompt.token_ids) for prompt in prepared.prompts]
    middle = sum(lengths) // len(lengths) + (params.max_tokens or 1) // 2
    try:
        return Bandwidth.of(plain.target, middle)
    except CheckpointError:
        return None  # The shape of the model is unknown.


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


def _rows_file(
    request: BenchRequest, facts: Mapping[str, str], see: Callable[[MeasuredPair], None]
) -> Ledger[MeasuredPair] | None:
    name = request.resume or request.rows
    if name is None:
        return None
    if request.resume is None and Path(name).exists():
        raise ConfigError(
            f"{printable(name)} exists; go on with --resume {printable(name)}, or name another file."
        )
    compared = {key: facts[key] for key in ("engine", "machine", "sampling")}
    header = {"model": request.model.model, **compared}
    return Ledger(name, ROWS, header, see)


def _facts(
    request: BenchRequest, plain: Engine, prepared: Prepared, params: SamplingParams
) -> dict[str, str]:
    machine = hardware(plain.target.device)
    made = ", ".join(f"{name} {version}" for name, version in versions().items())
    options = in_words(replace(params, temperature=1.0)).removeprefix("temperature 1")
    ends = ", end of text ignored" if params.ignore_eos else ""
    categories = ", ".join(dict.fromkeys(prompt.category for prompt in prepared.prompts))
    length = sum(len(prompt.token_ids) for prompt in prepared.prompts) / len(prepared.prompts)
    template = "the chat template" if prepared.template else "no template"
    return {
        "engine": f"{made}, {_placed(request)}",
        "machine": f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores, {machine['device']}",
        "sampling": f"at most {params.max_tokens} tokens{options}{ends}",
        "workload": f"{len(prepared.prompts)} prompts of {length:.0f} tokens by {template}: {categories}",
    }


def _placed(request: BenchRequest) -> str:
    """Backend and precisions of the target, as they were asked for."""
    return ", ".join(
        f"{name} {getattr(request.model, name)}" for name in ("backend", "dtype", "kv_dtype")
    )


def _other_caches(request: BenchRequest) -> list[str]:
    """A note on what differs where other engines take part."""
    if request.model.kv_dtype == "auto" or not request.against:
        return []
    return [
        f"kv_dtype {request.model.kv_dtype} is forerun's alone; other engines keep keys and values as they "
        "do by default, in the precision that their settings name"
    ]
