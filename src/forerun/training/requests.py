"""Requests of `forerun train`: data from a model's own answers, and a drafter of each kind for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from forerun.engine.chat import TemplateOptions
from forerun.engine.options import ModelOptions, set_threads
from forerun.errors import TrainingError, shown
from forerun.files import printable
from forerun.flag_values import from_variables
from forerun.flags import Given, request_from
from forerun.measure.questions import FILES
from forerun.options import FileName, NoOptions, Text, option, options, part
from forerun.progress import say
from forerun.report.result import Result
from forerun.training.settings import (
    DataSettings,
    DrafterSettings,
    DraftSettings,
    Eagle3Settings,
    HeadSettings,
    MedusaSettings,
)

if TYPE_CHECKING:
    from forerun.training.data import DataRun, Summary


# Tokens of a prompt and its answer, where the model has as many.
CONTEXT = 2048


@options
class DataRequest:
    """Have a model write and answer prompts to train drafters on.

    MODEL is a checkpoint's directory, a GGUF file, a hub id, zoo or smollm2. A chat model writes prompts
    from an empty user turn and answers them in its chat template. A base model writes beginnings of texts
    and continues them. Either can answer questions from files instead. Repeated prompts and those of an
    evaluation are left out. Every answer is a line of JSON with its token ids. The same command resumes an
    earlier run and appends to its file.
    """

    output: FileName | None = option(
        default=None,
        description="File to write and to resume; by default MODEL-data.jsonl.",
        section="Data",
    )
    questions: tuple[FileName, ...] = option(
        default=(), description=f"Questions to answer: {FILES}", repeat=True
    )
    keep_out: tuple[FileName, ...] = option(
        default=(),
        description=f"Questions to leave out, found by their text or by runs of words: {FILES}",
        repeat=True,
    )
    settings: DataSettings = part(default=DataSettings, section="Data")
    batch_size: int = Field(default=32, ge=1, description="Requests that run at once.")
    template: TemplateOptions = part(
        default=TemplateOptions, section="Prompt", without=("show_prompt",)
    )
    model: ModelOptions = part(
        default=ModelOptions,
        section="Model",
        without=("kv_dtype",),
        argument="model",
        help={
            "max_context": f"Maximum tokens of prompt and answer; by default the model's, up to {CONTEXT}."
        },
    )


def run(request: DataRequest) -> Result:
    """Write a file of conversations, and summarize it.

    Raises:
        TrainingError: for a file of something else, or answers that have no room.
    """
    output = request.output or _file_of(request.model.model)
    if not Path(output).exists() and Path(f"{output}.part").exists():
        say(
            f"{output}.part is what an interrupted 'forerun train' has written; rename it to {output} to "
            "go on from it"
        )
    with _open(request, output) as data:
        summary = _written(data, output)
    content = {"output": output, **summary.as_dict()}
    return Result(
        settings=data.making, content=content, answers=_in_words(content), device=data.device
    )


def data_of(model: str, threads: int | None) -> str:
    """The file that `forerun train data MODEL` writes; where there is none the model writes it now.

    An interrupted one has another name until it is whole, and goes on.

    Raises:
        TrainingError: for a file of that name with another model's answers.
    """
    file = _file_of(model)
    if Path(file).exists():
        _refuse_other_model(file, model)
        return file
    values = {**from_variables(DataRequest), "model": model, "threads": threads}
    request, part_file = request_from(DataRequest, Given(values)), f"{file}.part"
    with _open(request, part_file) as data:
        say(f"{model} writes {file} first: {data.wanted} conversations to be trained on")
        _written(data, part_file)
    Path(part_file).replace(file)
    return file


def _refuse_other_model(file: str, model: str) -> None:
    from forerun.training.conversations import RECORDS

    header = RECORDS.read_header(file)
    written = header.get("model", model)
    if written != model:
        raise TrainingError(
            f"{printable(file)} holds answers of {shown(written)}; name files with --data, or work in "
            "another directory."
        )


def _file_of(model: str) -> str:
    return f"{PurePath(model).name or 'model'}-data.jsonl"


def _open(request: DataRequest, output: str) -> DataRun:
    from forerun.measure.questions import read_questions
    from forerun.training.data import DataRun

    questions = read_questions(request.questions) if request.questions else None
    keep_out = read_questions(request.keep_out)
    checkpoint = request.model.open()
    context = request.model.max_context or min(CONTEXT, checkpoint.summary.max_context)
    engine = request.model.load(
        checkpoint, None, max_context=context, max_batch_size=request.batch_size
    )
    return DataRun(
        engine,
        output,
        request.settings,
        model=request.model.model,
        questions=questions,
        keep_out=keep_out,
        system=request.template.system,
        variables=request.template.template_var,
    )


def _written(data: DataRun, output: str) -> Summary:
    """The summary of a file after all that is missing was written."""
    if data.summary.conversations:
        say(f"going on after {data.summary.conversations} conversations in {output}")
    try:
        return data.run()
    except KeyboardInterrupt:
        say(
            f"{data.summary.conversations} conversations are in {output}; the same command goes on from "
            "there"
        )
        raise


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


@options
class TrainRequest:
    """A drafter for a model, from the model's own answers."""

    kind: ClassVar[str]
    more: ClassVar[
        str
    ] = """MODEL is a checkpoint's directory, a GGUF file, a hub id, zoo or smollm2. The data are its own
    answers, written by 'forerun train data MODEL', which runs first if there are none. Training shows
    the expected acceptance length on held-out conversations, computed from the probabilities of both
    models, keeps the best weights, and stops when that length no longer grows. The same command
    resumes an earlier run.
    """

    model: Text = option(
        description="The target, whose answers are learned.", section="Training", argument=True
    )
    data: tuple[FileName, ...] = option(
        default=(),
        description="File of 'forerun train data'; by default MODEL-data.jsonl.",
        repeat=True,
    )
    output: FileName | None = Field(
        default=None,
        description="Directory to write and to resume from; by default MODEL-KIND.",
    )
    begin_with: FileName | None = Field(
        default=None,
        description="Start from the weights of this drafter, which has the same shape.",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        description="CPU threads; by default torch's own number.",
    )
    training: DrafterSettings = part(default=DrafterSettings, section="Training")
    own: Any = part(default=NoOptions)


