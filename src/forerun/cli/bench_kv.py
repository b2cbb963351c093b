"""`forerun bench kv`: what each setting of the cache costs in quality, and what it saves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from forerun.bench.kv.request import MOST_CONTEXT, Request, settings_of
from forerun.cli.asked import open_checkpoint
from forerun.cli.bars import bars, waiting
from forerun.cli.config import config_option
from forerun.cli.derived import derived
from forerun.cli.flags import json_option, model_options
from forerun.cli.lists import Numbers, Wholes, list_option
from forerun.cli.options import Command, Option
from forerun.cli.param_types import FileName
from forerun.cli.quiet import quiet_libraries
from forerun.cli.results import check_plot, give, plot_option, settings_in
from forerun.compression import Compression
from forerun.errors import ConfigError, PromptError
from forerun.files import read_text
from forerun.options import pick, schema_of

if TYPE_CHECKING:
    from forerun.bench.kv.measure import KvRow
    from forerun.contracts import CausalLM

# Options of all methods; the others are what is measured.
_SHARED = ("kv_recent", "kv_sinks", "kv_interval")


def bench_kv(**values: Any) -> None:
    """Find out what each setting of the cache costs in quality, and what it saves.

    Reads prompts of several lengths with the full cache, with one of int8 and int4, and with every method of
    eviction, and measures
    perplexity of what follows, which numbers hidden in the prompt are found, memory and tokens a second.
    All is generated or comes with Python; nothing is downloaded. Takes minutes with SmolLM2.
    """
    check_plot(values["plot"])
    request = pick(Request, values)
    settings = settings_of(request, {name: values[name] for name in _SHARED})
    text = _text(values["text"])
    quiet_libraries()
    checkpoint = open_checkpoint({**values, "max_context": None})
    if request.longest > checkpoint.summary.max_context:
        raise ConfigError(
            f"--contexts go up to {max(request.contexts)}, with what follows {request.longest} tokens; the "
            f"context of {checkpoint.name} is {checkpoint.summary.max_context}. Give shorter ones."
        )
    with waiting("starting"):
        from forerun.bench.kv.measure import KvEngines, measure
        from forerun.engine.load import load

    places = {name: values[name] for name in ("dtype", "device", "backend")}
    engines = KvEngines(partial(load, checkpoint, False, max_context=request.longest, **places))
    rows: list[KvRow] = []
    target = engines.of(settings[0]).target
    try:
        with bars():
            for row in measure(request, settings, engines, text):
                rows.append(row)
    except KeyboardInterrupt:
        click.echo("forerun: interrupted: this is what was measured until then", err=True)
        if rows:
            _finish(values, rows, checkpoint.name, target)
        raise
    _finish(values, rows, checkpoint.name, target)


def _finish(values: dict[str, Any], rows: Sequence[KvRow], name: str, target: CausalLM) -> None:
    """Show the result and draw the plot."""
    from forerun.bench.kv.report import report_of

    facts = {"model": name, "precision": target.precision}
    give(report_of(rows, settings_in(values), facts), values, target.device)


def _text(file: str | None) -> str:
    if file is not None:
        return read_text(file, "text", PromptError)
    from forerun.bench.kv.texts import prose

    return prose()


def _options() -> list[click.Parameter]:
    section = "Settings (lists: 0.5,0.75; integers also 4k)"
    declared = schema_of(Request)
    lists: dict[str, Numbers] = {
        "ratios": Numbers(0, 1),
        "budgets": Wholes(1, MOST_CONTEXT),
        "contexts": Wholes(64, MOST_CONTEXT),
        "depths": Numbers(0, 1),
    }
    models = [option for option in model_options(model="smollm2") if option.name != "max_context"]
    return [
        *models,
        *derived(Request, section, without=declared.keys() - {"methods", "kv_dtypes"}),
        *(
            list_option(
                name,
                section,
                kind,
                ",".join(f"{value:g}" for value in declared[name]["default"]) or None,
                declared[name]["description"],
            )
            for name, kind in lists.items()
        ),
        *(option for option in derived(Compression, section) if option.name in _SHARED),
        *derived(Request, "Text", without={*lists, "methods", "kv_dtypes"}),
        Option(
            "text",
            "Text",
            type=FileName(),
            help="A file to read instead of Python's help on its topics.",
        ),
        json_option(),
        plot_option(),
        config_option(),
    ]


command = Command(
    "bench kv",
    params=_options(),
    callback=bench_kv,
    example="forerun bench kv -m smollm2 --methods h2o,snapkv --contexts 1k",
    assumed="all methods of eviction, with SmolLM2",
)
