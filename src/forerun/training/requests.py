"""Requests of `forerun train`: a drafter of each kind for a model, from its own answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from forerun.engine.model_options import set_threads
from forerun.options import FileName, NoOptions, Text, option, options, part
from forerun.progress import say
from forerun.report.result import Result
from forerun.training.data_request import data_of
from forerun.training.settings import (
    DrafterSettings,
    DraftSettings,
    DSparkSettings,
    Eagle3Settings,
    FinishSettings,
    HeadSettings,
    LayerSkipSettings,
    MedusaSettings,
)

if TYPE_CHECKING:
    from forerun.training.drafter_run import DrafterRun
    from forerun.training.result import TrainingReport


@options
class TrainRequest:
    """A drafter for a model, from the model's own answers."""

    kind: ClassVar[str]
    more: ClassVar[str] = """

        MODEL is a checkpoint's directory, a GGUF file, a hub id, zoo or smollm2; its answers are what
        'forerun train data MODEL' has written, which it does first where nothing is. Training shows the
        expected acceptance length on held-out conversations, computed from the probabilities of both,
        keeps the best weights, and ends where it grows no more. The same command goes on where an earlier
        run has ended.
        """

    model: Text = option(
        description="The target, whose answers are learned.", section="Training", argument=True
    )
    data: tuple[FileName, ...] = option(
        default=(),
        description="What 'forerun train data' has written; left out, MODEL-data.jsonl.",
        repeat=True,
    )
    output: FileName | None = Field(
        default=None,
        description="Where to write, and to go on; left out, MODEL and the kind of drafter.",
    )
    begin_with: FileName | None = Field(
        default=None, description="Begin with the weights of this drafter, of the same shape."
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        description="Threads of the CPU, its cores at most; torch's own number.",
    )
    training: DrafterSettings = part(default=DrafterSettings, section="Training")
    own: Any = part(default=NoOptions)
    in_the_end: FinishSettings = part(default=FinishSettings, section="In the end")


@options
class DraftModelRequest(TrainRequest):
    """Train a draft model for MODEL: a small one, distilled from MODEL's own answers.

    The directory holds config.json and model.safetensors as transformers reads them, the tokenizer,
    forerun.json and a card.
    """

    kind: ClassVar[str] = "draft"
    own: DraftSettings = part(default=DraftSettings, section="Draft model")


@options
class DSparkRequest(TrainRequest):
    """Train a dspark head for MODEL from its own answers.

    The directory holds config.json and model.safetensors in the published layout, forerun.json and a card.
    """

    kind: ClassVar[str] = "dspark"
    training: HeadSettings = part(default=HeadSettings, section="Training")
    own: DSparkSettings = part(default=DSparkSettings, section="Head dspark")


@options
class Eagle3Request(TrainRequest):
    """Train an eagle3 head for MODEL from its own answers.

    The directory holds config.json and model.safetensors in the published layout, forerun.json and a card.
    """

    kind: ClassVar[str] = "eagle3"
    training: HeadSettings = part(default=HeadSettings, section="Training")
    own: Eagle3Settings = part(default=Eagle3Settings, section="Head eagle3")


@options
class LayerSkipRequest(TrainRequest):
    """Train a layer_skip head for MODEL from its own answers: an adapter behind an early exit.

    The directory holds config.json and model.safetensors in a layout of forerun's own, forerun.json and a
    card.
    """

    kind: ClassVar[str] = "layer_skip"
    training: HeadSettings = part(default=HeadSettings, section="Training")
    own: LayerSkipSettings = part(default=LayerSkipSettings, section="Head layer_skip")


@options
class MedusaRequest(TrainRequest):
    """Train a medusa head for MODEL from its own answers.

    The directory holds config.json and model.safetensors in the published layout, forerun.json and a card.
    """

    kind: ClassVar[str] = "medusa"
    training: HeadSettings = part(default=HeadSettings, section="Training")
    own: MedusaSettings = part(default=MedusaSettings, section="Head medusa")


def train(request: TrainRequest) -> Result:
    """A trained drafter, and how much of its drafts is accepted; exit code 1 where a proof found a defect.

    Raises:
        TrainingError: for data, shapes or a directory that do not fit.
    """
    from forerun.training.drafter_run import DrafterRun
    from forerun.training.finish import finish
    from forerun.training.result import result_of

    set_threads(request.threads)
    kind, model, end = request.kind, request.model, request.in_the_end
    out = Path(request.output or f"{PurePath(model).name or 'model'}-{kind}")
    data = request.data or (data_of(model, request.threads),)
    try:
        run = DrafterRun(
            kind, request.own, request.training, model, data, out, _show, request.begin_with
        )
        # Nobody else trains in the directory before the last figure is written.
        with run.locked():
            _announce(run)
            run.run()
            if not run.processes.first:
                raise SystemExit(0)  # The first process gives the result.
            measured = finish(run, end)
            if end.prove:
                measured = _prove(run, end.prove_tokens)
    except KeyboardInterrupt:
        say(
            f"{out / 'training'} keeps the training; the same command goes on from its last saved step"
        )
        raise
    return replace(result_of(run.kind, str(out), measured), device=run.target.device)


def _announce(run: DrafterRun) -> None:
    """Say before a training what it does and how long it takes."""
    if run.processes.first:
        settings, count = run.settings, run.report.conversations["trained on"]
        tokens = "" if settings.tokens is None else f", or {settings.tokens} tokens"
        say(
            f"training on {count} conversations for {settings.minutes:g} minutes at most{tokens}; "
            f"the best weights so far are in {run.out}"
        )


def _prove(run: DrafterRun, num_tokens: int) -> Mapping[str, Any]:
    """The content of forerun.json with the proofs."""
    from forerun.proof.certificate import certificate
    from forerun.training.finish import add_proofs
    from forerun.training.proven import prove_trained

    proofs = prove_trained(run, num_tokens)
    return add_proofs(run, proofs, "\n".join(map(certificate, proofs)))


def _show(report: TrainingReport, loss: float, rate: float) -> None:
    """Say the state after each validation."""
    minutes, tokens, length = report.curve[-1]
    say(
        f"{minutes:.1f} min, {tokens} tokens ({rate:.0f}/s), loss {loss:.3f}, "
        f"acceptance length {length:.3f} (best {report.mean_length:.3f})"
    )
