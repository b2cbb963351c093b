"""A proof as a Markdown document: settings, versions and results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any


def certificate(content: dict[str, Any]) -> str:
    """The document for the object of `forerun prove --json`."""
    return "\n".join(_lines(content)) + "\n"


def verdict(content: dict[str, Any]) -> str:
    """The outcome in one sentence."""
    if content["level"] == "approximate":
        return "Not exact: the method is approximate by design and changes the distribution."
    if not content["passed"]:
        return "A defect was found: speculation changes what comes out."
    return f"No defect was found. The promise is {content['level']} exactness."


def _lines(content: dict[str, Any]) -> Iterator[str]:
    settings = content["settings"]
    yield f"# Exactness of {settings['model']} under speculation"
    yield ""
    yield f"**{verdict(content)}**"
    yield ""
    yield from _table(("what", "value"), _facts(content))
    yield from _enumeration(content["enumeration"])
    yield from _statistics(content["statistics"])
    yield from _equality(content["equality"])
    for note in content["notes"]:
        yield ""
        yield f"Note: {note}"


def _facts(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in content["versions"].items():
        yield name, str(value)
    for name, value in content["hardware"].items():
        yield name, str(value)
    for name, value in content["settings"].items():
        yield name.replace("_", " "), _shown(value)
    yield "rule", content["rule"]
    yield "level", content["level"]
    yield "seconds", f"{content['seconds']:.0f}"


def _enumeration(part: dict[str, Any] | None) -> Iterator[str]:
    if part is None:
        return
    yield ""
    yield "## By enumeration"
    yield ""
    yield enumerated(part)
    yield ""
    yield from _table(
        ("rule", "cases", "sequences", "seeds", "largest deviation", "passed"),
        (
            (
                rule["rule"],
                str(rule["cases"]),
                str(rule["sequences"] - rule["seeds"]),
                str(rule["seeds"]),
                number(rule["largest_deviation"]),
                "yes" if rule["passed"] else "no",
            )
            for rule in part["rules"]
        ),
    )


def enumerated(part: dict[str, Any]) -> str:
    """The scope of the enumeration, in one sentence."""
    return (
        f"{part['cases']} cases on small vocabularies: every outcome of every draft, whole sequences "
        f"against the target's own distribution; rules that draw by noise, seed by seed against plain "
        f"decoding. Largest deviation {number(part['largest_deviation'])}, allowed {part['bound']:.0e}."
    )


def _statistics(part: dict[str, Any] | None) -> Iterator[str]:
    if part is None:
        return
    for name, look in zip(
        ("By statistics", "Second look, at fresh outputs"), part["looks"], strict=False
    ):
        yield ""
        yield f"## {name}"
        yield ""
        yield (
            f"{look['num_tokens']} tokens of {look['num_outputs']} outputs, each against the "
            f"target's row given its prefix, drafts verified by {', '.join(look['rules']) or 'nothing'}. "
            f"{alarms(look, part['level'])}"
        )
        yield ""
        yield from _table(
            ("test", "outcomes", "chi-square", "degrees", "p", "p (Holm)"),
            (
                (
                    test["name"],
                    str(test["count"]),
                    f"{test['statistic']:.2f}",
                    str(test["degrees"]),
                    number(test["p_value"]),
                    number(test["adjusted"]),
                )
                for test in look["tests"]
            ),
        )
        yield ""
        yield rows(look)
        yield ""
        yield from limits(look)


def rows(look: dict[str, Any]) -> str:
    """Impossible tokens and differences of rows, in one sentence."""
    allowed = look["row_tolerance"]
    bound = (
        "edges of top-k, top-p or min-p may move"
        if allowed is None
        else f"rounding explains {number(allowed)}"
    )
    return (
        f"Tokens that the target excludes: {look['impossible']}. Largest difference between the rows "
        f"that verified and the target's own: {number(look['largest_row_difference'])} ({bound})."
    )


def limits(look: dict[str, Any]) -> Iterator[str]:
    """The detection limits, a line per family."""
    for limit in look["limits"]:
        yield (
            f"- {limit['family']} ({limit['meaning']}): a total variation of "
            f"{limit['total_variation']:.4f} would have been detected with probability "
            f"{limit['power']}, by the test '{limit['test']}'."
        )


def alarms(look: dict[str, Any], level: float) -> str:
    """The alarms of a look, in one sentence."""
    if look["alarms"]:
        return f"Alarms at level {level}: {', '.join(look['alarms'])}."
    return f"No alarm at level {level}."


def _equality(part: dict[str, Any] | None) -> Iterator[str]:
    if part is None:
        return
    yield ""
    yield "## By equality"
    yield ""
    yield from _table(
        ("decoding", "prompts", "tokens", "identical", "numerics", "defects"),
        (
            (
                mode["name"],
                str(mode["prompts"]),
                str(mode["tokens"]),
                str(mode["identical"]),
                str(len(mode["differences"]) - mode["defects"]),
                str(mode["defects"]),
            )
            for mode in part["modes"]
        ),
    )
    for mode in part["modes"]:
        yield from differences(mode)


def differences(mode: dict[str, Any]) -> Iterator[str]:
    """The first difference after each prompt that has one, a line per prompt."""
    for entry in mode["differences"]:
        first = entry["difference"]
        yield (
            f"- {mode['name']}, prompt {entry['prompt'] + 1}: token {first['index'] + 1} is "
            f"{first['token_id']} instead of {first['plain_token_id']}, {_gap(first['gap'])}, where "
            f"rounding explains {number(first['tolerance'])}: {first['explanation']} (the two largest "
            f"logits are {number(first['margin'])} apart)."
        )


def number(value: float | None) -> str:
    """A figure with three digits; None stands for values that are not finite."""
    return "not finite" if value is None else f"{value:.3g}"


def _gap(gap: float | None) -> str:
    return "which is not possible" if gap is None else f"{number(gap)} behind the best score"


def _shown(value: Any) -> str:
    return json.dumps(value, default=str) if isinstance(value, dict) else str(value)


def _table(names: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield f"|{' --- |' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
