"""Request of `forerun roofline`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from forerun.engine.model_options import DEFAULT_MODEL, DEFAULT_SHOWN, ModelOptions
from forerun.options import UNIQUE, Text, option, options, part
from forerun.simulation.request import ELSEWHERE, HardwareOptions

if TYPE_CHECKING:
    from forerun.report.result import Result

_Tokens = Annotated[int, Field(ge=1, le=512)]
_Context = Annotated[int, Field(ge=0, le=1 << 17)]


@options
class RooflineRequest:
    """Bounds of a model's forwards here: memory or arithmetic, and from how many tokens on.

    Measures the machine's reads and multiply-adds, and forwards of 1 to 64 tokens, in turns: how many
    tokens are checked for the time of one, and what a draft costs. With --hardware, or --bandwidth and
    --flops, nothing is run: the forwards follow from published limits and the model's config.

    A model is a checkpoint's directory, a GGUF file, a hub id, zoo or smollm2; with --hardware also a
    config.json, a known model such as llama-3.1-70b, or a count such as 70B.
    """

    model: Text = option(
        default=DEFAULT_MODEL, shown=DEFAULT_SHOWN, description="The target.", section="Model"
    )
    draft_model: Text | None = Field(
        default=None,
        description="A draft model beside it; left out, the known one of the model, if there is one.",
    )
    place: ModelOptions = part(
        default=ModelOptions,
        section="Model",
        without=("model", "max_context", "kv_dtype"),
        excludes=dict.fromkeys(("device", "backend", "threads"), ELSEWHERE),
    )
    draft_dtype: Text = Field(
        default="auto",
        description="Precision of the draft model; auto as `forerun generate` keeps it.",
    )
    tokens: Annotated[tuple[_Tokens, ...], UNIQUE] = option(
        default=(1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64),
        description="Of a forward that checks drafts; 1 is always among them.",
        section="Forwards (lists: 1,2,4; integers also 1-8 and 4k)",
    )
    contexts: Annotated[tuple[_Context, ...], UNIQUE] = Field(
        default=(128, 4096), description="Tokens in the cache before it."
    )
    rounds: int = option(
        default=5,
        ge=1,
        le=10_000,
        description="Times that everything is measured, in alternation.",
        excludes=ELSEWHERE,
    )
    machine: HardwareOptions = part(default=HardwareOptions, section="Hardware")

    @property
    def counts(self) -> list[int]:
        """The tokens of forwards, rising."""
        return sorted({1, *self.tokens})


def run(request: RooflineRequest) -> Result:
    """The forwards of a model below the limits of this machine, or of other hardware."""
    from forerun.bench.roofline.report import report_of

    if request.machine.named:
        from forerun.bench.roofline.predicted import predict

        return report_of(predict(request))
    from forerun.bench.roofline.measured import load_models, measure

    target, draft = load_models(request)
    return report_of(measure(request, target, draft), target.device)