@options
class DraftModelRequest(TrainRequest):
    """Train a draft model for MODEL: a small one, distilled from MODEL's own answers.

    The directory holds config.json and model.safetensors as transformers reads them, the tokenizer,
    forerun.json and a card.
    """

    kind: ClassVar[str] = "draft"
    own: DraftSettings = part(default=DraftSettings, section="Draft model")


@options
class Eagle3Request(TrainRequest):
    """Train an eagle3 head for MODEL from its own answers.

    The directory holds config.json and model.safetensors in the published layout, forerun.json and a card.
    """

    kind: ClassVar[str] = "eagle3"
    training: HeadSettings = part(default=HeadSettings, section="Training")
    own: Eagle3Settings = part(default=Eagle3Settings, section="Head eagle3")


@options
class MedusaRequest(TrainRequest):
    """Train a medusa head for MODEL from its own answers.

    The directory holds config.json and model.safetensors in the published layout, forerun.json and a card.
    """

    kind: ClassVar[str] = "medusa"
    training: HeadSettings = part(default=HeadSettings, section="Training")
    own: MedusaSettings = part(default=MedusaSettings, section="Head medusa")


def train(request: TrainRequest) -> Result:
    """A trained drafter, and how much of its drafts is accepted.

    Raises:
        TrainingError: for data, shapes or a directory that do not fit.
    """
    from forerun.training.drafter_run import DrafterRun
    from forerun.training.result import result_of

    set_threads(request.threads)
    kind, model = request.kind, request.model
    out = Path(request.output or f"{PurePath(model).name or 'model'}-{kind}")
    data = request.data or (data_of(model, request.threads),)
    try:
        run = DrafterRun(kind, request.own, request.training, model, data, out, request.begin_with)
        run.run()
    except KeyboardInterrupt:
        say(
            f"{out / 'training'} keeps the training; the same command goes on from its last saved step"
        )
        raise
    return replace(result_of(run.kind, str(out), run.content()), device=run.target.device)
