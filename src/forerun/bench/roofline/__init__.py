"""`forerun roofline`: the limits of a machine, and where a model's forwards lie below them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from forerun.engine.options import ModelOptions
from forerun.options import UNIQUE, Text, option, options, part

if TYPE_CHECKING:
    from forerun.report.result import Result

_Tokens = Annotated[int, Field(ge=1, le=512)]
_Context = Annotated[int, Field(ge=0, le=1 << 17)]


@options
class RooflineRequest:
    """Bounds of a model's forwards here: memory or arithmetic, and from how many tokens on.

    Measures the machine's reads and multiply-adds, and forwards of 1 to 64 tokens, in turns: how many
    tokens are checked for the time of one, and what a draft costs. Limits
    of a GPU are published ones. For other hardware there is `forerun simulate --hardware`.
    """

    model: ModelOptions = part(
        default=ModelOptions,
        section="Model",
        without=("max_context", "kv_dtype"),
        help={"model": "The target."},
    )
    draft_model: Text | None = option(
        default=None,
        description="A draft model beside it; left out, the known one of the model, if there is one.",
        section="Model",
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
    )

    @property
    def counts(self) -> list[int]:
        """The tokens of forwards, rising."""
        return sorted({1, *self.tokens})


def run(request: RooflineRequest) -> Result:
    """The forwards of a model below the limits of this machine."""
    from forerun.bench.roofline.measured import load_models, measure
    from forerun.bench.roofline.report import report_of

    target, draft = load_models(request)
    return report_of(measure(request, target, draft), target.device)
