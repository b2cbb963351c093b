"""`forerun export`: a head as a directory that other engines load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from forerun.cli.check import engines_option, target_options
from forerun.cli.flags import json_option
from forerun.cli.options import Command, Option
from forerun.cli.param_types import FileName, Name
from forerun.cli.quiet import quiet_libraries
from forerun.cli.results import give
from forerun.files import size_text
from forerun.report.result import Result, Sentence

LAYOUTS = ("eagle3", "dspark", "speculators")


def export(head: str, **values: Any) -> None:
    """Export a trained head to other engines.

    HEAD is a directory or a hub id. eagle3 and dspark are layouts that vLLM, SGLang and llama.cpp
    all load; speculators is the format of that library, which vLLM and llama.cpp read. What an
    engine would not load, or would read otherwise, is refused with the reason. Nothing is written
    over what is there.
    """
    quiet_libraries()
    from forerun.errors import CheckpointError
    from forerun.export.check import HeadAndTarget
    from forerun.export.export import describe, export_head, write_export
    from forerun.export.findings import engines_named
    from forerun.files import read_text
    from forerun.heads.files import CARD
    from forerun.models import Placement

    engines = engines_named(values["for"]) if values["for"] else ()
    pair = HeadAndTarget.open(head, values["model"], values["revision"])
    placement = Placement(values["dtype"], values["device"], values["backend"])
    model = pair.load(placement)
    lean, _ = pair.head.without_copies(model)
    verifier = pair.verifier(model, values["verifier"])
    result = export_head(lean, pair.target, values["to"], verifier, engines)
    card = Path(head) / CARD
    about = read_text(card, "card", CheckpointError) if card.is_file() else ""
    write_export(result, Path(values["output"]), values["to"], about)
    content = {
        "head": head,
        "model": pair.target.name,
        "layout": values["to"],
        "output": values["output"],
        **describe(result, values["to"]),
    }
    text = f"{content['output']}: {size_text(content['weight_bytes'])} of weights"
    read = [f"{name} reads {size_text(n)} of them" for name, n in content["bytes_read"].items()]
    give(Result(content=content, answers=[Sentence(text, read)]), values, model.device)


command = Command(
    "export",
    params=[
        click.Argument(["head"], type=Name()),
        Option(
            "to",
            "Layout",
            type=click.Choice(LAYOUTS),
            required=True,
            help="The layout to write.",
        ),
        Option(
            "output",
            "Layout",
            type=FileName(),
            required=True,
            metavar="DIR",
            help="The directory to write; it must not exist, or be empty.",
        ),
        Option(
            "verifier",
            "Layout",
            type=Name(),
            metavar="ID",
            help="The target's id on the hub, which speculators names; left out, where it was loaded from.",
        ),
        *target_options(),
        engines_option(None, "The engines that must load it; all of the layout's."),
        json_option(),
    ],
    callback=export,
    example="forerun export ./my-head --to eagle3 --output ./portable --model smollm2",
)
