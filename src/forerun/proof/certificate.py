"""A proof as a result, and as a Markdown document with settings, versions and results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from forerun.proof.summary import sections, verdict
from forerun.report.markdown import document
from forerun.report.result import Result, Sentence
from forerun.report.table import Table

DEFECT_FOUND = 1


def result_of(content: dict[str, Any]) -> Result:
    """The result of the command.

    Args:
        content: settings and the proof, as `forerun prove --json` prints them.
    """
    style = "bold green" if content["passed"] else "bold red"
    said = Sentence(f"{verdict(content)} ({content['seconds']:.0f} s)", style=style)
    return Result(
        content=content,
        tables=list(sections(content)),
        endings=[*(f"Note: {note}" for note in content["notes"]), said],
        exit_code=0 if content["passed"] else DEFECT_FOUND,
    )


def certificate(content: dict[str, Any]) -> str:
    """The Markdown document for the JSON object of `forerun prove --json`."""
    facts = Table.of("", ("what", "value"), _facts(content), "ll")
    return document(
        Result(
            title=f"Exactness of {content['settings']['model']} under speculation",
            answers=[verdict(content)],
            tables=[facts, *sections(content)],
            notes=content["notes"],
        )
    )


def _facts(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in {**content["versions"], **content["hardware"]}.items():
        yield name, str(value)
    for name, value in content["settings"].items():
        text = json.dumps(value, default=str) if isinstance(value, dict) else str(value)
        yield name.replace("_", " "), text
    yield "rule", content["rule"]
    yield "level", content["level"]
    yield "seconds", f"{content['seconds']:.0f}"
