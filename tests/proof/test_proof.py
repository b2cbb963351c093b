"""The parts of a proof see what they are there for, and a proof of nothing is none."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.core import Draft, Exactness, ForwardOutput
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.params import SamplingParams
from forerun.proof import statistics
from forerun.proof.effort import Effort
from forerun.proof.proof import Proof, prove
from forerun.testing import ToyModel
from forerun.verification.decision import Decision
from forerun.verification.token import TokenRule

VOCAB, ROWS = 8, 4
TARGET = ToyModel(VOCAB, sharpness=1.2, max_context=64)
DRAFT = ToyModel(VOCAB, sharpness=1.2, noise=0.8, max_context=64)
PROMPTS = [[1, 2, 3], [4, 5]]
FEW = Effort(num_tokens=400, output_tokens=20, equality_prompts=2, parts=("statistics", "equality"))
SAMPLED = SamplingParams(temperature=0.9)


def engine_of(target: ToyModel = TARGET, rule: str = "auto", **options: Any) -> Engine:
    config = SpeculativeConfig(rejection_sample_method=rule, monitor=False, **options)
    drafter = DraftModelDrafter(DRAFT, ROWS, 64)
    return Engine(target, drafter, config, max_batch_size=ROWS)


def proof_of(engine: Engine, params: SamplingParams = SAMPLED, effort: Effort = FEW) -> Proof:
    return prove(engine, PROMPTS, params, effort)


class Excluding(ToyModel):
    """Excludes a token by itself: its logit is -inf."""

    def next_logits(self, token_ids: Several[int]) -> Tensor:
        return super().next_logits(token_ids).index_fill(0, torch.tensor([5]), -torch.inf)


class Stale(ToyModel):
    """Sees less of the text when it runs several tokens at once, as with a cache gone wrong."""

    exactness = Exactness.DISTRIBUTIONAL

    def forward(self, token_ids: Tensor, *args: Any, **kwargs: Any) -> ForwardOutput:
        output = super().forward(token_ids, *args, **kwargs)
        # Long stretches are the teacher's.
        if output.logits is None or not 1 < token_ids.shape[1] <= 5:
            return output
        return replace(output, logits=output.logits.roll(1, 1))


class EmitsAnything(TokenRule):
    """Emits every token alike, also those that the sampler excludes."""

    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        right = super().decide(draft, target_probs)
        return replace(right, emit=torch.full_like(right.emit, 1 / VOCAB))


def test_tokens_that_the_model_excludes_are_no_obstacle() -> None:
    proof = proof_of(engine_of(Excluding(VOCAB, sharpness=1.2, max_context=64)))
    assert proof.passed
    assert proof.statistics is not None
    assert proof.statistics.first.row_tolerance == pytest.approx(0.0, abs=1e-9)


def test_rows_of_another_text_raise_an_alarm_and_are_a_defect() -> None:
    proof = proof_of(engine_of(Stale(VOCAB, sharpness=1.2, max_context=64)))
    assert proof.statistics is not None
    assert proof.equality is not None
    assert not proof.statistics.passed
    assert "rows" in proof.statistics.first.alarms(0.01)
    assert all(mode.defects for mode in proof.equality.modes)


def test_tokens_without_probability_raise_an_alarm() -> None:
    engine = engine_of(rule="token")
    engine.rules["token"] = EmitsAnything()
    proof = proof_of(engine, replace(SAMPLED, top_k=2))
    assert proof.statistics is not None
    assert proof.statistics.first.impossible > 0
    assert proof.statistics.first.row_tolerance is None
    assert "impossible tokens" in proof.statistics.first.alarms(0.01)
    assert not proof.passed


def test_on_a_bitwise_backend_no_difference_is_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same differences are numerics elsewhere: a tie that falls either way."""

    class Tied(ToyModel):
        def forward(self, token_ids: Tensor, *args: Any, **kwargs: Any) -> ForwardOutput:
            output = super().forward(token_ids, *args, **kwargs)
            assert output.logits is not None or kwargs.get("logits_for") == "none"
            if output.logits is None:
                return output
            # Two best tokens that differ by rounding, which depends on the number of tokens.
            logits = output.logits.clone()
            best = logits.amax(-1)
            several = 1 < token_ids.shape[1] <= 5
            logits[..., 0] = best + (1e-15 if several else 0.0)
            logits[..., 1] = best + (0.0 if several else 1e-15)
            return replace(output, logits=logits)

    greedy = SamplingParams(temperature=0.0)
    for exactness in (Exactness.DISTRIBUTIONAL, Exactness.BITWISE):
        monkeypatch.setattr(Tied, "exactness", exactness)
        engine = engine_of(Tied(VOCAB, max_context=64))
        proof = proof_of(engine, greedy, replace(FEW, parts=("equality",)))
        assert proof.equality is not None
        assert proof.equality.modes[0].identical < 2
        assert proof.passed == (exactness is Exactness.DISTRIBUTIONAL)


