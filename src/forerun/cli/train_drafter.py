"""`forerun train draft | dspark | eagle3 | layer_skip | medusa`: a drafter for a model, from its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.asked import set_threads
from forerun.cli.bars import bars
from forerun.cli.completion import completion
from forerun.cli.config import config_option
from forerun.cli.derived import derived
from forerun.cli.flags import json_option, threads_option
from forerun.cli.options import Command, Option
from forerun.cli.param_types import FileName, Name
from forerun.cli.quiet import quiet_libraries
from forerun.cli.results import give
from forerun.cli.train_data import data_of
from forerun.options import pick
from forerun.training.settings import DRAFTER_SETTINGS, FinishSettings, named, settings_of

if TYPE_CHECKING:
    from forerun.training.drafter_run import DrafterRun
    from forerun.training.result import TrainingReport

_SECTION = "Training"


def train_drafter(kind: str, **values: Any) -> int:
    """Train a drafter and say how much of its drafts is accepted. 1 where a proof found a defect, else 0.

    Args:
        kind: of the drafter.
        values: of the options.
    """
    quiet_libraries()
    from forerun.training.drafter_run import DrafterRun
    from forerun.training.finish import finish
    from forerun.training.result import result_of

    set_threads(values)
    model = values["name"]
    settings, own = pick(settings_of(kind), values), pick(DRAFTER_SETTINGS[kind], values)
    in_the_end = pick(FinishSettings, values)
    out = Path(values["output"] or f"{PurePath(model).name or 'model'}-{kind}")
    data = values["data"] or [data_of(model, values["threads"])]
    try:
        with bars():
            run = DrafterRun(kind, own, settings, model, data, out, _show, values["begin_with"])
            # Nobody else trains in the directory before the last figure is written.
            with run.locked():
                _announce(run)
                run.run()
                if not run.processes.first:
                    return 0
                measured = finish(run, in_the_end)
                if in_the_end.prove:
                    measured = _prove(run, in_the_end.prove_tokens)
    except KeyboardInterrupt:
        click.echo(
            f"forerun: {out / 'training'} keeps the training; the same command goes on from its last "
            "saved step",
            err=True,
        )
        raise
    return give(result_of(run.kind, str(out), measured), values, run.target.device)


def _announce(run: DrafterRun) -> None:
    """Say before a training what it does and how long it takes."""
    if run.processes.first:
        settings, count = run.settings, run.report.conversations["trained on"]
        tokens = "" if settings.tokens is None else f", or {settings.tokens} tokens"
        click.echo(
            f"forerun: training on {count} conversations for {settings.minutes:g} minutes at most{tokens}; "
            f"the best weights so far are in {run.out}",
            err=True,
        )


def _prove(run: DrafterRun, num_tokens: int) -> Mapping[str, Any]:
    """The content of forerun.json with what was proven."""
    from forerun.cli.train_proof import prove_trained
    from forerun.proof.certificate import certificate
    from forerun.training.finish import add_proofs

    proofs = prove_trained(run, num_tokens)
    return add_proofs(run, proofs, "\n".join(map(certificate, proofs)))


def _show(report: TrainingReport, loss: float, rate: float) -> None:
    """A line after each validation, on standard error."""
    minutes, tokens, length = report.curve[-1]
    click.echo(
        f"forerun: {minutes:.1f} min, {tokens} tokens ({rate:.0f}/s), loss {loss:.3f}, "
        f"acceptance length {length:.3f} (best {report.mean_length:.3f})",
        err=True,
    )


def command_for(kind: str) -> Command:
    """The command that trains drafters of a kind."""

    def train(**values: Any) -> int:
        return train_drafter(kind, **values)

    layout = {
        "draft": "as transformers reads them, the tokenizer",
        "layer_skip": "in a layout of forerun's own",
    }.get(kind, "in the published layout")
    return Command(
        kind,
        params=_options(kind),
        callback=train,
        help=f"""Train {named(kind)} for MODEL from its own answers.

        MODEL is a checkpoint's directory, a GGUF file, a hub id, zoo or smollm2; its answers are what
        'forerun train data MODEL' has written, which it does first where nothing is. Training shows the
        expected acceptance length on held-out conversations, computed from the probabilities of both,
        keeps the best weights, and ends where it grows no more. The directory holds config.json and
        model.safetensors
        {layout}, forerun.json and a card. The same command goes on where an earlier run has ended.
        """,
        example=f"forerun train {kind} smollm2 --minutes 60",
    )


def _options(kind: str) -> Sequence[click.Parameter]:
    return [
        click.Argument(["name"], type=Name(), metavar="MODEL", shell_complete=completion("model")),
        Option(
            "data",
            _SECTION,
            type=FileName(),
            multiple=True,
            help="What 'forerun train data' has written; left out, MODEL-data.jsonl. Repeatable.",
        ),
        Option(
            "output",
            _SECTION,
            type=FileName(),
            metavar="DIR",
            help=f"Where to write, and to go on; left out, MODEL-{kind}.",
        ),
        Option(
            "begin_with",
            _SECTION,
            type=FileName(),
            metavar="DIR",
            help="Begin with the weights of this drafter, of the same shape.",
        ),
        *derived(settings_of(kind), _SECTION),
        *derived(DRAFTER_SETTINGS[kind], "Draft model" if kind == "draft" else f"Head {kind}"),
        *derived(FinishSettings, "In the end"),
        threads_option(_SECTION),
        json_option(),
        config_option(),
    ]
