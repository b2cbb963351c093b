"""`forerun tune`: bench's session as a knock-out, and a config of the setting that its verdict names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from forerun.bench.request import MEASURED, NO_OPTIONS, BenchRequest, Minutes, Temperatures
from forerun.bench.settings import DEFAULT, Axes, Setting
from forerun.errors import ConfigError
from forerun.files import check_writable, write_file
from forerun.options import FileName, option, options, part

if TYPE_CHECKING:
    from forerun.bench.verdict import Recommendation
    from forerun.report.result import Result


@options
class TuneRequest(BenchRequest):
    """Find out which drafter and length to use for a model and your own prompts.

    Methods at several lengths run in turns with plain decoding, as `forerun bench` runs them, on two
    prompts; the faster half on two more, and so on; the last few on all. The report is bench's, on these;
    --output writes a file that generate, chat, prove and bench take with --config.
    """

    common: ClassVar[Sequence[str]] = (
        *("model", "prompts", "num_prompts", "method", "draft_model", "num_speculative_tokens"),
        *("temperature", "output", "json"),
    )

    axes: Axes = part(
        default=Axes(num_speculative_tokens=(1, 2, 4, 8)), section=MEASURED, without=NO_OPTIONS
    )
    temperature: Temperatures = option(default=(0.0,), section=MEASURED)
    minutes: Minutes = 0.0
    num_prompts: int = option(
        default=12,
        ge=1,
        le=10**6,
        description="Questions to try at most, of all categories in turns.",
        section="Tuning",
    )
    finalists: int = Field(
        default=3, ge=1, le=1000, description="Settings to run on all prompts, beside the default."
    )
    output: FileName | None = Field(
        default=None, description="Write the best setting there, as TOML for --config."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output is not None and len(self.temperature) * len(self.batch_sizes) > 1:
            raise ConfigError(
                "--output takes one setting; give one --temperature and one of --batch-sizes."
            )


def run(request: TuneRequest) -> Result:
    """The report of bench on the settings that reached all prompts, and the config that follows.

    Raises:
        ForerunError: for a model, method, draft or file that does not fit.
        Interrupted: with the pairs until then.
    """
    from forerun.bench.run import measured

    if request.output is not None:
        check_writable("--output", request.output)
    bench, result = measured(request, request.finalists, request.num_prompts)
    configs = [config_values(request, verdict, bench.settings) for verdict in bench.report.verdicts]
    if request.output is not None:
        write_file("config", request.output, _as_toml(configs[0], bench.report.verdicts[0].advice))
    return replace(
        result, title="forerun tune", content={**(result.content or {}), "config": configs}
    )


def config_values(
    request: TuneRequest, verdict: Recommendation, settings: Sequence[Setting]
) -> dict[str, Any]:
    """Options of the recommended setting and of its measurement, by the names of their flags."""
    model = request.model
    values: dict[str, Any] = {"model": model.model}
    own = vars(model.placement)
    values |= {n: own[n] for n in ("dtype", "kv_dtype") if own[n] != "auto"}
    values["temperature"] = verdict.temperature
    if request.sampling.seed is not None:
        values["seed"] = request.sampling.seed
    if verdict.decided and verdict.use is None:
        values["speculative"] = False
    elif verdict.decided and verdict.use != DEFAULT:
        chosen = next(setting for setting in settings if setting.name == verdict.use)
        values |= _of_setting(request, chosen)
    return {name.replace("_", "-"): value for name, value in values.items()}


def _of_setting(request: TuneRequest, setting: Setting) -> dict[str, Any]:
    config = setting.config
    values: dict[str, Any] = {"method": setting.method}
    if config.model in request.axes.draft_model:
        values["draft_model"] = config.model
    if config.num_speculative_tokens is not None:
        values["num_speculative_tokens"] = config.num_speculative_tokens
    if config.tree is not None:
        values |= {"tree": config.tree, "num_tree_nodes": config.num_tree_nodes}
    own = [
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in config.options.items()
    ]
    return values | ({"method_option": own} if own else {})


def _as_toml(values: Mapping[str, Any], comment: str) -> str:
    """A file for `--config`."""
    # JSON's texts, numbers, booleans and lists of texts are TOML's.
    lines = [f"# {comment}", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    return "".join(f"{line}\n" for line in lines)