def test_an_alarm_that_does_not_come_again_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    real = statistics._result

    def first_alarmed(*args: Any) -> statistics.Look:
        look = real(*args)
        looks.append(look)
        if len(looks) > 1:
            return look
        worst = replace(look.tests[0], adjusted=1e-9)
        return replace(look, tests=(worst, *look.tests[1:]))

    monkeypatch.setattr(statistics, "_result", first_alarmed)
    proof = proof_of(engine_of())
    assert proof.passed
    assert proof.statistics is not None
    assert proof.statistics.second is not None
    assert proof.statistics.second.num_tokens == 2 * proof.statistics.first.num_tokens


def test_it_is_the_engine_that_was_given_that_is_proven() -> None:
    engine = engine_of()
    proof = proof_of(engine)
    assert proof.rule == "auto"
    assert proof.statistics is not None
    assert proof.statistics.first.rules == ("block",)
    assert not engine.has_work
    assert engine.rules.keys() <= {"block", "coupled", "token"}
    assert not any("Recorder" in type(rule).__name__ for rule in engine.rules.values())


def test_auto_enumerates_every_rule_that_it_may_take() -> None:
    proof = proof_of(engine_of(), effort=replace(FEW, parts=("enumeration",)))
    assert proof.passed
    assert proof.enumeration is not None
    rules = [one.rule for one in proof.enumeration.rules]
    assert rules == ["token", "block", "traversal", "coupled"]
    kinds = {one.rule: set(one.found.kinds) for one in proof.enumeration.rules}
    assert kinds["traversal"] == {"chain", "tree", "tree, replacement", "sampler"}
    assert kinds["token"] == kinds["traversal"] | {"point masses"}


def test_typical_acceptance_says_that_it_is_approximate_and_does_not_pass() -> None:
    """By its own account, by every outcome, and by what it emits."""
    parts = ("enumeration", "statistics")
    proof = proof_of(engine_of(rule="typical"), effort=replace(FEW, parts=parts))
    assert proof.level is Exactness.APPROXIMATE
    assert not proof.passed
    assert proof.enumeration is not None
    assert proof.statistics is not None
    (found,) = proof.enumeration.rules
    assert found.level is Exactness.APPROXIMATE
    assert not found.passed
    assert found.found.largest_deviation > 0.1
    assert proof.as_dict()["enumeration"]["rules"][0]["level"] == "approximate"
    assert not proof.statistics.passed
    assert proof.statistics.first.rules == ("typical",)


def test_what_cannot_be_proven_is_refused() -> None:
    engine = engine_of()
    with pytest.raises(ConfigError, match="nothing to do"):
        proof_of(engine, SamplingParams(temperature=0), replace(FEW, parts=("statistics",)))
    with pytest.raises(ConfigError, match="plain decoding"):
        proof_of(Engine(TARGET, max_batch_size=ROWS))
    with pytest.raises(ConfigError, match="at least one"):
        prove(engine, [], SAMPLED, FEW)
    with pytest.raises(ConfigError, match="Shorten"):
        prove(engine, [[1] * 60], SAMPLED, FEW)


@pytest.mark.parametrize(
    "change",
    [
        {"num_tokens": 0},
        {"num_tokens": 10.5},
        {"num_tokens": None},
        {"output_tokens": 1},
        {"equality_prompts": 0},
        {"level": 0.0},
        {"level": 1.0},
        {"level": float("nan")},
        {"seed": 2**64},
        {"seed": "1"},
        {"parts": ()},
        {"parts": ("belief",)},
    ],
)
def test_efforts_that_are_none(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Effort(**change)


def test_seeds_may_be_negative() -> None:
    one, other = (
        proof_of(engine_of(), effort=replace(FEW, seed=seed, parts=("statistics",)))
        for seed in (-1, -2)
    )
    assert one.passed
    assert other.passed
    assert one.statistics != other.statistics
