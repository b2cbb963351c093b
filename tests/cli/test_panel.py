"""The closing panel says in words what happened."""

from __future__ import annotations

import re
from typing import Any

import pytest

from forerun.cli.outcome import drafting
from forerun.core import PlainReason, Stats
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import DEFAULT, MODELS_OWN, SamplingParams, in_words
from forerun.policies.fixed import FixedPolicy
from forerun.testing import ToyModel, TreeDrafter
from tests.helpers.command_line import Cli


def panel(cli: Cli, *args: str) -> dict[str, str]:
    """The rows of the panel; those that go on over several lines joined."""
    options = ("--prompt", "def add", "--temperature", "0", *args)
    lines = re.findall("^│ (.{25})  (.*?) *│$", cli.generate(*options).stderr, re.MULTILINE)
    rows: dict[str, str] = {}
    for name, text in lines:
        key = name.strip() or list(rows)[-1]
        rows[key] = f"{rows[key]} {text}" if key in rows else text
    return rows


def test_plain_decoding_says_that_it_was_asked_for(cli: Cli) -> None:
    result = cli.run("generate", "--model", cli.target, "--no-speculative", "--prompt", "a")
    assert "nothing: plain decoding was asked for" in result.stderr


def test_too_short_for_a_draft(cli: Cli) -> None:
    rows = panel(cli, "--max-tokens", "1")
    assert rows["drafted"] == "nothing: too short: one token was left to emit"
    assert "acceptance rate" not in rows


def test_nothing_to_look_up(cli: Cli) -> None:
    options = ("--model", cli.target, "--method", "ngram", "--max-tokens", "2", "--prompt", "a")
    talk = cli.run("generate", *options).stderr
    assert "ngram found nothing" in talk


def test_a_chain_has_a_rate_and_a_tree_its_first_token(cli: Cli) -> None:
    chain, tree = panel(cli), panel(cli, "--tree", "auto")
    assert "first token taken" not in chain
    assert re.fullmatch(r"\d+% \(\d+ of \d+ drafted\)", chain["acceptance rate"])
    assert "acceptance rate" not in tree
    content = cli.json("--temperature", "0", "--tree", "auto")["stats"]
    first, rounds = content["num_accepted_tokens_per_pos"][0], content["num_drafts"]
    assert tree["first token taken"].startswith(f"in {first} of {rounds} rounds")


def test_drafters_that_were_given_up_are_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its sentence; without any there is no such row."""
    assert "given up" not in panel(cli)
    assert cli.json()["given_up"] == []
    sentences = ["one was given up after 3 rounds", "two was given up in an earlier run"]
    monkeypatch.setattr(FixedPolicy, "given_up", lambda _: sentences)
    assert panel(cli)["given up"] == " ".join(sentences)
    assert cli.json()["given_up"] == sentences


def of_rounds(drafted: int = 0, **reasons: int) -> Stats:
    return Stats(
        num_drafts=drafted,
        num_draft_tokens=4 * drafted,
        num_accepted_tokens=drafted,
        num_plain_rounds=sum(reasons.values()),
        num_plain_rounds_by_reason=reasons,
    )


@pytest.fixture
def one() -> Engine:
    model = ToyModel(5)
    return Engine(model, TreeDrafter(ToyModel(5), (1, 1)), SpeculativeConfig(method="ngram"))


def test_every_reason_has_words(one: Engine) -> None:
    texts = {drafting(of_rounds(**{reason: 1}), one) for reason in PlainReason}
    assert len(texts) == len(PlainReason)
    assert all(text.startswith("nothing: ") for text in texts)
    counted = drafting(of_rounds(5, **dict.fromkeys(PlainReason, 2)), one)
    assert counted.startswith(f"in 5 of {5 + 2 * len(PlainReason)} rounds; plain: ")
    assert counted.count(" 2 ") == len(PlainReason)
    assert drafting(of_rounds(5), one) == "in all 5 rounds"


def test_a_last_token_is_no_reason_for_a_whole_text(one: Engine) -> None:
    assert (
        drafting(of_rounds(nothing_found=59, short=1), one)
        == "nothing: ngram found nothing to propose"
    )


@pytest.mark.parametrize(
    ("params", "origins", "text"),
    [
        ({}, {}, "temperature 1"),
        (
            {"temperature": 0.0, "top_k": 4, "max_tokens": 5},
            {"top_k": MODELS_OWN},
            "greedy (temperature 0)",
        ),
        (
            {"temperature": 0.0, "repetition_penalty": 1.1},
            {"temperature": DEFAULT, "repetition_penalty": MODELS_OWN},
            "greedy (temperature 0) (the default); repetition_penalty 1.1 (the model's own)",
        ),
        (
            {"temperature": 0.6, "top_k": 20, "seed": 7},
            {"temperature": MODELS_OWN, "top_k": MODELS_OWN},
            "seed 7; temperature 0.6, top_k 20 (the model's own)",
        ),
        ({"banned_token_ids": (1, 2)}, {}, "temperature 1, banned_token_ids of 2 tokens"),
    ],
    ids=str,
)
def test_sampling_in_words(params: dict[str, Any], origins: dict[str, str], text: str) -> None:
    assert in_words(SamplingParams(**params), origins) == text


def test_sampling_is_shown_and_reported(cli: Cli) -> None:
    assert panel(cli)["sampling"] == "greedy (temperature 0)"
    content = cli.json("--top-k", "7", "--seed", "3")
    assert content["sampling"] == {
        "temperature": 1.0,
        "top_k": 7,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 3,
        "max_tokens": 24,
    }
    assert content["sampling_from_model"] == []
