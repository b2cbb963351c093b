"""Options that the commands of `forerun diffusion` share, and the way from them to a result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from forerun.cli.bars import bars, waiting
from forerun.cli.derived import derived
from forerun.cli.flags import threads_option
from forerun.cli.options import Option
from forerun.cli.param_types import FileName, Name
from forerun.cli.quiet import quiet_libraries
from forerun.cli.results import give
from forerun.diffusion.commands.requests import PIPELINE, Conditions, Sampling
from forerun.options import pick, schema_of

if TYPE_CHECKING:
    from forerun.report.result import Result

T = TypeVar("T")


def pipeline_options(owner: type = Conditions) -> list[Option]:
    """Which pipeline, and on how many threads."""
    schema = schema_of(owner)
    texts = {name: schema[name]["description"] for name in PIPELINE}
    return [
        Option(
            "pipeline",
            "Pipeline",
            type=Name(),
            default=schema["pipeline"]["default"],
            help=texts["pipeline"],
        ),
        Option("conditions", "Pipeline", type=FileName(), help=texts["conditions"]),
        threads_option("Pipeline"),
    ]


def sampling_options() -> list[Option]:
    """What to sample."""
    return derived(Sampling, "Sampling", PIPELINE)


def answered(run: Callable[[T], Result], kind: type[T], values: dict[str, Any]) -> int:
    """Print the answer to the request that the options make; the exit code."""
    request = pick(kind, values)
    quiet_libraries()
    with waiting("starting"):
        import torch
    with bars():
        result = run(request)
    return give(result, values, torch.device("cpu"))
