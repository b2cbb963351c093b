"""A proof for people: the result of each part, on a terminal or in a pipe."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from forerun.proof.certificate import (
    alarms,
    differences,
    enumerated,
    limits,
    number,
    rows,
    verdict,
)


def show(content: dict[str, Any]) -> None:
    """Print the object of `--json`."""
    # Long lines are not cut: terminals wrap them, and pipes have no width.
    console = Console(highlight=False, soft_wrap=True)
    if content["enumeration"] is not None:
        _show_enumeration(console, content["enumeration"])
    if content["statistics"] is not None:
        _show_statistics(console, content["statistics"])
    if content["equality"] is not None:
        _show_equality(console, content["equality"])
    for note in content["notes"]:
        console.print(f"Note: {note}", markup=False)
    style = "bold green" if content["passed"] else "bold red"
    console.print(f"{verdict(content)} ({content['seconds']:.0f} s)", style=style, markup=False)


def _show_enumeration(console: Console, part: dict[str, Any]) -> None:
    columns = ("rule", "cases", "sequences", "seeds", "largest deviation", "")
    table = _table("By enumeration", *columns)
    for rule in part["rules"]:
        counts = (rule["cases"], rule["sequences"] - rule["seeds"], rule["seeds"])
        deviation = number(rule["largest_deviation"])
        mark = _mark(rule["passed"], rule["level"] if rule["level"] == "approximate" else "defect")
        table.add_row(rule["rule"], *(str(count) for count in counts), deviation, mark)
    console.print(table)
    console.print(f"{enumerated(part)}\n", markup=False)


def _show_statistics(console: Console, part: dict[str, Any]) -> None:
    titles = ("By statistics", "Second look, at fresh outputs")
    for title, look in zip(titles, part["looks"], strict=False):
        table = _table(title, "test", "outcomes", "chi-square", "p", "p (Holm)", "")
        for test in look["tests"]:
            table.add_row(
                test["name"],
                str(test["count"]),
                f"{test['statistic']:.1f} ({test['degrees']})",
                number(test["p_value"]),
                number(test["adjusted"]),
                _mark(test["adjusted"] >= part["level"], "alarm"),
            )
        console.print(table)
        console.print(
            f"{look['num_tokens']} tokens of {look['num_outputs']} outputs in "
            f"{look['seconds']:.0f} s. {alarms(look, part['level'])}",
            markup=False,
        )
        console.print(rows(look), markup=False)
        for line in limits(look):
            console.print(line, markup=False)
        console.print()


def _show_equality(console: Console, part: dict[str, Any]) -> None:
    table = _table("By equality", "decoding", "prompts", "identical", "numerics", "defects", "")
    for mode in part["modes"]:
        numerics = len(mode["differences"]) - mode["defects"]
        counts = (mode["prompts"], mode["identical"], numerics, mode["defects"])
        shown = [str(count) for count in counts]
        table.add_row(mode["name"], *shown, _mark(not mode["defects"], "defect"))
    console.print(table)
    for mode in part["modes"]:
        for line in differences(mode):
            console.print(line, markup=False)
    console.print()


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    return table


def _mark(passed: bool, otherwise: str) -> str:
    return "[green]ok[/]" if passed else f"[red]{otherwise}[/]"
