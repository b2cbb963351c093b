"""Request of `forerun simulate`, and the description of the hardware to simulate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from forerun.costs.hardware import HARDWARE
from forerun.costs.precision import PRECISIONS
from forerun.costs.shapes import SHAPES
from forerun.errors import ConfigError
from forerun.options import UNIQUE, option, options

if TYPE_CHECKING:
    from forerun.report.result import Result

# The intervals are normal approximations, which need enough rounds.
FEWEST_ROUNDS = 100
# Batch sizes up to at least this number are searched for those at which speculation loses.
REQUESTS = 1024
# Cost of a drafted token where none is given, in plain target forwards.
COST_RATIO = 0.1
# Options that name hardware; with one of them a plan is made.
ELSEWHERE = ("hardware", "bandwidth", "flops")

_Share = Annotated[float, Field(ge=0.0, le=1.0)]
_Cost = Annotated[float, Field(ge=0.0, le=1000.0)]
_Length = Annotated[int, Field(ge=1, le=256)]
_Batch = Annotated[int, Field(ge=1, le=1 << 14)]
_Context = Annotated[int, Field(ge=0, le=1 << 30)]
_Limit = Annotated[float, Field(ge=1e-6, le=1e9)]
_Precision = Literal["auto", "fp32", "bf16", "fp16", "fp8", "int8", "int4"]


@options
class SimulateRequest:
    """The gain of speculation: by formula, by simulation, on hardware you don't have.

    Without --hardware: speed-up over length for acceptances and cost ratios. Numbers go to standard output,
    what their marks mean to standard error. No model is run.
    """

    acceptance: Annotated[tuple[_Share, ...], UNIQUE] = option(
        default=(0.5, 0.7, 0.8, 0.9),
        description="Probabilities that a drafted token is accepted when it is tested.",
        section="Sweep (lists: 0.5,0.8; integers also 1-12 and 4k)",
    )
    cost_ratio: Annotated[tuple[_Cost, ...], UNIQUE] = Field(
        default=(),
        description=f"Costs of a drafted token, in plain target forwards; left out, {COST_RATIO}, and with "
        "--hardware nothing, which gives upper bounds.",
    )
    lengths: Annotated[tuple[_Length, ...], UNIQUE] = Field(
        default=tuple(range(1, 13)), description="Tokens to draft a round."
    )
    rounds: int | None = option(
        default=None,
        ge=FEWEST_ROUNDS,
        le=1_000_000,
        description="Simulate this many rounds per setting too.",
        section="Simulation",
        excludes=ELSEWHERE,
    )
    seed: int = option(
        default=0,
        ge=0,
        description="Seed of the simulation.",
        requires=("rounds",),
    )
    hardware: str | None = option(
        default=None,
        description=f"Plan for {', '.join(HARDWARE)}.",
        section="Hardware",
        names=lambda: HARDWARE,
    )
    bandwidth: _Limit | None = Field(
        default=None,
        description="GB/s of its memory; with --flops, for hardware of your own.",
    )
    flops: _Limit | None = Field(default=None, description="TFLOP/s of its dense matrix products.")
    memory: _Limit | None = option(
        default=None, description="GB of its memory.", requires=ELSEWHERE
    )
    num_devices: int = option(
        default=1,
        ge=1,
        le=1024,
        description="Devices that share the work evenly.",
        requires=ELSEWHERE,
    )
    parallel_efficiency: float = option(
        default=0.8,
        ge=1e-3,
        le=1.0,
        description="Share of their joint limits that several devices reach; assumed.",
        requires=("num_devices",),
    )
    overhead: float = option(
        default=0.0,
        ge=0.0,
        le=1e6,
        description="Milliseconds added to every forward, for launches and the host.",
        requires=ELSEWHERE,
    )
    target: str | None = option(
        default=None,
        description="A known model (a wrong name lists them) or a count such as 70B.",
        section="Models",
        requires=ELSEWHERE,
        names=lambda: SHAPES,
    )
    draft: str | None = option(
        default=None,
        description="The same for the draft model. Left out, a drafted token costs --cost-ratio.",
        requires=ELSEWHERE,
        excludes=("cost_ratio", "draft_window"),
        names=lambda: SHAPES,
    )
    draft_window: int | None = option(
        default=None,
        ge=1,
        le=1 << 30,
        description="The target drafts for itself from so many tokens of its text, as method self_sparse; "
        "from which context on does that pay?",
        requires=ELSEWHERE,
        excludes=("cost_ratio",),
    )
    dtype: _Precision = option(
        default="auto",
        description=f"Of the weights: {', '.join(PRECISIONS)}; auto is bf16.",
        requires=ELSEWHERE,
    )
    draft_dtype: _Precision = option(
        default="auto",
        description="Of the draft's weights; auto is the target's.",
        requires=("draft",),
    )
    cache_dtype: _Precision = option(
        default="auto",
        description="Of keys and values; auto is 16 bits, 32 with fp32.",
        requires=ELSEWHERE,
    )
    batch: Annotated[tuple[_Batch, ...], UNIQUE] = option(
        default=(1, 4, 16, 64, 256, 1024), description="Requests at once.", requires=ELSEWHERE
    )
    context: Annotated[tuple[_Context, ...], UNIQUE] = option(
        default=(1 << 10, 8 << 10, 32 << 10, 128 << 10),
        description="Tokens of each in the cache.",
        requires=ELSEWHERE,
    )

    def __post_init__(self) -> None:
        if not self.elsewhere:
            if not self.cost_ratio:
                object.__setattr__(self, "cost_ratio", (COST_RATIO,))
        elif self.target is None:
            known = ", ".join(sorted(SHAPES))
            raise ConfigError(f"--hardware needs --target, a count such as 70B or one of {known}.")
        elif len(self.cost_ratio) > 1:
            raise ConfigError("--cost-ratio is a list; give one number with --hardware.")

    @property
    def elsewhere(self) -> bool:
        """True if any hardware is described."""
        return any(getattr(self, name) is not None for name in ELSEWHERE)

    @property
    def most_requests(self) -> int:
        """The largest batch size in the search for those at which speculation loses."""
        return max(REQUESTS, *self.batch)


def run(request: SimulateRequest) -> Result:
    """The speed-up by formulas, by simulated rounds, or on hardware."""
    if request.elsewhere:
        from forerun.simulation.planning import plan

        return plan(request)
    from forerun.simulation.sweep import sweep

    return sweep(request)
