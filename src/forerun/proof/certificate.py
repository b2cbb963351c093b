"""Report of a proof: the command's result, and a Markdown certificate with all settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from forerun.report.markdown import document
from forerun.report.result import DEFECT_FOUND, Result, Sentence
from forerun.report.table import Cell, Table


def result_of(content: dict[str, Any]) -> Result:
    """The result of the command.

    Args:
        content: the proof, as `forerun prove --json` prints it.
    """
    style = "bold green" if content["passed"] else "bold red"
    said = Sentence(f"{verdict(content)} ({content['seconds']:.0f} s)", style=style)
    return Result(
        content=content,
        tables=list(sections(content)),
        endings=[*(f"Note: {note}" for note in content["notes"]), said],
        exit_code=0 if content["passed"] else DEFECT_FOUND,
    )


def certificate(result: Result) -> str:
    """The Markdown document for the result of a proof."""
    content = result.as_dict()
    facts = Table.of("", ("what", "value"), _facts(content), "ll")
    title = result.title or f"Exactness of {content['settings']['model']} under speculation"
    answers = [content["verdict"] if "verdict" in content else verdict(content)]
    tables = [facts, *result.tables]
    return document(Result(title=title, answers=answers, tables=tables, notes=content["notes"]))


def _facts(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    groups = ("versions", "hardware", "subject", "settings")
    facts = [pair for name in groups for pair in content.get(name, {}).items()]
    facts += [(name, content[name]) for name in ("rule", "level") if name in content]
    for name, value in [*facts, ("seconds", f"{content['seconds']:.0f}")]:
        if value not in (None, [], {}):
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            listed = ", ".join(map(str, value)) if isinstance(value, list) else text
            yield name.replace("_", " "), listed


def verdict(content: dict[str, Any]) -> str:
    """The outcome of the proof in one sentence."""
    if content["level"] == "approximate":
        return "Not exact: the method is approximate by design and changes the distribution."
    if not content["passed"]:
        return "A defect was found: speculation changes what comes out."
    return f"No defect was found. The promise is {content['level']} exactness."


def sections(content: dict[str, Any]) -> Iterator[Table]:
    """A table for each part of the proof that ran."""
    if content["enumeration"] is not None:
        yield _enumeration(content["enumeration"])
    if content["statistics"] is not None:
        titles = ("By statistics", "Second look, at fresh outputs")
        for title, look in zip(titles, content["statistics"]["looks"], strict=False):
            yield _look(title, look)
    if content["equality"] is not None:
        yield _equality(content["equality"])


def _enumeration(part: dict[str, Any]) -> Table:
    rows = []
    for rule in part["rules"]:
        counts = (rule["cases"], rule["sequences"] - rule["seeds"], rule["seeds"])
        finding = "approximate" if rule["level"] == "approximate" else "defect"
        deviation = _number(rule["largest_deviation"])
        rows.append((rule["rule"], *map(str, counts), deviation, _finding(rule["passed"], finding)))
    scope = (
        f"{part['cases']} cases on small vocabularies: every outcome of every draft, whole sequences "
        "against the target's own distribution; rules that draw by noise, seed by seed against plain "
        f"decoding. Largest deviation {_number(part['largest_deviation'])}, "
        f"allowed {part['bound']:.0e}."
    )
    header = ("rule", "cases", "sequences", "seeds", "largest deviation", "result")
    return Table.of("By enumeration", header, rows, notes=[scope])


def _look(title: str, look: dict[str, Any]) -> Table:
    rows = [
        (
            test["name"],
            str(test["count"]),
            f"{test['statistic']:.2f} ({test['degrees']})",
            _number(test["p_value"]),
            _number(test["adjusted"]),
            _finding(test["adjusted"] >= look["level"], "alarm"),
        )
        for test in look["tests"]
    ]
    header = ("test", "outcomes", "chi-square (degrees)", "p", "p (Holm)", "result")
    return Table.of(title, header, rows, notes=list(_of_look(look)))


def _of_look(look: dict[str, Any]) -> Iterator[str]:
    alarms, level = ", ".join(look["alarms"]), f"level {look['level']:.2g}"
    yield (
        f"{look['num_tokens']} tokens of {look['num_outputs']} outputs, each against the target's row "
        f"given its prefix, drafts verified by {', '.join(look['rules']) or 'nothing'}. "
        f"{f'Alarms at {level}: {alarms}' if alarms else f'No alarm at {level}'}."
    )
    allowed = look["row_tolerance"]
    bound = (
        "edges of top-k, top-p or min-p may move"
        if allowed is None
        else f"rounding explains {_number(allowed)}"
    )
    yield (
        f"Tokens that the target excludes: {look['impossible']}. Largest difference between the rows "
        f"that verified and the target's own: {_number(look['largest_row_difference'])} ({bound})."
    )
    for limit in look["limits"]:
        yield (
            f"- {limit['family']} ({limit['meaning']}): a total variation of "
            f"{limit['total_variation']:.4f} would have been detected with probability "
            f"{limit['power']}, by the test '{limit['test']}'."
        )


def _equality(part: dict[str, Any]) -> Table:
    rows = []
    for mode in part["modes"]:
        numerics = len(mode["differences"]) - mode["defects"]
        counts = (mode["prompts"], mode["tokens"], mode["identical"], numerics, mode["defects"])
        rows.append((mode["name"], *map(str, counts), _finding(not mode["defects"])))
    header = ("decoding", "prompts", "tokens", "identical", "numerics", "defects", "result")
    lines = [line for mode in part["modes"] for line in _differences(mode)]
    return Table.of("By equality", header, rows, notes=lines)


def _differences(mode: dict[str, Any]) -> Iterator[str]:
    """A line for the first difference after each prompt that has one."""
    for entry in mode["differences"]:
        first = entry["difference"]
        gap = f"{_number(first['gap'])} behind the best score"
        yield (
            f"- {mode['name']}, prompt {entry['prompt'] + 1}: token {first['index'] + 1} is "
            f"{first['token_id']} instead of {first['plain_token_id']}, "
            f"{'which is not possible' if first['gap'] is None else gap}, where rounding explains "
            f"{_number(first['tolerance'])}: {first['explanation']} (the two largest logits are "
            f"{_number(first['margin'])} apart)."
        )


def _finding(passed: bool, finding: str = "defect") -> Cell:
    return Cell("ok", style="green") if passed else Cell(finding, style="red")


def _number(value: float | None) -> str:
    """A number with three digits; None stands for values that are not finite."""
    return "not finite" if value is None else f"{value:.3g}"
