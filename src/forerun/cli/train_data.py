"""`forerun train data`: prompts and answers to train drafters on, from the model itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.asked import load_engine, open_checkpoint
from forerun.cli.bars import bars
from forerun.cli.completion import completion
from forerun.cli.config import config_option
from forerun.cli.derived import derived
from forerun.cli.flags import (
    AT_LEAST_ONE,
    json_option,
    model_options,
    questions_option,
    system_option,
    template_var_option,
)
from forerun.cli.options import Command, Option
from forerun.cli.param_types import FileName, Name
from forerun.cli.quiet import quiet_libraries
from forerun.cli.results import give
from forerun.errors import ConfigError, TrainingError, shown
from forerun.files import printable
from forerun.options import pick
from forerun.progress import Watch, watched_by
from forerun.report.result import Result
from forerun.training.records import RECORDS
from forerun.training.settings import DataSettings

if TYPE_CHECKING:
    from forerun.training.data import DataRun, Summary

BATCH_SIZE = 32
# Tokens of a prompt and its answer, where the model has as many.
CONTEXT = 2048
_SECTION = "Data"


@click.pass_context
def train_data(ctx: click.Context, /, **values: Any) -> None:
    """Have a model write and answer prompts to train drafters on.

    MODEL is a checkpoint's directory, a GGUF file, a hub id, zoo or smollm2. A chat model writes the
    prompts from an empty user turn and answers them in its chat template; a base model writes texts and
    goes on with them; or either answers the questions of files. Repeated prompts and those of an
    evaluation are left out. Every answer is a line of JSON with its token ids. The file grows: the same
    command goes on where an earlier run has ended.
    """
    _one_model(ctx, values)
    quiet_libraries()
    output = values["output"] or _file_of(values["model"])
    if not Path(output).exists() and Path(f"{output}.part").exists():
        click.echo(
            f"forerun: {output}.part is what an interrupted 'forerun train' has written; rename it to "
            f"{output} to go on from it",
            err=True,
        )
    with _open(values, output) as run:
        summary = _run(run, output)
    content = {"output": output, "settings": run.making, **summary.as_dict()}
    give(Result(content=content, answers=_in_words(content)), values, run.device)


def data_of(model: str, threads: int | None) -> str:
    """The file that `forerun train data MODEL` writes; where there is none the model writes it now.

    An interrupted one has another name until it is whole, and goes on.

    Raises:
        TrainingError: for a file of that name with another model's answers.
    """
    file = _file_of(model)
    # Of several processes none writes: they would write the same.
    if Path(file).exists() or "RANK" in os.environ:
        _refuse_other_model(file, model)
        return file
    # A config file is that of the training, with other keys.
    params = [option for option in command.params if option.name != "config"]
    asked = [] if threads is None else ["--threads", str(threads)]
    values = click.Command("data", params=params).make_context("data", [model, *asked]).params
    part = f"{file}.part"
    with _open({**values, "model": model}, part) as run:
        click.echo(
            f"forerun: {model} writes {file} first: {run.wanted} conversations to be trained on",
            err=True,
        )
        _run(run, part)
    Path(part).replace(file)
    return file


def _refuse_other_model(file: str, model: str) -> None:
    header = RECORDS.read_header(file)
    written = header.get("model", model)
    if written != model:
        raise TrainingError(
            f"{printable(file)} holds answers of {shown(written)}; name files with --data, or work in "
            "another directory."
        )


def _file_of(model: str) -> str:
    return f"{PurePath(model).name or 'model'}-data.jsonl"


def _one_model(ctx: click.Context, values: dict[str, Any]) -> None:
    """Take the argument for `--model`."""
    name = values.pop("name")
    if name is not None:
        source = ctx.get_parameter_source("model")
        if source is click.core.ParameterSource.COMMANDLINE and name != values["model"]:
            raise ConfigError(f"the model is {name!r} and {values['model']!r}; give one of them.")
        values["model"] = name


def _open(values: dict[str, Any], output: str) -> DataRun:
    from forerun.measure.questions import read_questions
    from forerun.training.data import DataRun

    questions = read_questions(values["questions"]) if values["questions"] else None
    keep_out = read_questions(values["keep_out"])
    settings = pick(DataSettings, values)
    checkpoint = open_checkpoint(values)
    context = values["max_context"] or min(CONTEXT, checkpoint.summary.max_context)
    engine = load_engine(
        values, checkpoint, None, max_context=context, max_batch_size=values["batch_size"]
    )
    return DataRun(
        engine,
        output,
        settings,
        model=values["model"],
        questions=questions,
        keep_out=keep_out,
        system=values["system"],
        variables=dict(values["template_var"] or ()),
    )


def _run(run: DataRun, output: str) -> Summary:
    if run.summary.conversations:
        click.echo(
            f"forerun: going on after {run.summary.conversations} conversations in {output}",
            err=True,
        )
    try:
        with bars() as watch, watched_by(_TimeLeft(watch)):
            return run.run()
    except KeyboardInterrupt:
        click.echo(
            f"forerun: {run.summary.conversations} conversations are in {output}; the same command goes "
            "on from there",
            err=True,
        )
        raise


class _TimeLeft:
    """A watcher that says once, after a twentieth of the work, how long the rest takes.

    Args:
        watch: the watcher that is told as well.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch, self._began, self._said = watch, perf_counter(), False
        self._first: int | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        self._watch(what, done, total)
        if self._first is None:
            self._first = done
        new = done - self._first
        if self._said or 20 * new < total:
            return
        self._said = True
        minutes = (perf_counter() - self._began) * (total - done) / new / 60
        if minutes >= 1:
            click.echo(
                f"forerun: {total - done} more {what}, about {minutes:.0f} minutes", err=True
            )


def _in_words(content: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{content['output']}: {content['conversations']} conversations, {content['answers']} answers "
        f"of {content['answer_tokens']} tokens ({content['greedy']} greedy), after prompts of "
        f"{content['prompt_tokens']}"
    ]
    if content["skipped"]:
        reasons = ", ".join(f"{count} {name}" for name, count in sorted(content["skipped"].items()))
        lines.append(f"left out: {reasons}")
    if content["new_conversations"]:
        lines.append(
            f"this run: {content['new_conversations']} conversations, {content['new_tokens']} tokens in "
            f"{content['seconds']:.0f} s, {content['tokens_per_second']:.0f} a second"
        )
    return lines


def _options() -> list[click.Parameter]:
    return [
        click.Argument(
            ["name"],
            type=Name(),
            required=False,
            metavar="[MODEL]",
            shell_complete=completion("model"),
        ),
        Option(
            "output",
            _SECTION,
            type=FileName(),
            help="Where to write, and to go on; left out, MODEL-data.jsonl.",
        ),
        questions_option("questions", _SECTION, "Questions to answer"),
        questions_option(
            "keep_out", _SECTION, "Questions to leave out, by text and by runs of words"
        ),
        *derived(DataSettings, _SECTION),
        Option(
            "batch_size",
            _SECTION,
            type=AT_LEAST_ONE,
            default=BATCH_SIZE,
            help="Requests that run at once.",
        ),
        system_option(),
        template_var_option(),
        *model_options(
            context=f"Tokens of prompt and answer at most; left out, the model's up to {CONTEXT}."
        ),
        json_option(),
        config_option(),
    ]


command = Command(
    "data",
    params=_options(),
    callback=train_data,
    example="forerun train data smollm2 --keep-out questions.jsonl",
    assumed="with texts that zoo writes, into zoo-data.jsonl",
)
