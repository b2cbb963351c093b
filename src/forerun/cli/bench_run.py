"""What `forerun bench` runs: engines, prompts and the session, and the facts that its report states."""

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
from forerun.bench.rows import ROWS, MeasuredPair, PairKey
from forerun.bench.session import BenchSession
from forerun.bench.settings import DEFAULT, Crossed
from forerun.cli.bars import bars
from forerun.cli.options import warn
from forerun.cli.panel import sampling
from forerun.engine.engine import Engine
from forerun.errors import CheckpointError, ConfigError
from forerun.files import printable
from forerun.measure.ledger import Ledger
from forerun.measure.questions import Question
from forerun.models import Checkpoint
from forerun.models.checkpoint import loading_once
from forerun.models.cpu.threads import threads_in_use
from forerun.models.placement import Placement
from forerun.params import SamplingParams
from forerun.report.machine import hardware, versions


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
        with bars():
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
            warn(str(error))
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
        """What policies have decided in this session, and which drafters they gave up."""
        ours = (entry for entry in self.session.contestants if isinstance(entry, Drafting))
        return [note for entry in ours for note in entry.notes]


@contextmanager
def measuring(
    values: Mapping[str, Any],
    checkpoint: Checkpoint,
    crossed: Crossed,
    questions: Sequence[Question],
    params: SamplingParams,
) -> Iterator[BenchRun]:
    """A session that is ready to run.

    Args:
        values: of the options.
    """
    placement = {name: values[name] for name in ("dtype", "device", "backend", "kv_dtype")}
    workshop = Workshop(checkpoint, placement, values["max_context"])
    batch = max(values["batch_sizes"])
    with ExitStack() as stack:
        with loading_once(), bars():
            prepared = workshop.prepare(
                questions,
                params,
                raw=values["raw"],
                system=values["system"],
                variables=dict(values["template_var"]) or None,
            )
            plain = workshop.plain(prepared, params, batch)
            drafting = workshop.drafting(crossed.settings, prepared, params, batch)
            contestants = stack.enter_context(drafting)
        facts = _facts(values, plain, prepared, params) | _default_fact(crossed)
        done: dict[PairKey, MeasuredPair] = {}
        file = _rows_file(values, facts, lambda row: done.update({row.key: row}))
        if file is not None:
            stack.enter_context(file)
        exactness = {entry.name: str(entry.engine.exactness) for entry in contestants}
        opponents = stack.enter_context(_opponents(values, workshop, crossed, prepared))
        session = BenchSession(
            plain,
            [*contestants, *opponents.contestants],
            prepared.prompts,
            params,
            values["temperatures"],
            values["batch_sizes"],
            values["minutes"],
            done,
            bandwidth=_bandwidth(plain, prepared, params),
        )
        notes = [
            *crossed.notes,
            *_left_out(prepared.too_long),
            *_other_caches(values),
            *opponents.notes,
        ]
        rows = session.usable()
        yield BenchRun(session, rows, file, facts, exactness, opponents.facts, notes)


@contextmanager
def _opponents(
    values: Mapping[str, Any], workshop: Workshop, crossed: Crossed, prepared: Prepared
) -> Iterator[Opponents]:
    """The engines of `--against`; none without."""
    if not values["against"]:
        yield Opponents()
        return
    checkpoint = workshop.checkpoint
    models = [s.config.model for s in crossed.settings if s.config.method == "draft_model"]
    drafts = [files_of(Checkpoint.open(model)) for model in models if model is not None]
    invitation = Invitation(
        names=values["against"],
        checkpoint=checkpoint,
        precision=checkpoint.run_config(Placement(**workshop.placement)).precision,
        threads=threads_in_use(),
        cache=Path(values["peers_cache"] or Path.home() / ".cache" / "forerun" / "peers"),
        draft=drafts[0] if drafts else None,
        python=values["peers_python"],
        limit=values["peers_limit"],
    )
    with ExitStack() as stack:
        with bars():
            opponents = stack.enter_context(invited(invitation, prepared.prompts))
        yield opponents


def _bandwidth(plain: Engine, prepared: Prepared, params: SamplingParams) -> Bandwidth | None:
    lengths = [len(prompt.token_ids) for prompt in prepared.prompts]
    middle = sum(lengths) // len(lengths) + (params.max_tokens or 1) // 2
    try:
        return Bandwidth.of(plain.target, middle)
    except CheckpointError:
        return None  # The shape of the model is unknown.


def _default_fact(crossed: Crossed) -> dict[str, str]:
    """What the setting called default stands for."""
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
    values: Mapping[str, Any], facts: Mapping[str, str], see: Callable[[MeasuredPair], None]
) -> Ledger[MeasuredPair] | None:
    name = values["resume"] or values["rows"]
    if name is None:
        return None
    if values["resume"] is None and Path(name).exists():
        raise ConfigError(
            f"{printable(name)} exists; go on with --resume {printable(name)}, or name another file."
        )
    compared = {key: facts[key] for key in ("engine", "machine", "sampling")}
    header = {"model": values["model"], **compared}
    return Ledger(name, ROWS, header, see)


def _facts(
    values: Mapping[str, Any], plain: Engine, prepared: Prepared, params: SamplingParams
) -> dict[str, str]:
    machine = hardware(plain.target.device)
    made = ", ".join(f"{name} {version}" for name, version in versions().items())
    options = sampling(replace(params, temperature=1.0), ()).removeprefix("temperature 1")
    ends = ", end of text ignored" if params.ignore_eos else ""
    categories = ", ".join(dict.fromkeys(prompt.category for prompt in prepared.prompts))
    length = sum(len(prompt.token_ids) for prompt in prepared.prompts) / len(prepared.prompts)
    template = "the chat template" if prepared.template else "no template"
    return {
        "engine": f"{made}, {_placed(values)}",
        "machine": f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores, {machine['device']}",
        "sampling": f"at most {params.max_tokens} tokens{options}{ends}",
        "workload": f"{len(prepared.prompts)} prompts of {length:.0f} tokens by {template}: {categories}",
    }


def _placed(values: Mapping[str, Any]) -> str:
    """How the target runs, as it was asked for."""
    return ", ".join(f"{name} {values[name]}" for name in ("backend", "dtype", "kv_dtype"))


def _other_caches(values: Mapping[str, Any]) -> list[str]:
    """What is not alike where other engines take part."""
    if values["kv_dtype"] == "auto" or not values["against"]:
        return []
    return [
        f"kv_dtype {values['kv_dtype']} is forerun's alone; other engines keep keys and values as they do "
        "by default, in the precision that their settings name"
    ]
