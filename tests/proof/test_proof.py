"""Each part of a proof catches its kind of defect, and a proof of nothing is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.core import Batch, Draft, Exactness, ForwardOutput
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.measure.watching import WatchedRule
from forerun.params import SamplingParams
from forerun.proof import effort, statistics
from forerun.proof.effort import Effort
from forerun.proof.proof import Proof, prove
from forerun.testing import ToyModel
from forerun.verification.decision import Decision
from forerun.verification.token import TokenRule

VOCAB, ROWS = 8, 4
TARGET = ToyModel(VOCAB, sharpness=1.2, max_context=64)
DRAFT = ToyModel(VOCAB, sharpness=1.2, noise=0.8, max_context=64)
PROMPTS = [[1, 2, 3], [4, 5]]
FEW = Effort(num_tokens=400, output_tokens=20, equality_prompts=2, part=("statistics", "equality"))
SAMPLED = SamplingParams(temperature=0.9)


def engine_of(target: ToyModel = TARGET, rule: str = "auto", **options: Any) -> Engine:
    config = SpeculativeConfig(rejection_sample_method=rule, policy="fixed", **options)
    drafter = DraftModelDrafter(DRAFT, ROWS, 64)
    return Engine(target, drafter, config, max_batch_size=ROWS)


def proof_of(engine: Engine, params: SamplingParams = SAMPLED, effort: Effort = FEW) -> Proof:
    return prove(engine, PROMPTS, params, effort)


class Excluding(ToyModel):
    """Excludes a token: its logit is -inf."""

    def next_logits(self, token_ids: Sequence[int]) -> Tensor:
        return super().next_logits(token_ids).index_fill(0, torch.tensor([5]), -torch.inf)


class Stale(ToyModel):
    """Gives the logits of another position when it runs several tokens, as with a broken cache."""

    exactness = Exactness.DISTRIBUTIONAL

    def forward(self, batch: Batch, cache: Any) -> ForwardOutput:
        output = super().forward(batch, cache)
        # Longer runs are teacher forcing.
        if output.logits is None or not 1 < batch.width <= 5:
            return output
        return replace(output, logits=output.logits.roll(1, 1))


class EmitsAnything(TokenRule):
    """Emits all tokens with the same probability, even those that the sampler excludes."""

    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        decision = super().decide(draft, target_probs)
        return replace(decision, emit=torch.full_like(decision.emit, 1 / VOCAB))


def test_a_model_may_exclude_tokens() -> None:
    proof = proof_of(engine_of(Excluding(VOCAB, sharpness=1.2, max_context=64)))
    assert proof.passed
    assert proof.statistics is not None
    assert proof.statistics.first.row_tolerance == pytest.approx(0.0, abs=1e-9)


def test_rows_of_another_text_raise_an_alarm_and_are_a_defect() -> None:
    proof = proof_of(engine_of(Stale(VOCAB, sharpness=1.2, max_context=64)))
    assert proof.statistics is not None
    assert proof.equality is not None
    assert not proof.statistics.passed
    assert "rows" in proof.statistics.first.alarms
    assert all(mode.defects for mode in proof.equality.modes)


def test_tokens_without_probability_raise_an_alarm() -> None:
    engine = engine_of(rule="token")
    engine.rules["token"] = EmitsAnything()
    proof = proof_of(engine, replace(SAMPLED, top_k=2))
    assert proof.statistics is not None
    assert proof.statistics.first.impossible > 0
    assert proof.statistics.first.row_tolerance is None
    assert "impossible tokens" in proof.statistics.first.alarms
    assert not proof.passed


def test_on_a_bitwise_backend_no_difference_is_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other backends the same differences are numerics: a tie that rounding breaks either way."""

    class Tied(ToyModel):
        def forward(self, batch: Batch, cache: Any) -> ForwardOutput:
            output = super().forward(batch, cache)
            assert output.logits is not None or batch.logits_for == "none"
            if output.logits is None:
                return output
            # The best two tokens tie up to rounding, which depends on the number of tokens.
            logits = output.logits.clone()
            best = logits.amax(-1)
            is_verification = 1 < batch.width <= 5
            logits[..., 0] = best + (1e-15 if is_verification else 0.0)
            logits[..., 1] = best + (0.0 if is_verification else 1e-15)
            return replace(output, logits=logits)

    greedy = SamplingParams(temperature=0.0)
    for exactness in (Exactness.DISTRIBUTIONAL, Exactness.BITWISE):
        monkeypatch.setattr(Tied, "exactness", exactness)
        engine = engine_of(Tied(VOCAB, max_context=64))
        proof = proof_of(engine, greedy, replace(FEW, part=("equality",)))
        assert proof.equality is not None
        assert proof.equality.modes[0].identical < 2
        assert proof.passed == (exactness is Exactness.DISTRIBUTIONAL)


def test_an_alarm_in_the_first_look_alone_is_not_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    real = statistics._result

    def first_alarmed(*args: Any) -> statistics.Look:
        look = real(*args)
        looks.append(look)
        if len(looks) > 1:
            return look
        return replace(look, alarms=("emitted, by id",))

    monkeypatch.setattr(statistics, "_result", first_alarmed)
    proof = proof_of(engine_of())
    assert proof.passed
    assert proof.statistics is not None
    first, second = proof.statistics.looks
    assert second.num_tokens == 2 * first.num_tokens


