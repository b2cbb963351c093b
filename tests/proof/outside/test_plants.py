"""Defects planted behind a server are caught from outside; the same server without them passes."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.params import SamplingParams
from forerun.proof.effort import Effort
from forerun.proof.outside import greedy, sampled
from forerun.proof.outside.options import Outside
from forerun.proof.outside.reference import Reference
from forerun.proof.outside.report import greedy_scope
from forerun.proof.outside.run import OutsideProof, prove_outside, subjects_of
from forerun.proof.outside.subject import ReplyRecord
from tests.helpers.plants import PLANTS, SAMPLED, engine_of, plain_engine
from tests.helpers.served import listening, state_of

PROMPTS = ["w1 w2 w1 w2 w3 w4", "w3 w5 w1 w1 w9 w8"]
OFF = '{"speculative": false}'
# Tokens within which every plant is caught.
BUDGET = 8000
# Slow to be caught, so with parameters under which they change much.
LONG = {
    "skips the residual": SamplingParams(temperature=0.7, presence_penalty=0.8),
    "ignores top-p in the draft's row": SamplingParams(temperature=1.0, top_p=0.3),
    "forgets the bonus token's penalties": SamplingParams(
        temperature=1.0, presence_penalty=2.0, frequency_penalty=2.0
    ),
}


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests come in one order, so their seeds are the same in every run."""
    monkeypatch.setattr(sampled, "AT_ONCE", 1)


def proof_of(
    engine: Engine,
    params: SamplingParams = SAMPLED,
    *,
    seed: int = 0,
    reference: bool = True,
    part: tuple[str, ...] = ("statistics",),
    num_tokens: int = BUDGET,
) -> OutsideProof:
    """A proof of an engine's server, compared with the server itself and with the target's rows."""
    seeds = count(seed * 2**32)
    engine.use_seeds(lambda: next(seeds))
    effort = Effort(num_tokens=num_tokens, output_tokens=24, part=part, seed=seed, seconds=600)
    with listening(state_of(engine)) as (_, url):
        outside = Outside(endpoint=url, switch=OFF)
        known = Reference(plain_engine()) if reference else None
        return prove_outside(
            subjects_of(outside, known, PROMPTS[0], ReplyRecord()), PROMPTS, params, effort
        )


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in PLANTS],
)
def test_a_plant_is_caught_by_the_references_rows(name: str) -> None:
    proof = proof_of(PLANTS[name](), LONG.get(name, SAMPLED))
    assert proof.rows is not None
    assert proof.rows.alarm
    # The server without speculation follows the rows, so the alarm is speculation's.
    assert proof.control is not None
    assert not proof.control.alarm
    assert proof.defects == ["sampled tokens do not follow the reference's rows"]


@pytest.mark.parametrize("name", ["off by one in the cache", "keeps a rejected token in the cache"])
def test_a_wrong_cache_shows_in_greedy_answers(name: str) -> None:
    engine = PLANTS[name]()
    proof = proof_of(engine, SamplingParams(temperature=0.0), part=("equality",))
    assert any("greedy" in defect for defect in proof.defects)


@pytest.mark.slow
def test_forgotten_penalties_show_in_enough_greedy_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bonus tokens of few prompts are too rare, and the report says so."""
    only = {"penalties": greedy.SITUATIONS["penalties"]}
    monkeypatch.setattr(greedy, "SITUATIONS", only)
    words = np.random.default_rng(1).integers(1, 10, (48, 6))
    prompts = [" ".join(f"w{word}" for word in row) for row in words]
    with listening(state_of(PLANTS["forgets the bonus token's penalties"]())) as (_, url):
        outside = Outside(endpoint=url, switch=OFF)
        both = subjects_of(outside, None, PROMPTS[0], ReplyRecord())
        few, many = (
            greedy.GreedyComparison(both.on, both.off or both.on, some, 24).run(600.0)
            for some in (prompts[:2], prompts)
        )
    assert few.divergences == []
    assert "too few" in " ".join(greedy_scope(few))
    assert {found.verdict for found in many.divergences} == {"defect"}
    assert "too few" not in " ".join(greedy_scope(many))


@pytest.mark.slow
def test_on_against_off_needs_no_reference() -> None:
    """A dropped temperature takes more answers than this budget has."""
    proof = proof_of(PLANTS["off by one in the cache"](), reference=False)
    assert proof.on_off is not None
    assert proof.on_off.alarm
    assert len(proof.on_off.answers) == 2
    assert proof.on_off.control < proof.on_off.level


def test_a_server_without_a_plant_passes() -> None:
    proof = proof_of(engine_of(), part=("equality", "statistics"), num_tokens=1000)
    assert proof.greedy is not None
    assert proof.greedy.divergences == []
    assert [(one.name, one.detail) for one in proof.promises if one.verdict != "kept"] == []
    assert proof.defects == []


@pytest.mark.slow
@pytest.mark.parametrize("method", ["token", "block"])
def test_ten_servers_without_a_plant_pass(method: str) -> None:
    """The chance of a false alarm among ten is 0.1 at most, and small for always-valid evidence."""
    for seed in range(10):
        proof = proof_of(engine_of(method=method), seed=seed, num_tokens=400)
        assert proof.rows is not None
        assert proof.rows.tells_origins
        assert not proof.rows.alarm


@pytest.mark.parametrize("hotter", [1.05, 8.0])
def test_the_negative_control_is_caught_if_it_is_far_enough(
    monkeypatch: pytest.MonkeyPatch, hotter: float
) -> None:
    monkeypatch.setattr(sampled, "HOTTER", hotter)
    proof = proof_of(engine_of(), SamplingParams(temperature=1.0), num_tokens=400)
    assert proof.rows is not None
    assert not proof.rows.alarm
    assert proof.rows.control.evidence.alarms(proof.rows.level) == (hotter == 8.0)


def test_a_reference_with_other_weights_is_no_defect() -> None:
    """Its rows are not the server's, with speculation or without."""
    engine = engine_of()
    with listening(state_of(engine)) as (_, url):
        other = Reference(plain_engine(seed=1))
        subjects = subjects_of(Outside(endpoint=url, switch=OFF), other, PROMPTS[0], ReplyRecord())
        effort = Effort(num_tokens=800, output_tokens=24, part=("statistics",))
        proof = prove_outside(subjects, PROMPTS, SAMPLED, effort)
    assert proof.rows is not None
    assert proof.rows.alarm
    assert "without speculation" in proof.rows_are_wrong
    assert proof.defects == []


def test_a_switch_that_changes_nothing_is_named() -> None:
    engine = PLANTS[next(iter(PLANTS))]()
    effort = Effort(output_tokens=8, equality_prompts=1, part=("equality",), seconds=60)
    with listening(state_of(engine)) as (_, url):
        outside = Outside(endpoint=url, switch='{"user": "someone"}')
        subjects = subjects_of(outside, None, PROMPTS[0], ReplyRecord())
        with pytest.raises(ConfigError, match="were drafted in answers without speculation"):
            prove_outside(subjects, PROMPTS, SAMPLED, effort)
