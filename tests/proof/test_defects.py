"""Planted defects are caught by the statistics alone and by enumeration; honest methods pass both."""

from __future__ import annotations

import defects
import pytest

from forerun.contracts import Drafter, Verifier
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ExactnessError
from forerun.params import SamplingParams
from forerun.proof.setting import Setting
from forerun.proof.statistics import Statistics, by_statistics
from forerun.randomness import Randomness
from forerun.testing import ToyModel, TreeDrafter, check_drafter, check_verifier
from forerun.verification.token import TokenRule

VOCAB, ROWS = 8, 8
TARGET = ToyModel(VOCAB, sharpness=1.2, max_context=64)
DRAFT = ToyModel(VOCAB, sharpness=1.2, noise=0.8, max_context=64)
SMALL_TARGET = ToyModel(3, sharpness=1.0)
SMALL_DRAFT = ToyModel(3, sharpness=1.0, noise=0.8)
PROMPTS = [[1, 2, 3, 1, 2], [4, 5], [7, 0, 7, 0, 7]]


def statistics(
    drafter: Drafter,
    rule: str,
    verifier: Verifier | None = None,
    num_tokens: int = 1500,
    randomness: Randomness | None = None,
) -> Statistics:
    config = SpeculativeConfig(
        num_speculative_tokens=3, rejection_sample_method=rule, monitor=False
    )
    engine = Engine(TARGET, drafter, config, max_batch_size=ROWS, randomness=randomness)
    if verifier is not None:
        engine.rules[rule] = verifier
    setting = Setting(SamplingParams(temperature=0.9, presence_penalty=0.2), num_tokens, 40)
    return by_statistics(engine, PROMPTS, setting)


@pytest.mark.parametrize(
    "kind", [defects.SoftmaxForArgmax, defects.DropsUnlikely, defects.OtherTemperature]
)
def test_defects_of_drafters(kind: type[DraftModelDrafter]) -> None:
    found = statistics(defects.chain_drafter(kind, DRAFT, ROWS), "token")
    assert not found.passed
    # Not only inside of the round: what comes out is wrong too, and that alone would do.
    alarms = found.first.alarms(0.01)
    assert any(name.startswith(("emitted", "round start")) for name in alarms)
    with pytest.raises(ExactnessError, match="changes the distribution"):
        check_drafter(kind(SMALL_DRAFT, 2, 64), SMALL_TARGET)


def test_the_recovered_token_drawn_from_the_target() -> None:
    drafter = defects.chain_drafter(DraftModelDrafter, DRAFT, ROWS)
    assert not statistics(drafter, "token", defects.RecoversFromTarget()).passed
    with pytest.raises(ExactnessError, match="'token' changes the distribution"):
        check_verifier(defects.RecoversFromTarget())


def test_the_target_drawn_once_a_branch() -> None:
    assert not statistics(defects.tree_drafter(DRAFT), "token", defects.OnceABranch()).passed
    with pytest.raises(ExactnessError, match="over point masses"):
        check_verifier(defects.OnceABranch())


@pytest.mark.parametrize("rule", ["token", "block", "auto"])
@pytest.mark.parametrize("kind", [defects.OneNumberADraft, defects.TheSameEachRound])
def test_numbers_used_twice(kind: type[Randomness], rule: str) -> None:
    """Every token follows its row; only together do they not follow the target."""
    drafter = defects.chain_drafter(DraftModelDrafter, DRAFT, ROWS)
    found = statistics(drafter, rule, randomness=kind())
    assert not found.passed
    words = "consecutive" if kind is defects.OneNumberADraft else "round by round"
    assert any(words in name for name in found.first.alarms(0.01))


@pytest.mark.parametrize(
    ("drafter", "rule"),
    [
        (DraftModelDrafter(DRAFT, ROWS, 64), "token"),
        (DraftModelDrafter(DRAFT, ROWS, 64), "block"),
        (DraftModelDrafter(DRAFT, ROWS, 64), "coupled"),
        (NgramDrafter(1, 3), "token"),
        (TreeDrafter(DRAFT, (3, 2)), "token"),
        (TreeDrafter(DRAFT, (2, 2), replacement=True), "token"),
        (TreeDrafter(DRAFT, (3, 2)), "traversal"),
        (TreeDrafter(DRAFT, (2, 2), replacement=True), "traversal"),
        (TreeDrafter(DRAFT, (1, 1, 1)), "auto"),
    ],
    ids=[
        "chain-token",
        "chain-block",
        "chain-coupled",
        "ngram",
        "tree",
        "tree-replacement",
        "tree-traversal",
        "tree-replacement-traversal",
        "auto",
    ],
)
def test_honest_methods_pass(drafter: Drafter, rule: str) -> None:
    found = statistics(drafter, rule)
    assert found.passed
    assert found.first.num_tokens >= 1500
    assert found.first.largest_row_difference < 1e-12
    # What auto takes for a drafter of trees that proposes chains is watched, not guessed.
    assert found.first.rules == (("block",) if rule == "auto" else (rule,))


def test_a_walk_that_does_not_follow_its_decision_is_caught() -> None:
    """`decide` is right, `verify` is not: enumerating the decision alone would pass."""

    class Strays(TokenRule):
        def verify(self, draft, target_probs, sequence, randomness):  # type: ignore[no-untyped-def]
            return defects.RecoversFromTarget().verify(draft, target_probs, sequence, randomness)

    with pytest.raises(ExactnessError):
        check_verifier(Strays())
    found = statistics(DraftModelDrafter(DRAFT, ROWS, 64), "token", Strays())
    assert any(name.startswith("recovered") for name in found.first.alarms(0.01))
