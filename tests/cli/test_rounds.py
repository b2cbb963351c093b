"""`--show-rounds`: each round's draft as a tree, and what of it was emitted."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from forerun.cli.outcome import Round
from forerun.cli.terminal import show_rounds
from forerun.core import Draft, Origin, Tree, Verdict
from tests.helpers.command_line import Cli

TREE = Draft(Tree((-1, 0, 1, 0)), (1, 2, 3, 4))
VERDICT = Verdict((0, 3), (1, 4, 5), (Origin.ACCEPTED, Origin.ACCEPTED, Origin.BONUS))


def shown(*rounds: Round) -> list[str]:
    out = io.StringIO()
    show_rounds(Console(file=out, width=80), rounds, None)
    return out.getvalue().splitlines()


def test_a_tree_is_drawn_with_its_branches_below() -> None:
    assert shown(Round(TREE, drawn=False, verdict=VERDICT))[2:] == [
        "round 1: 2 of 4 accepted, emitted «1» «4» ‹5›",
        "  «1»",
        "    2 3",
        "    «4»",
    ]


def test_a_chain_is_one_line_and_a_plain_round_has_none() -> None:
    chain = Round(Draft.chain([7, 8, 9]), False, Verdict((), (6,), (Origin.RECOVERED,)))
    plain = Round(Draft.chain([]), False, Verdict((), (5,), (Origin.PLAIN,)))
    assert shown(chain, plain)[2:] == [
        "round 1: 0 of 3 accepted, emitted ¦6¦",
        "  7 8 9",
        "round 2: plain, emitted 5",
    ]


def test_eighty_columns() -> None:
    ids = range(100_000, 100_060)
    long = Round(Draft.chain(ids), False, Verdict((), (6,), (Origin.RECOVERED,)))
    assert max(map(cell_len, shown(long))) <= 80


@pytest.mark.parametrize("options", [(), ("--tree", "auto", "--temperature", "0.9")], ids=str)
def test_a_pipe_gets_text_alone_and_marks_beside_it(cli: Cli, options: tuple[str, ...]) -> None:
    asked = ("--prompt", "def add", "--seed", "4", *options)
    result = cli.generate(*asked, "--show-rounds")
    assert "«" in result.stderr
    assert "\x1b" not in result.output
    assert result.stdout == cli.generate(*asked).stdout
