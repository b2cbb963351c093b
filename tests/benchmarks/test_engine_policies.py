"""The engine's policies in a replay are asked and told what the engine would ask and tell them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from benchmarks.rivals.engine_policies import EnginePolicy, auto_policy
from benchmarks.rivals.fit import plain_seconds
from benchmarks.rivals.records import RecordedOutput
from benchmarks.rivals.replay import Fixed, View, replay
from benchmarks.rivals.rounds import DraftChoice, Replayed
from forerun.contracts import CausalLM, Drafter
from forerun.core import Plan, Request
from forerun.policies import auto
from forerun.policies.base import BasePolicy
from tests.helpers.recorded import costs, output

LENGTH = 300
# Plain rounds that learning may cost, and one below zero.
MOST_LOST = 0.04 * 128 + 1.0
# Of plain rounds, as `costs` has them.
A_ROUND = 1.0


def recorded(
    candidate: str, accepted: int, confidence: float = 1.0, text: int = 0
) -> RecordedOutput:
    """Drafts of six tokens at most, of which as many as given are accepted everywhere."""
    made = output(candidate, LENGTH, text=text)
    depths = tuple(min(6, LENGTH - at - 1) for at in range(LENGTH))
    return replace(
        made,
        nodes=depths,
        depths=depths,
        accepted=tuple(min(accepted, depth) for depth in depths),
        confidences=(confidence,) * LENGTH,
    )


def by_auto(recorded: Mapping[str, RecordedOutput], **table: float) -> Replayed:
    """Decoded by `auto`, choosing among all candidates."""
    tables = {name: costs(**table) for name in recorded}
    first = next(iter(tables.values()))
    return replay([recorded], tables, EnginePolicy(auto_policy(first, 6), *recorded))


class Asking(BasePolicy):
    """Drafts every third round with the last member, and notes what the drafters answer."""

    name = "asking"

    def __init__(self) -> None:
        self.pending: list[list[int]] = []
        self.confidences: list[list[float]] = []

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        [request] = requests
        self.pending.append([member.pending(request) for member in self.members])
        self.confidences.append([member.confidence(request) for member in self.members])
        drafts = len(self.pending) % 3 == 0
        return [Plan(2, member=len(self.members) - 1) if drafts else Plan(0)]

    def attach(self, target: CausalLM, drafter: Drafter, rows: int) -> None:
        self.members = drafter.members or (drafter,)


def test_drafters_answer_what_was_recorded_at_the_position() -> None:
    text = {name: output(name, 60) for name in ("first", "second")}
    asking = Asking()
    positions: list[int] = []

    class Watching(EnginePolicy):
        def choose(self, views: Sequence[View]) -> list[DraftChoice]:
            positions.append(views[0].position)
            return super().choose(views)

    replay([text], dict.fromkeys(text, costs()), Watching(asking, *text))
    assert asking.confidences == [
        [one.confidences[at] for one in text.values()] for at in positions
    ]
    # Three tokens of prompt, and one for each of two plain rounds; the member that drafts has read them.
    assert [pending[0] for pending in asking.pending] == [3 + at for at in positions]
    assert [pending[1] for pending in asking.pending[:3]] == [3, 4, 5]
    assert {pending[1] for pending in asking.pending[3:]} == {1}


@pytest.mark.parametrize("accepted", [0, 1, 3, 6])
@pytest.mark.parametrize("draft", [0.02, 0.2, 0.6])
def test_auto_loses_no_more_than_it_may_and_gains_where_it_can(accepted: int, draft: float) -> None:
    text = {"made": recorded("made", accepted)}
    table = costs(draft=draft)
    plain = plain_seconds(list(text.values()), table)
    best = min(
        plain, *(replay([text], {"made": table}, Fixed("made", n)).seconds for n in range(1, 7))
    )
    seconds = by_auto(text, draft=draft).seconds
    assert seconds <= 1.02 * plain + MOST_LOST * A_ROUND
    assert seconds <= 1.15 * best + MOST_LOST * A_ROUND


def test_auto_knows_forwards_and_learns_the_rest() -> None:
    table = costs(verify=0.3)
    policy = auto_policy(table, 6)
    assert policy.costs.is_known
    for tokens in (1, 4, 7):
        curve = policy.costs.curve(1)
        assert curve.at(tokens - 1) == pytest.approx(table.target.seconds(tokens, 1, 0))
    assert policy.learned["drafts"] == {}


def test_of_several_candidates_auto_takes_the_better_one() -> None:
    """Whichever place it has."""
    good, bad = recorded("good", 4), recorded("bad", 0)
    alone = by_auto({"good": good}).seconds
    for text in ({"good": good, "bad": bad}, {"bad": bad, "good": good}):
        result = by_auto(text)
        by_candidate = dict.fromkeys((*text, None), 0)
        for choice, count in result.choices.items():
            by_candidate[choice.candidate] += count
        assert by_candidate["good"] > 5 * by_candidate["bad"]
        assert result.seconds < 1.1 * alone


def test_lookups_that_have_found_nothing_are_not_asked_for_a_draft() -> None:
    """A model's drafts are: it always has something to propose."""
    for name, drafted in (("ngram", False), ("draft_model (of mine)", True)):
        result = by_auto({name: recorded(name, 3, confidence=0.0)})
        assert any(choice.num_tokens for choice in result.choices) == drafted


def test_a_replay_is_the_same_however_long_planning_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = {"made": recorded("made", 2)}
    first = by_auto(text)
    monkeypatch.setattr(auto, "perf_counter", itertools.count(0, 100).__next__)
    second = by_auto(text)
    assert first.seconds == second.seconds
    assert first.choices == second.choices
    assert len(first.choices) > 1