def test_the_given_engine_is_proven_and_left_as_it_was() -> None:
    engine = engine_of()
    proof = proof_of(engine)
    assert proof.rule == "auto"
    assert proof.statistics is not None
    assert proof.statistics.first.rules == ("block",)
    assert not engine.has_work
    assert engine.rules.keys() <= {"block", "coupled", "token"}
    assert not any(isinstance(rule, WatchedRule) for rule in engine.rules.values())


def test_auto_enumerates_every_rule_that_it_may_take(few_cases: None) -> None:
    proof = proof_of(engine_of(), effort=replace(FEW, part=("enumeration",)))
    assert proof.passed
    assert proof.enumeration is not None
    rules = [rule.rule for rule in proof.enumeration.rules]
    assert rules == ["token", "block", "traversal", "coupled"]
    kinds = {rule.rule: set(rule.kinds) for rule in proof.enumeration.rules}
    assert kinds["traversal"] == {"chain", "tree", "tree, replacement", "sampler"}
    assert kinds["token"] == kinds["traversal"] | {"point masses"}


@pytest.mark.parametrize("rule", ["auto", "block", "typical"])
def test_the_level_is_the_one_that_the_engine_states(rule: str) -> None:
    engine = engine_of(rule=rule)
    proof = proof_of(engine, effort=replace(FEW, part=("equality",)))
    assert proof.level is engine.exactness


def test_typical_acceptance_says_that_it_is_approximate_and_does_not_pass(few_cases: None) -> None:
    """It declares its level, and both enumeration and statistics show it."""
    parts = ("enumeration", "statistics")
    proof = proof_of(engine_of(rule="typical"), effort=replace(FEW, part=parts))
    assert proof.level is Exactness.APPROXIMATE
    assert not proof.passed
    assert proof.enumeration is not None
    assert proof.statistics is not None
    (typical,) = proof.enumeration.rules
    assert typical.level is Exactness.APPROXIMATE
    assert not typical.passed
    assert typical.largest_deviation > 0.1
    assert proof.as_dict()["enumeration"]["rules"][0]["level"] == "approximate"
    assert not proof.statistics.passed
    assert proof.statistics.first.rules == ("typical",)


def test_proofs_of_nothing_are_refused() -> None:
    engine = engine_of()
    with pytest.raises(ConfigError, match="nothing to do"):
        proof_of(engine, SamplingParams(temperature=0), replace(FEW, part=("statistics",)))
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
        {"seconds": 0},
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
def test_invalid_efforts(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Effort(**change)


def test_seeds_may_be_negative() -> None:
    first, second = (
        proof_of(engine_of(), effort=replace(FEW, seed=seed, part=("statistics",)))
        for seed in (-1, -2)
    )
    assert first.passed
    assert second.passed
    assert first.statistics != second.statistics


def test_amounts_are_what_the_time_allows_or_those_that_are_given() -> None:
    """In no time at least a few outputs are tested; given numbers do not depend on it."""
    short = Effort(seconds=1e-9, output_tokens=20, part=("statistics", "equality"))
    proof = proof_of(engine_of(), effort=short)
    assert proof.statistics is not None
    assert proof.equality is not None
    assert proof.statistics.first.num_tokens == 2 * 20
    # There are no more prompts than these two.
    assert [mode.prompts for mode in proof.equality.modes] == [2, 2]
    assert proof.notes[-1].startswith("In 1e-09 seconds 40 tokens were tested; with more time")
    assert "num_tokens" in proof.notes[-1]
    assert "equality_prompts" not in proof.notes[-1]
    given = proof_of(engine_of(), effort=replace(FEW, seconds=1e-9))
    assert given.statistics is not None
    assert given.equality is not None
    assert given.statistics.first.num_tokens == 400
    assert [mode.prompts for mode in given.equality.modes] == [2, 2]
    assert not given.notes


def test_statistics_alone_take_all_the_time() -> None:
    """More time means more tokens; those that are given take as long as they take."""
    drawn = SamplingParams(temperature=1.0)
    alone = Effort(seconds=300.0, part=("statistics",)).outputs(drawn)
    assert (alone.num_tokens, alone.seconds) == (150_000, 300.0)
    assert Effort(seconds=300.0).outputs(drawn).seconds == 150.0
    assert Effort(seconds=300.0, num_tokens=40).outputs(drawn).seconds is None


def test_an_allowance_goes_on_at_the_rate_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(effort, "perf_counter", lambda: clock)
    allowance = effort.Allowance(1000, seconds=20.0)
    done = 0
    while size := allowance.more(done, 8):
        done, clock = done + size, clock + 0.7 * size
    assert 0.7 * done <= 20.0 < 0.7 * (done + 1)
    exact = effort.Allowance(19)
    assert [exact.more(done, 8) for done in (0, 8, 16, 19)] == [8, 8, 3, 0]
