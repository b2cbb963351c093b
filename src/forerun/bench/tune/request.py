"""Request of `forerun tune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from forerun.drafters import DRAFTERS
from forerun.engine.model_options import ModelOptions
from forerun.measure.questions import FILES
from forerun.options import FileName, known, option, options, part, schema_of
from forerun.params import SamplingParams

if TYPE_CHECKING:
    from forerun.report.result import Result

_SECTION = "Tuning (lists: 1,4,16)"


@options
class TuneRequest:
    """Find out which drafter and length to use for a model and your own prompts.

    Every candidate drafts at every position of some answers; from what would have been accepted, and
    from the times of rounds, the gain of every length is computed without running it. The best few are
    run beside plain decoding. Standard output is a table and a verdict in words; --output writes a file
    that generate, chat and prove take with --config.
    """

    prompts: tuple[FileName, ...] = option(
        default=(),
        description=f"A sample of your prompts: {FILES} Left out, small built-in ones.",
        section="Prompts",
        repeat=True,
    )
    system: str | None = Field(default=None, description="A system message before the others.")
    methods: tuple[Annotated[str, known("method", DRAFTERS.names)], ...] = option(
        default=(),
        description="Methods to try; left out, all that fit the model.",
        section=_SECTION,
    )
    draft_model: str | None = Field(
        default=None, description="The draft model or trained head of the methods that take one."
    )
    draft_dtypes: tuple[str, ...] = Field(
        default=(), description="Precisions of the draft model to try, such as int8,int4."
    )
    longest: int = Field(default=8, ge=1, le=64, description="Tokens of a draft at most.")
    trees: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = Field(
        default=(), description="Nodes of draft trees to try beside chains, such as 16,32."
    )
    batch_sizes: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = Field(
        default=(1,), description="Requests side by side, such as 1,4,16."
    )
    num_prompts: int = Field(
        default=12,
        ge=1,
        le=10**6,
        description="Prompts to try at most, of all categories in turns.",
    )
    confirm: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="Settings to run beside plain decoding, the best predicted of each batch size.",
    )
    seconds: float = Field(
        default=6.0,
        gt=0,
        le=3600,
        description="Time spent on timing a candidate at a batch size.",
    )
    sampling: SamplingParams = part(
        default=SamplingParams(temperature=0.0),
        section=_SECTION,
        without=schema_of(SamplingParams).keys() - {"temperature", "seed", "max_tokens"},
    )
    records: FileName | None = option(
        default=None,
        description="Keep what is measured there, and go on from what is there already.",
        section=_SECTION,
    )
    output: FileName | None = Field(
        default=None, description="Write the best setting there, as TOML for --config."
    )
    model: ModelOptions = part(
        default=ModelOptions,
        section="Model",
        help={
            "max_context": "Tokens of prompt and output at most; the model's context up to 4096."
        },
    )


def run(request: TuneRequest) -> Result:
    """The gain of each candidate, predicted, and of the best few, measured.

    Raises:
        ForerunError: for a model, method, draft or file that does not fit.
    """
    from forerun.bench.tune.report import answer

    return answer(request)
