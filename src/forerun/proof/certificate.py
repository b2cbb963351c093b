"""A proof as a Markdown document: settings, versions and results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from forerun.proof.summary import sections, verdict
from forerun.report.markdown import table_lines
from forerun.report.table import Table


def certificate(content: dict[str, Any]) -> str:
    """The Markdown document for the JSON object of `forerun prove --json`."""
    return "\n\n".join(_blocks(content)) + "\n"


def _blocks(content: dict[str, Any]) -> Iterator[str]:
    yield f"# Exactness of {content['settings']['model']} under speculation"
    yield f"**{verdict(content)}**"
    facts = Table.of("", ("what", "value"), _facts(content), "ll")
    yield "\n".join(table_lines(facts))
    for table in sections(content):
        yield f"## {table.title}"
        yield "\n".join(table_lines(table))
        yield from table.notes
    for note in content["notes"]:
        yield f"Note: {note}"


def _facts(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in {**content["versions"], **content["hardware"]}.items():
        yield name, str(value)
    for name, value in content["settings"].items():
        text = json.dumps(value, default=str) if isinstance(value, dict) else str(value)
        yield name.replace("_", " "), text
    yield "rule", content["rule"]
    yield "level", content["level"]
    yield "seconds", f"{content['seconds']:.0f}"
