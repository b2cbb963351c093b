"""Replays of policies: none pays less than hindsight, and all see the past alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from benchmarks.rivals.fit import plain_seconds
from benchmarks.rivals.hindsight import Hindsight
from benchmarks.rivals.replay import Fixed, ReplayPolicy, View, replay
from benchmarks.rivals.rounds import PLAIN, DraftChoice
from forerun.errors import ConfigError
from tests.helpers.recorded import costs, output, recorded

COSTS = {"cheap": costs(draft=0.01), "good": costs(draft=0.2, first_draft=0.1)}
LENGTHS = {"cheap": (1, 2, 4), "good": (1, 3, 8)}


class Random(ReplayPolicy):
    """Chooses by chance."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)

    def choose(self, views: Sequence[View]) -> list[DraftChoice]:
        choices = [PLAIN, *(DraftChoice(name, k) for name, ks in LENGTHS.items() for k in ks)]
        return [self.source.choice(choices) for _ in views]


@pytest.mark.parametrize("seed", range(20))
def test_no_policy_pays_less_than_hindsight_and_hindsight_no_more(seed: int) -> None:
    text = recorded(seed, length=30)
    best = replay([text], COSTS, Hindsight(text, COSTS, LENGTHS)).seconds
    again = replay([text], COSTS, Hindsight(text, COSTS, LENGTHS)).seconds
    assert best == again
    fixed = [Fixed(name, k) for name, ks in LENGTHS.items() for k in ks]
    policies: list[ReplayPolicy] = [*fixed, Fixed("cheap", 0), *map(Random, range(5))]
    for policy in policies:
        assert replay([text], COSTS, policy).seconds >= best - 1e-9


def test_hindsight_finds_the_best_of_all_sequences_of_choices() -> None:
    """Against a search through all of them."""
    text = recorded(3, length=7)
    lengths = {"cheap": (2,), "good": (3,)}
    choices = [PLAIN, DraftChoice("cheap", 2), DraftChoice("good", 3)]

    class Scripted(ReplayPolicy):
        name = "scripted"

        def __init__(self, number: int) -> None:
            self.number = number

        def choose(self, views: Sequence[View]) -> list[DraftChoice]:
            self.number, choice = divmod(self.number, 3)
            return [choices[choice]]

    least = min(replay([text], COSTS, Scripted(number)).seconds for number in range(3**7))
    assert replay([text], COSTS, Hindsight(text, COSTS, lengths)).seconds == pytest.approx(least)


def test_all_tokens_are_emitted_once_side_by_side_too() -> None:
    batch = [recorded(seed, length=20 + seed) for seed in range(5)]
    for policy in (Fixed("cheap", 0), Fixed("good", 5), Random(1)):
        result = replay(batch, COSTS, policy)
        assert result.tokens == sum(20 + seed for seed in range(5))
        assert result.seconds == pytest.approx(
            result.prefill_seconds
            + result.draft_seconds
            + result.target_seconds
            + result.verify_seconds
            + result.host_seconds
        )


def test_plain_rounds_cost_what_plain_decoding_costs_here() -> None:
    batch = [recorded(seed) for seed in range(3)]
    replayed = replay(batch, COSTS, Fixed("cheap", 0))
    assert replayed.seconds == pytest.approx(
        plain_seconds([text["cheap"] for text in batch], COSTS["cheap"])
    )


def test_a_first_draft_is_paid_once_a_request() -> None:
    text = {"good": output("good")}
    with_first, without = (
        replay([text], {"good": table}, Fixed("good", 3)).seconds
        for table in (COSTS["good"], costs(draft=0.2))
    )
    assert with_first - without == pytest.approx(0.1 * 3)


def test_a_policy_is_shown_the_past_alone() -> None:
    text = recorded(1)
    whole = next(iter(text.values())).token_ids
    seen: list[list[int]] = []

    class Watching(Fixed):
        def choose(self, views: Sequence[View]) -> list[DraftChoice]:
            seen.append(views[0].token_ids)
            return super().choose(views)

    replay([text], COSTS, Watching("cheap", 4))
    assert all(ids == [1, 2, 3, *whole[: len(ids) - 3]] for ids in seen)
    assert len({len(ids) for ids in seen}) == len(seen)


def test_candidates_of_different_texts_cannot_be_mixed() -> None:
    mixed = {"cheap": output("cheap", text=1), "good": output("good", text=2)}
    with pytest.raises(ConfigError, match="temperature 0 or a seed"):
        replay([mixed], COSTS, Fixed("cheap", 1))
