"""Requests of `forerun train`: a drafter of each kind for a model, from its own answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, ClassVar

from pydantic import Field

from forerun.engine.model_options import set_threads
from forerun.options import FileName, NoOptions, Text, option, options, part
from forerun.progress import say
from forerun.report.result import Result
from forerun.training.data_request import data_of
from forerun.training.settings import (
    DrafterSettings,
    DraftSettings,
    Eagle3Settings,
    HeadSettings,
    MedusaSettings,
)


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
