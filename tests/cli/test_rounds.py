"""`--show-rounds`: every drafted token with its probabilities, the uniform of its test, and what was left."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from forerun.cli.outcome import Round
from forerun.cli.rounds import show_rounds
from forerun.core import Origin, Tree
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from tests.helpers.command_line import Cli
from tests.matrix import DRAFT, TARGET

SHAPE = Tree.branching((3, 2, 1))
LARGE = Tree.branching((4, 4, 2))
DRAWN = SamplingParams(temperature=0.9, max_tokens=40)


def rounds_of(rule: str, tree: Tree | None, params: SamplingParams = DRAWN) -> list[Round]:
    config = SpeculativeConfig(policy="fixed", rejection_sample_method=rule, tree=tree)
    one = Engine(TARGET, DraftModelDrafter(DRAFT, 1, 512), config)
    one.use_seeds(lambda: 5)
    rounds: list[Round] = []
    one.explain_rounds(lambda _, *entry: rounds.append(Round.of(*entry)))
    one.generate([[1, 2, 3]], params)
    return rounds


def shown(rounds: list[Round]) -> list[str]:
    out = io.StringIO()
    show_rounds(Console(file=out, width=80), rounds, None)
    return out.getvalue().splitlines()


def by_round(lines: list[str]) -> list[list[str]]:
    starts = [index for index, line in enumerate(lines) if line.startswith("round ")]
    return [lines[start:stop] for start, stop in zip(starts, [*starts[1:], None], strict=True)]


RULES = [
    ("token", None),
    ("token", SHAPE),
    ("block", None),
    ("traversal", SHAPE),
    ("coupled", None),
    ("typical", None),
]


@pytest.mark.parametrize(("rule", "tree"), RULES)
def test_every_drafted_token_has_its_numbers(rule: str, tree: Tree | None) -> None:
    rounds = rounds_of(rule, tree)
    lines = shown(rounds)
    assert any(line.startswith(f"{rule}: ") for line in lines)
    for entry, part in zip(rounds, by_round(lines), strict=True):
        assert entry.why is not None
        for token, record in zip(entry.draft.token_ids, entry.why.nodes, strict=True):
            numbers = [record.target_prob, record.draft_prob, record.ratio]
            numbers += [v for v in (record.uniform, record.threshold) if v is not None]
            texts = ["<.0001" if 0 < value < 1e-4 else f"{value:.4f}" for value in numbers]
            assert any(
                re.match(rf"[ │├└]*«?{token}»? ", line) and all(text in line for text in texts)
                for line in part
            ), (record, part)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_rejection_shows_what_is_left(rule: str) -> None:
    rounds = rounds_of(rule, None)
    rejected = 0
    for entry, part in zip(rounds, by_round(shown(rounds)), strict=True):
        if entry.verdict.origins[-1] is not Origin.RECOVERED:
            continue
        assert entry.why is not None
        best, probability = entry.why.emit[0]
        [line] = [line for line in part if "drawn at u" in line]
        assert f"¦{entry.verdict.token_ids[-1]}¦ drawn at u {entry.why.uniform:.4f}" in line
        assert f"from what is left: {best} {probability:.1%}" in line
        rejected += 1
    assert rejected


def test_nodes_that_were_not_reached_are_left_out_of_large_trees() -> None:
    rounds = rounds_of("token", LARGE)
    lines = shown(rounds)
    for entry, part in zip(rounds, by_round(lines), strict=True):
        assert entry.why is not None
        left_out = sum(node.passed is None for node in entry.why.nodes)
        if len(entry.draft) > 16 and left_out:
            assert f"  and {left_out} nodes that were not reached" in part


@pytest.mark.parametrize(("rule", "tree"), [*RULES, ("token", LARGE)])
def test_eighty_columns(rule: str, tree: Tree | None) -> None:
    assert max(map(cell_len, shown(rounds_of(rule, tree)))) <= 80


@pytest.mark.parametrize(
    "options",
    [
        ("--rejection-sample-method", "token"),
        ("--rejection-sample-method", "block"),
        ("--tree", "auto", "--rejection-sample-method", "traversal"),
    ],
    ids=str,
)
def test_the_object_carries_the_records(cli: Cli, options: tuple[str, ...]) -> None:
    """They replay to what was emitted."""
    content = cli.json("--show-rounds", "--max-tokens", "60", *options)
    drafted = [entry for entry in content["rounds"] if entry["token_ids"]]
    for entry in drafted:
        assert len(entry["nodes"]) == len(entry["token_ids"])
        for token, node in zip(entry["token_ids"], entry["nodes"], strict=True):
            assert node["token_id"] == token
            if node["uniform"] is not None:
                assert node["passed"] == (node["uniform"] < node["accept"])
        path: list[int] = []
        if entry["rule"] == "token":
            path = [node for node in entry["tests"] if entry["nodes"][node]["passed"]]
        elif entry["tests"] and entry["nodes"][entry["tests"][-1]]["passed"]:
            node = entry["tests"][-1]
            while node >= 0:
                path.insert(0, node)
                node = entry["parents"][node]
        tokens = [entry["token_ids"][node] for node in path] + [entry["last"]["token_id"]]
        # The last round may be cut at the limit.
        assert tokens[: len(entry["emitted"])] == entry["emitted"]
    assert drafted


def test_a_pipe_gets_text_alone_and_marks_beside_it(cli: Cli) -> None:
    result = cli.generate("--prompt", "def add", "--show-rounds", "--temperature", "0")
    assert "«" in result.stderr
    assert "\x1b" not in result.output
    assert result.stdout == cli.json("--temperature", "0")["text"] + "\n"
