"""`forerun check`: does a head load in other engines, and does it draft there as it was trained?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.bars import waiting
from forerun.cli.completion import completion
from forerun.cli.flags import json_option, place_options
from forerun.cli.options import Command, Option
from forerun.cli.param_types import Name
from forerun.cli.quiet import quiet_libraries
from forerun.cli.results import give
from forerun.report.result import Result

if TYPE_CHECKING:
    from forerun.export.check import Examination

DEFECT_FOUND = 1
ENGINES = "vllm,sglang,llama.cpp"


def check(head: str, **values: Any) -> int:
    """Check a trained head for other engines.

    HEAD is a directory or a hub id. Its config and tensors are checked for everything that engines
    are known to refuse, or to take without a word for something else. Then its forward is run on 64
    tokens of the target as each engine reads it, beside the forward that was trained. Exit code 1
    where an engine does not load it or drafts otherwise.
    """
    quiet_libraries()
    from forerun.export.check import HeadAndTarget
    from forerun.export.findings import engines_named
    from forerun.models import Placement

    engines = engines_named(values["for"])
    pair = HeadAndTarget.open(head, values["model"], values["revision"])
    placement = Placement(values["dtype"], values["device"], values["backend"])
    with waiting(f"running {pair.checkpoint.name}"):
        found = pair.examine(engines, pair.load(placement) if values["replay"] else None)
    run = pair.checkpoint.run_config(placement)
    content = as_object(found, engines)
    skipped = content["replay_skipped"]
    result = Result(
        content=content,
        answers=list(_in_words(content)),
        notes=[f"not run: {skipped}"] if skipped else [],
        exit_code=0 if found.clean else DEFECT_FOUND,
    )
    return give(result, values, run.device)


def as_object(found: Examination, engines: tuple[str, ...]) -> dict[str, Any]:
    """What was found, for `--json`."""
    from forerun.export.findings import VERSIONS

    return {
        "head": found.head.name,
        "kind": found.head.kind,
        "model": found.target.name,
        "engines": {engine: VERSIONS[engine] for engine in engines},
        "clean": found.clean,
        "findings": [dict(vars(finding)) for finding in found.findings],
        "replays": [dict(vars(result)) for result in found.replays],
        "replay_skipped": found.skipped or None,
    }


def _in_words(content: dict[str, Any]) -> Iterator[str]:
    yield f"{content['kind']} head for {content['model']}"
    for result in content["replays"]:
        version = content["engines"][result["engine"]]
        yield f"{result['engine']} {version}: {result['verdict']}{_figures(result)}"
    for finding in content["findings"]:
        text = f"{finding['problem']}; {finding['remedy']}"
        yield f"{finding['severity']:<5}  {finding['engine']:<9}  {text}"
    if not content["findings"] and not content["replays"]:
        yield "nothing found"


def _figures(result: dict[str, Any]) -> str:
    """What was measured in an engine that loads the head."""
    if result["agreement"] is None:
        return ""
    return (
        f" ({result['agreement']:.0%} the same drafts; {result['hits']:.0%} are the target's own tokens, "
        f"{result['trained_hits']:.0%} as trained)"
    )


def engines_option(default: str | None, text: str) -> Option:
    """`--for`."""
    return Option("for", "Engines", type=Name(), default=default, metavar="LIST", help=text)


def target_options() -> list[Option]:
    """The options that say which target a head is for, and how it is run."""
    text = "The target; left out, the one that the head names in forerun.json."
    places = [option for option in place_options() if option.name != "max_context"]
    return [
        Option("model", "Model", type=Name(), help=text, shell_complete=completion("model")),
        *places,
    ]


command = Command(
    "check",
    params=[
        click.Argument(["head"], type=Name()),
        *target_options(),
        engines_option(ENGINES, "The engines to check for, with commas between them."),
        Option(
            "replay",
            "Engines",
            off=True,
            default=True,
            help="Run the target and the head on 64 tokens.",
        ),
        json_option(),
    ],
    callback=check,
    example="forerun check ./my-head --model smollm2 --for vllm,sglang",
)
