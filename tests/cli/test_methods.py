"""`forerun generate --method …`: every drafter, with chains and trees, and the rounds that they made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forerun.drafters import DRAFTERS
from tests.helpers import eagle_heads, medusa_heads
from tests.helpers.command_line import Cli, Write
from tests.helpers.refusals import refused

GREEDY = ("--temperature", "0")
# Text to copy from, so that drafters without a model have something to say.
PROMPT = "def add(a, b):\n    return a + b\n" * 3
NEEDS = {"layer_skip": ("--exit-layer", "1")}
SIZES: dict[str, Any] = {"hidden": 16, "target_hidden": 16, "vocab": 300}
# Random heads for the target, by the method that drafts with them.
HEADS: dict[str, Callable[[Path], Path]] = {
    "eagle3": lambda folder: eagle_heads.write(
        folder, eagle_heads.Made(**SIZES, draft_vocab=200, ids=(0, 1, 2)), "vllm"
    ),
    "medusa": lambda folder: medusa_heads.write(
        folder, medusa_heads.Made(16, 300, draft_vocab=200, output="target"), "vllm"
    ),
}


def alone(cli: Cli, *args: str) -> Any:
    """On the target alone, with no draft model named."""
    usual = ["--model", cli.target, "--max-tokens", "24", "--prompt", PROMPT]
    if "--no-speculative" not in args:
        usual += ("--policy", "fixed")
    return cli.run("generate", *usual, *args)


def content_of(result: Any) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


@pytest.mark.parametrize("method", sorted(DRAFTERS))
@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("sampling", [GREEDY, ("--seed", "3")])
def test_every_method_gives_plain_text(
    cli: Cli, write: Write, tmp_path: Path, method: str, tree: bool, sampling: tuple[str, ...]
) -> None:
    options = ["--method", method, *NEEDS.get(method, ()), *sampling]
    if tree:
        options += ["--tree", "auto", "--num-tree-nodes", "6"]
    if DRAFTERS[method].needs_draft_model or method == "cascade":
        options += ["--draft-model", cli.draft]
    if DRAFTERS[method].head:
        options += ["--draft-model", str(HEADS[method](tmp_path / "head"))]
    plain = content_of(alone(cli, "--no-speculative", *sampling, "--json"))
    if method == "prediction":
        options += ["--prediction-file", write("expected.txt", plain["text"])]
    if tree and not DRAFTERS[method].takes_trees:
        refused(alone(cli, *options, "--json"), "chains alone")
        return
    drafted = content_of(alone(cli, *options, "--json"))
    assert drafted["method"] == method
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["stats"]["num_draft_tokens"] > 0


def test_a_cascade_names_its_methods(cli: Cli) -> None:
    options = ("--method", "cascade", "--cascade", "ngram,suffix", *GREEDY, "--json")
    assert content_of(alone(cli, *options))["draft_model"] is None


def test_rounds_are_shown_after_the_text(cli: Cli) -> None:
    result = alone(cli, *GREEDY, "--draft-model", cli.draft, "--tree", "auto", "--show-rounds")
    assert result.exit_code == 0
    assert "round" not in result.stdout
    headings = re.findall(r"round (\d+): (?:plain|(\d+) of (\d+) accepted), emitted", result.stderr)
    assert [int(number) for number, _, _ in headings] == list(range(1, len(headings) + 1))
    assert any(int(drafted or 0) > 4 for _, _, drafted in headings)
    assert "\n    ⟨" in result.stderr, "no branches"


def test_rounds_are_part_of_the_object(cli: Cli) -> None:
    content = content_of(
        alone(cli, *GREEDY, "--draft-model", cli.draft, "--tree", "auto", "--show-rounds", "--json")
    )
    emitted = [token for entry in content["rounds"] for token in entry["emitted"]]
    assert emitted == content["token_ids"]
    for entry in content["rounds"]:
        assert len(entry["parents"]) == len(entry["token_ids"])
        accepted = [entry["token_ids"][node] for node in entry["accepted"]]
        assert accepted == entry["emitted"][: len(accepted)]
    assert (
        sum(len(entry["accepted"]) for entry in content["rounds"])
        == (content["stats"]["num_accepted_tokens"])
    )


def test_what_is_approximate_says_so(cli: Cli) -> None:
    options = ("--draft-model", cli.draft, "--rejection-sample-method", "typical")
    assert content_of(alone(cli, *options, "--json"))["exactness"] == "approximate"
    assert "approximate" in alone(cli, *options).stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tree", "/no/such.json"), ["/no/such.json", "cannot be read"]),
        (("--tree", "auto", "--num-tree-nodes", "0"), ["--num-tree-nodes", "[1, 128]"]),
        (("--num-tree-nodes", "8"), ["--num-tree-nodes", "--tree"]),
        (("--tree", "auto", "--rejection-sample-method", "block"), ["block verification"]),
        (("--show-rounds", "--compare"), ["--show-rounds", "--compare"]),
        (("--no-speculative", "--show-rounds"), ["--show-rounds"]),
        (("--method", "ngram", "--prediction-file", "x"), ["prediction"]),
        (("--method", "prediction", "--prediction-file", "/no/file"), ["/no/file"]),
        (("--method", "prediction"), ["--prediction-file"]),
        (("--method", "suffix", "--suffix-store-tokens", "9"), ["later requests", "--corpus"]),
        (("--method", "layer_skip", "--exit-layer", "2"), ["layer"]),
        (("--method", "layer_skip", "--exit-layer", "0"), ["--exit-layer"]),
        (("--method", "layer_skip", "--exit-layer", "a"), ["not a valid integer"]),
        (("--method", "ngram", "--exit-layer", "1"), ["--exit-layer", "'layer_skip'"]),
        (("--method", "cascade", "--cascade", "ngram,sufix"), ["'suffix'"]),
        (("--method", "cascade", "--cascade", "ngram,,suffix"), ["not a list with commas"]),
        (("--method", "cascade", "--cascade", "ngram"), ["nothing to choose from"]),
        (("--method", "cascade", "--cascade-confidence", "2"), ["--cascade-confidence"]),
    ],
    ids=str,
)
def test_wrong_use_is_one_line(
    cli: Cli, write: Write, options: tuple[str, ...], words: list[str]
) -> None:
    refused(alone(cli, *options, *GREEDY), *words)


def test_files_that_are_no_text_or_no_tree_are_refused(cli: Cli, tmp_path: Any) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("naïve".encode("latin-1"))
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    tree = tmp_path / "tree.json"
    tree.write_text('{"parents": [-1, 5]}')
    refused(alone(cli, "--method", "prediction", "--prediction-file", str(latin)), "UTF-8")
    refused(alone(cli, "--method", "prediction", "--prediction-file", str(empty)), "is empty")
    refused(alone(cli, "--draft-model", cli.draft, "--tree", str(tree)), "node 1 is 5")


def test_the_method_follows_from_the_head(cli: Cli, tmp_path: Path) -> None:
    head = str(HEADS["eagle3"](tmp_path))
    result = alone(cli, "--draft-model", head, *GREEDY, "--json")
    content = content_of(result)
    assert "prompt lookup" not in result.stderr
    assert (content["method"], content["draft_model"]) == ("eagle3", head)


def test_heads_are_refused_where_they_cannot_draft(cli: Cli, tmp_path: Path) -> None:
    """The head of another target, a model as a head, a head as a model, and no head at all."""
    for sizes, message in (
        ({"hidden": 24, "target_hidden": 24}, "hidden size of 24, and"),
        ({"vocab": 310}, "vocabulary of 310, and"),
    ):
        made = eagle_heads.Made(**{**SIZES, **sizes}, ids=(0, 1, 2))
        other = str(eagle_heads.write(tmp_path / "other", made, "vllm"))
        refused(alone(cli, "--draft-model", other, *GREEDY), message)
    head = str(HEADS["eagle3"](tmp_path / "head"))
    refused(alone(cli, "--method", "eagle3", "--draft-model", cli.draft), "no fc.weight")
    refused(alone(cli, "--method", "draft_model", "--draft-model", head), "use method 'eagle3'")
    refused(alone(cli, "--method", "eagle3"), "no eagle3 head is known for")
    both = ("--method", "cascade", "--cascade", "draft_model,eagle3", "--draft-model", head)
    refused(alone(cli, *both), "one can be named")
