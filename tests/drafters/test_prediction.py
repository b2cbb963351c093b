"""Drafts from a predicted output, and the way back to it after a difference."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import NO_DRAFT, Draft, Hints, Plan, Request
from forerun.drafters.prediction import PredictionDrafter
from forerun.params import SamplingParams
from forerun.proof.prompts import held_out_prompts
from forerun.randomness import Randomness

CHAIN = Plan(16)
TREE = Plan(16, num_nodes=24)
NEWLINE = 0


def request_of(prediction: list[int], output: list[int] | None = None, stop: int = -1) -> Request:
    return Request(
        0,
        [7, 7, *(output or [])],
        2,
        SamplingParams(),
        seed=0,
        stop_token_ids=frozenset({stop}),
        hints=Hints(prediction=tuple(prediction)),
    )


def propose(drafter: PredictionDrafter, request: Request, plan: Plan = CHAIN) -> Draft:
    draft = drafter.propose([request], [plan], Randomness())[0]
    assert draft.probs is None
    return draft


def accepted(draft: Draft, coming: list[int]) -> int:
    """Tokens of the longest path that the text takes."""
    node, depth = -1, 0
    while depth < len(coming):
        node = next(
            (n for n in draft.tree.children(node) if draft.token_ids[n] == coming[depth]), -1
        )
        if node < 0:
            break
        depth += 1
    return depth


def rounds(prediction: list[int], text: list[int], plan: Plan = CHAIN) -> list[int]:
    """The tokens of each round in which `text` comes out."""
    drafter, request = PredictionDrafter(), request_of(prediction)
    emitted = []
    while request.num_output_tokens < len(text):
        coming = text[request.num_output_tokens :]
        count = min(accepted(propose(drafter, request, plan), coming) + 1, len(coming))
        request.extend(coming[:count])
        emitted.append(count)
    return emitted


def test_without_a_prediction_it_proposes_nothing() -> None:
    drafter = PredictionDrafter()
    assert propose(drafter, request_of([])) is NO_DRAFT
    assert drafter.confidence(request_of([])) == 0.0
    assert propose(drafter, request_of([1, 2]), Plan(0)) is NO_DRAFT


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 9))
def test_what_comes_as_predicted_is_proposed_to_the_end(text: list[int], count: int) -> None:
    drafter = PredictionDrafter()
    request = request_of(text)
    for done in range(len(text) + 1):
        draft = propose(drafter, request, Plan(count))
        assert list(draft.token_ids) == text[done : done + count]
        assert (drafter.confidence(request) > 0) == (done < len(text))
        request.extend(text[done : done + 1])


def test_nothing_follows_a_stop_token() -> None:
    drafter = PredictionDrafter()
    assert propose(drafter, request_of([1, 2, 3, 4], stop=3)).token_ids == (1, 2, 3)
    assert propose(drafter, request_of([1, 2, 3, 4], stop=3), TREE).token_ids == (1, 2, 3)


def test_requests_are_apart_and_forgotten() -> None:
    drafter = PredictionDrafter()
    first, second = request_of([1, 2, 3], [1]), request_of([4, 5])
    second.request_id = 1
    assert propose(drafter, first).token_ids == (2, 3)
    assert propose(drafter, second).token_ids == (4, 5)
    drafter.release(first)
    assert propose(drafter, request_of([8, 9])).token_ids == (8, 9)


def lines(source: random.Random, count: int) -> list[list[int]]:
    """Lines of code: an indentation, words of which some occur often, a newline."""
    return [
        [1, *(source.randrange(2, 40) for _ in range(source.randint(4, 10))), NEWLINE]
        for _ in range(count)
    ]


Edit = Callable[[list[list[int]], int, random.Random], list[list[int]]]
EDITS: dict[str, Edit] = {
    "replaced": lambda text, at, source: [*text[:at], *lines(source, 1), *text[at + 1 :]],
    "inserted": lambda text, at, source: [*text[:at], *lines(source, 3), *text[at:]],
    "deleted": lambda text, at, source: [*text[:at], *text[at + 2 :]],
    "word": lambda text, at, source: [
        *text[:at], [*text[at][:2], 50, *text[at][3:]], *text[at + 1 :]
    ],
}  # fmt: skip


@pytest.mark.parametrize("plan", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("edit", EDITS)
@given(seed=st.integers(0, 2**32))
def test_it_finds_back_at_the_latest_with_the_next_line(edit: str, seed: int, plan: Plan) -> None:
    """Two tokens into the second line that is as predicted again, the rest of it is proposed."""
    source = random.Random(seed)
    predicted = lines(source, 12)
    text = EDITS[edit](predicted, 5, source)
    # Everything up to the lines that both end with.
    tail = 4
    before = [token for line in text[:-tail] for token in line]
    coming = [token for line in text[-tail:] for token in line]
    drafter, request = PredictionDrafter(), request_of([t for line in predicted for t in line])
    request.extend(before)
    propose(drafter, request, plan)
    request.extend(coming[:3])
    assert accepted(propose(drafter, request, plan), coming[3:]) >= min(4, len(coming) - 3)


def test_a_token_put_in_or_left_out_costs_a_round_or_two() -> None:
    text = [*range(10, 60)]
    for changed in (
        [*text[:20], 99, *text[20:]],
        [*text[:20], *text[23:]],
        [*text[:20], 99, *text[21:]],
    ):
        emitted = rounds(text, changed)
        assert sum(emitted) == len(changed)
        # 20 of 16 + 1 a round, a few to find back, the rest of 17 a round.
        assert len(emitted) <= 7


def test_of_equal_places_it_takes_the_one_near_by() -> None:
    """Four tokens into the second block the text goes another way, to what all blocks begin with."""
    text = [5, 6, *range(21, 29), 5, 6, *range(31, 39), 5, 6, *range(41, 49)]
    drafter = PredictionDrafter()
    assert propose(drafter, request_of(text, [*text[:16], 98, 99, 5, 6])).token_ids[0] == 41


def test_a_tree_goes_on_from_several_places() -> None:
    """After what occurs twice, both continuations."""
    text = [5, 6, 21, 22, 5, 6, 31, 32, 5, 6, 41]
    drafter = PredictionDrafter()
    tree = propose(drafter, request_of(text, [90, 91, 5, 6]), TREE)
    assert {tree.token_ids[node] for node in tree.tree.children(-1)} == {21, 31, 41}
    chain = propose(drafter, request_of(text, [90, 91, 5, 6]))
    assert chain.tree.is_chain
    assert chain.token_ids[0] in (21, 31)


@pytest.mark.zoo
@pytest.mark.parametrize("plan", [CHAIN, TREE], ids=["chain", "tree"])
def test_nine_lines_of_ten_give_six_tokens_a_round(plan: Plan) -> None:
    """Over held-out Python, in words and marks as tokens; every tenth line was expected otherwise."""
    source = random.Random(0)
    prompts = held_out_prompts()
    words = re.findall(r"\w+", " ".join(prompts))
    ids: dict[str, int] = {}
    emitted: list[int] = []
    for start in range(0, 60, 6):
        text = "".join(prompts[start : start + 6]).splitlines(keepends=True)
        changed = [
            "        " + " ".join(source.sample(words, 6)) + "\n" if number % 10 == 9 else line
            for number, line in enumerate(text)
        ]
        predicted, wanted = (
            [ids.setdefault(word, len(ids)) for line in one for word in _split(line)]
            for one in (changed, text)
        )
        emitted += rounds(predicted, wanted, plan)
    assert sum(emitted) / len(emitted) >= 6


def _split(text: str) -> list[str]:
    return re.findall(r"\n *| ?\w+| +|[^\w\s]|\s", text)
