"""`forerun roofline`: what bounds the forwards of a model, and how many tokens are checked for free."""

from __future__ import annotations

from typing import Any

import click

from forerun.bench.roofline.request import LONGEST, MOST_CONTEXT, Request
from forerun.cli.bars import bars, waiting
from forerun.cli.config import config_option
from forerun.cli.derived import derived
from forerun.cli.flags import json_option, place_options, threads_option
from forerun.cli.lists import Wholes, list_option
from forerun.cli.options import Command, Option, given
from forerun.cli.param_types import Name
from forerun.cli.quiet import quiet_libraries
from forerun.cli.results import check_plot, give, plot_option, settings_in
from forerun.cli.simulate_flags import section_options
from forerun.cli.simulate_modes import explicit
from forerun.errors import ConfigError
from forerun.options import pick, schema_of

# Options that describe hardware that is not at hand; with one of the first three nothing is run.
_CHOOSE = ("hardware", "bandwidth", "flops")
_HARDWARE = (*_CHOOSE, "memory", "num_devices", "parallel_efficiency", "overhead")
_MEASURED = ("device", "backend", "rounds", "threads")


@click.pass_context
def roofline(ctx: click.Context, /, **values: Any) -> None:
    """What bounds a model's forwards here: memory or arithmetic, and from how many tokens on.

    Measures the machine's reads by working set and its multiply-adds, and forwards of 1 to 64 tokens,
    in turns: how many tokens are checked for the time of one, and what a draft costs from the cache and
    from memory. With --hardware, or --bandwidth and --flops, nothing is run: the forwards follow from
    published limits and the model's config.

    A model is a checkpoint's directory, a GGUF file, a hub id, zoo, smollm2, or random weights in the
    shapes draft-15m, draft-50m, llama-110m, llama-350m, qwen3-0.6b and qwen3-4b; with --hardware
    also a config.json, a known model such as llama-3.1-70b, or a count such as 70B.
    """
    check_plot(values["plot"])
    elsewhere = any(given(ctx, name) for name in _CHOOSE)
    _refuse_unused(ctx, elsewhere)
    quiet_libraries()
    request = pick(Request, values)
    device, result = (_predicted if elsewhere else _measured)(request, values)
    give(result, values, device)


def _refuse_unused(ctx: click.Context, elsewhere: bool) -> None:
    flag = "--hardware"
    for name in _MEASURED if elsewhere else _HARDWARE:
        if explicit(ctx, name):
            use = "not used" if elsewhere else "only used"
            raise ConfigError(f"--{name.replace('_', '-')} is {use} with {flag}; leave it out.")


def _measured(request: Request, values: dict[str, Any]) -> Any:
    with waiting("starting"):
        from forerun.bench.roofline.local import Models, measure
        from forerun.bench.roofline.report import report_of
        from forerun.models.placement import Placement

    placement = Placement(values["dtype"], values["device"], values["backend"])
    with bars():
        models = Models.load(
            request,
            placement,
            draft_dtype=values["draft_dtype"],
            revision=values["revision"],
            threads=values["threads"],
        )
        roofline = measure(request, models)
    return models.target.device, report_of(roofline, settings_in(values, *_HARDWARE))


def _predicted(request: Request, values: dict[str, Any]) -> Any:
    with waiting("starting"):
        from forerun.bench.roofline.predicted import predict
        from forerun.bench.roofline.report import report_of
        from forerun.simulation import hardware

    plan = hardware.Request(
        **{name: values[name] for name in _HARDWARE},
        target="",
        draft="",
        cost_ratio=None,
        dtype=values["dtype"],
        draft_dtype=values["draft_dtype"],
        cache_dtype="auto",
        acceptance=(),
        lengths=(),
        batch=(1,),
        context=request.contexts,
    )
    return None, report_of(predict(request, plan), settings_in(values, *_MEASURED))


def _options() -> list[click.Parameter]:
    section = "Forwards (lists: 1,2,4; integers also 1-8 and 4k)"
    lists = {"tokens": Wholes(1, LONGEST), "contexts": Wholes(0, MOST_CONTEXT)}
    declared = schema_of(Request)
    places = [option for option in place_options() if option.name != "max_context"]
    text = "A draft model beside it; left out, the known one of the model, if there is one."
    precision = "Precision of the draft model; auto as `forerun generate` keeps it."
    return [
        Option("model", "Model", type=Name(), default="zoo", help="The target."),
        Option("draft_model", "Model", type=Name(), help=text),
        *places,
        Option("draft_dtype", "Model", type=Name(), default="auto", help=precision),
        *(
            list_option(
                name,
                section,
                kind,
                ",".join(map(str, declared[name]["default"])),
                declared[name]["description"],
            )
            for name, kind in lists.items()
        ),
        *derived(Request, section, without=("model", "draft_model", *lists)),
        threads_option(section),
        *section_options("Hardware"),
        json_option(),
        plot_option(),
        config_option(),
    ]


command = Command(
    "roofline",
    params=_options(),
    callback=roofline,
    example="forerun roofline -m smollm2",
    assumed="about zoo, the small model that comes with forerun",
)
