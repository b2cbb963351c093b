"""`forerun bench`: the speed of the compiled kernels, beside the machine's own limits."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import click

from forerun.bench.request import LONGEST, MOST_CONTEXT, Request
from forerun.cli.bars import bars
from forerun.cli.config import config_option
from forerun.cli.derived import derived
from forerun.cli.flags import json_option, threads_option
from forerun.cli.lists import Wholes, list_option
from forerun.cli.machine import made_with, print_json
from forerun.cli.options import Command
from forerun.cli.param_types import Name
from forerun.cli.quiet import quiet_libraries
from forerun.errors import UnknownNameError
from forerun.options import schema_of

SUITES = ("kernels",)


def bench(what: str, **values: Any) -> None:
    """Measure forwards on this machine's CPU.

    WHAT is kernels: whole forwards of 1 to 64 tokens with all their logits, and the prefill of a
    prompt, by model and precision, on forerun's compiled kernels. The machine's own streaming
    reads and multiply-adds are measured in turns with them.

    Models are zoo, zoo-draft, smollm2, and random weights in the shapes draft-15m, llama-110m, llama-350m,
    qwen3-0.6b and qwen3-4b.
    """
    if what not in SUITES:
        raise UnknownNameError("benchmark", what, SUITES)
    content = _measure(values)
    if values["json"]:
        print_json(content)
    else:
        _print(content)


def _measure(values: dict[str, Any]) -> dict[str, Any]:
    """All results, as the object of `--json`."""
    quiet_libraries()
    import torch

    from forerun.bench.kernels import measure
    from forerun.bench.machine import use_threads

    request = Request(**{name: values[name] for name in schema_of(Request)})
    use_threads(values["threads"])
    with bars():
        return {**made_with(torch.device("cpu")), **measure(request, _announce).as_dict()}


def _announce(what: str) -> None:
    click.echo(f"forerun: measuring {what}", err=True)


def _print(content: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    machine, hardware = content["machine"], content["hardware"]
    rates = ", ".join(
        f"{name} {rate / 1e9:.0f}" for name, rate in machine["multiply_adds_per_second"].items()
    )
    console.print(
        f"{hardware['cpu']}, {hardware['threads']} threads, last-level cache "
        f"{machine['last_level_cache_bytes'] / 2**20:.0f} MiB\n"
        f"streaming reads {machine['bandwidth_gigabytes_per_second']:.1f} GB/s "
        f"(best {machine['best_bandwidth_gigabytes_per_second']:.1f}); "
        f"10^9 multiply-adds/s: {rates or 'not measured on this processor'}"
    )
    prefills = {(row["model"], row["precision"]): row for row in content["prefill"]}
    for key, rows in groupby(content["rows"], lambda row: (row["model"], row["precision"])):
        _print_model(console, list(rows), prefills[key])


def _print_model(console: Any, rows: list[dict[str, Any]], prefill: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=f"{rows[0]['model']} {rows[0]['precision']}", title_justify="left")
    for name in ("context", "tokens", "ms", "best", "GB/s", "of reads", "of peak", "to 1 token"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row["context"]),
            str(row["n"]),
            f"{row['milliseconds']:.3f}",
            f"{row['best_milliseconds']:.3f}",
            f"{row['gigabytes_per_second']:.1f}",
            f"{row['share_of_bandwidth']:.0%}",
            _share(row["share_of_peak"]),
            f"{row['ratio_to_one']:.2f}",
        )
    source = "come from memory" if rows[0]["from_memory"] else "stay in the cache in part"
    table.caption = (
        f"Its weights {source}. Prefill of {prefill['tokens']} tokens: "
        f"{prefill['tokens_per_second']:.0f} tokens/s, {_share(prefill['share_of_peak'])} of peak."
    )
    table.caption_justify = "left"
    console.print(table)


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _options() -> list[click.Parameter]:
    section = "What to measure (lists: 1,2,4; integers also 1-8 and 4k)"
    lists = {"tokens": Wholes(1, LONGEST), "contexts": Wholes(0, MOST_CONTEXT)}
    declared = schema_of(Request)
    return [
        click.Argument(["what"], type=Name(SUITES), metavar="WHAT"),
        *derived(Request, section, without=lists),
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
        threads_option(section),
        json_option(),
        config_option(),
    ]


command = Command(
    "bench",
    params=_options(),
    callback=bench,
    help=bench.__doc__,
    example="forerun bench kernels",
)
