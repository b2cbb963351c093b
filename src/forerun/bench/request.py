"""Request of `forerun bench`, and the questions that it measures with unless others are given."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from forerun.bench.peers import peer_names
from forerun.bench.settings import Axes
from forerun.drafters.corpus import CorpusOptions
from forerun.engine.chat import TemplateOptions
from forerun.engine.config import SpeculativeConfig
from forerun.engine.options import ModelOptions
from forerun.errors import ConfigError, UnknownNameError
from forerun.measure.questions import FILES, Question, read_questions
from forerun.options import UNIQUE, FileName, known, option, options, part, schema_of
from forerun.params import SamplingParams

if TYPE_CHECKING:
    from forerun.report.result import Result

BUILT_IN = ("code", "creative_writing", "json", "math", "qa", "summary", "xml")
"""Categories of the questions that come along."""
_DATA = "questions.jsonl"


def built_in(categories: Sequence[str] = BUILT_IN) -> list[Question]:
    """The questions that come along, of some categories.

    Raises:
        UnknownNameError: for a category that does not exist.
    """
    for name in categories:
        if name not in BUILT_IN:
            raise UnknownNameError("built-in workload", name, BUILT_IN)
    with resources.as_file(resources.files("forerun.bench") / _DATA) as path:
        return [question for question in read_questions([path]) if question.category in categories]


Minutes = Annotated[
    float,
    Field(ge=0, le=10**5, description="Begin no further prompt after so many; 0 measures all."),
]
Temperatures = Annotated[
    tuple[Annotated[float, Field(ge=0, le=10)], ...], UNIQUE, Field(description="0 is greedy.")
]
MEASURED = "What to measure (lists: 1,2,4; integers also 1-8)"
NO_OPTIONS = ("common", "options")
_RULES = {"rejection_sample_method", "draft_sample_method"}


@options
class BenchRequest:
    """Find out which drafter pays for a model and prompts, in turns with plain decoding.

    Without options it measures the likely drafters for SmolLM2 on built-in prompts, for five minutes.
    The verdict in words comes first, then a table: every figure is the median over prompts of the ratio
    to plain decoding of the same prompt just before, with its 95 % interval.
    """

    common: ClassVar[Sequence[str]] = (
        *("model", "prompts", "workloads", "minutes", "method", "draft_model"),
        *("num_speculative_tokens", "temperature", "against", "html", "json"),
    )

    prompts: tuple[FileName, ...] = option(
        default=(), description=f"Your prompts: {FILES}", section="Workload", repeat=True
    )
    workloads: tuple[str, ...] = option(
        default=BUILT_IN,
        description="Built-in prompts to measure on where there are no --prompts.",
        excludes=("prompts",),
    )
    limit: int | None = Field(
        default=None, ge=1, le=10**6, description="Questions of each category at most; all."
    )
    skip_bad: bool = Field(
        default=False, description="Skip lines that are not questions, and count them."
    )
    by_file: bool = Field(
        default=False,
        description="Categories are files, by their names, and not what questions say.",
    )
    minutes: Minutes = 5.0
    raw: bool = Field(default=False, description="Send texts as they are, without a chat template.")
    template: TemplateOptions = part(
        default=TemplateOptions, section="Prompt", without=("show_prompt",)
    )
    model: ModelOptions = part(default=ModelOptions, section="Model")
    axes: Axes = part(default=Axes, section=MEASURED, without=NO_OPTIONS)
    temperature: Temperatures = option(default=(0.0, 1.0), section=MEASURED)
    batch_sizes: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], UNIQUE] = Field(
        default=(1,), description="Requests at once."
    )
    speculative: bool = option(
        default=True,
        description="As a file of `forerun tune` may say; without, there is nothing to measure.",
        section="Speculation",
    )
    rules: SpeculativeConfig = part(
        default=SpeculativeConfig,
        section="Speculation",
        without=schema_of(SpeculativeConfig).keys() - _RULES,
    )
    corpus: CorpusOptions = part(default=CorpusOptions, section="Speculation")
    method_option: tuple[str, ...] = option(
        default=(),
        description="An option of methods or policies as NAME=VALUE, for those that read it.",
        section="Speculation",
        repeat=True,
    )
    sampling: SamplingParams = part(
        default=SamplingParams(max_tokens=128),
        section="Sampling",
        without=("temperature", "logprobs", "logprobs_mode"),
    )
    against: tuple[Annotated[str, known("engine", peer_names)], ...] = option(
        default=(),
        description="transformers, llama.cpp, openvino: the same model, prompts and numbers of tokens, plain "
        "and with drafts of 2, 4 and 8 tokens; greedy, a request at a time.",
        section="Other engines",
    )
    peers_python: FileName | None = Field(
        default=None, description="The interpreter that has them; this one."
    )
    records: FileName | None = option(
        default=None,
        description="Keep every measured pair there, as JSON lines, and go on from what is there already.",
        section="Other",
    )

    def __post_init__(self) -> None:
        if not self.speculative:
            raise ConfigError(
                "speculation is off, so there is nothing to measure; leave that out (a file of "
                "`forerun tune` says it where plain decoding is fastest)."
            )


def run(request: BenchRequest) -> Result:
    """Each drafter beside plain decoding, prompt by prompt.

    Raises:
        ForerunError: for a model, method, draft or file that does not fit.
        Interrupted: with the pairs until then.
    """
    from forerun.bench.run import measured

    return measured(request)[1]
