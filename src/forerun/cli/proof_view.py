"""A proof for people: what each part found, on a terminal or in a pipe."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from forerun.proof.certificate import alarms, differences, limits, number, verdict


def show(content: dict[str, Any]) -> None:
    """Print the object of `--json`."""
    console = Console(highlight=False)
    if not console.is_terminal:
        # A pipe has no width of its own; nothing is cut there.
        console = Console(highlight=False, width=200)
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
    table = _table("By enumeration", "rule", "cases", "sequences", "largest deviation", "")
    for one in part["rules"]:
        deviation = number(one["largest_deviation"])
        row = (one["rule"], str(one["cases"]), str(one["sequences"]), deviation)
        table.add_row(*row, _mark(one["passed"]))
    console.print(table)
    console.print(f"every outcome of {part['cases']} cases, allowed {part['bound']:.0e}\n")


def _show_statistics(console: Console, part: dict[str, Any]) -> None:
    titles = ("By statistics", "Second look, at fresh outputs")
    for title, look in zip(titles, part["looks"], strict=False):
        table = _table(title, "test", "outcomes", "chi-square", "p", "p (Holm)", "")
        for one in look["tests"]:
            table.add_row(
                one["name"],
                str(one["count"]),
                f"{one['statistic']:.1f} ({one['degrees']})",
                number(one["p_value"]),
                number(one["adjusted"]),
                _mark(one["adjusted"] >= part["level"]),
            )
        console.print(table)
        console.print(
            f"{look['num_tokens']} tokens of {look['num_outputs']} outputs in "
            f"{look['seconds']:.0f} s. {alarms(look, part['level'])}",
            markup=False,
        )
        for line in limits(look):
            console.print(line, markup=False)
        console.print()


def _show_equality(console: Console, part: dict[str, Any]) -> None:
    table = _table(
        "By equality", "decoding", "rule", "prompts", "identical", "numerics", "defects", ""
    )
    for mode in part["modes"]:
        numerics = len(mode["differences"]) - mode["defects"]
        counts = (mode["prompts"], mode["identical"], numerics, mode["defects"])
        shown = [str(count) for count in counts]
        table.add_row(mode["name"], mode["rule"], *shown, _mark(not mode["defects"]))
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


def _mark(passed: bool) -> str:
    return "[green]ok[/]" if passed else "[red]defect[/]"
