"""Drafts by suffix: from the text itself, from earlier outputs of its namespace, from a corpus."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forerun.core import Draft, Hints, Plan, Request, Tree
from forerun.drafters.automaton import SuffixAutomaton
from forerun.drafters.base import Namespaces
from forerun.drafters.suffix import CONFIDENCES, TOKENS_PER_MATCHED, SuffixDrafter, SuffixStore
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.testing import ToyModel

NUMBERS = itertools.count()


def request_of(
    prompt: list[int], output: list[int] | None = None, namespace: str = "", stop: int = -1
) -> Request:
    return Request(
        next(NUMBERS),
        [*prompt, *(output or [])],
        len(prompt),
        SamplingParams(),
        seed=0,
        stop_token_ids=frozenset({stop}),
        hints=Hints(namespace=namespace),
    )


def propose(drafter: SuffixDrafter, request: Request, plan: Plan | int = 16) -> Draft:
    plan = Plan(plan) if isinstance(plan, int) else plan
    draft = drafter.propose([request], [plan], Randomness())[0]
    assert draft.probs is None
    return draft


def finish(drafter: SuffixDrafter, output: list[int], namespace: str = "") -> None:
    drafter.release(request_of([0], output, namespace))


def test_the_most_frequent_continuation_of_equals_the_latest() -> None:
    text = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 4, 8, 1, 2]
    assert propose(SuffixDrafter(), request_of(text), 2).token_ids == (4, 8)
    text = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2]
    assert propose(SuffixDrafter(), request_of(text), 1).token_ids == (4,)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 8))
def test_the_length_of_the_match_bounds_the_draft(text: list[int], count: int) -> None:
    longest = max(
        (
            length
            for length in range(1, len(text))
            for start in range(len(text) - length)
            if text[start : start + length] == text[-length:]
        ),
        default=0,
    )
    drafter, request = SuffixDrafter(), request_of(text)
    draft = propose(drafter, request, count)
    assert draft.tree.is_chain
    # A chain never ends sooner: where the text ends, a shorter match goes on.
    assert len(draft) == min(count, TOKENS_PER_MATCHED * longest)
    tree = propose(drafter, request, Plan(count, num_nodes=9))
    assert tree.tree.depth <= min(count, TOKENS_PER_MATCHED * longest)
    assert (drafter.confidence(request) > 0) == (longest > 0)


def test_nothing_follows_a_stop_token() -> None:
    text = [1, 2, 3, 4, 5, 1, 2]
    assert propose(SuffixDrafter(), request_of(text, stop=4)).token_ids == (3, 4)
    tree = propose(SuffixDrafter(), request_of(text, stop=4), Plan(4, num_nodes=8))
    assert tree.token_ids == (3, 4)


def test_a_tree_holds_all_that_came_next() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2]
    tree = propose(SuffixDrafter(), request_of(text), Plan(1, num_nodes=8))
    assert set(tree.token_ids) == {3, 4}
    assert tree.tree.parents == (-1, -1)
    shape = propose(SuffixDrafter(), request_of(text), Plan(2, tree=Tree((-1, -1, 1))))
    assert [shape.tokens_to(node) for node in range(3)] == [[4], [3], [3, 1]]


def test_more_is_expected_of_longer_matches() -> None:
    block = [*range(1, 50)]
    drafter = SuffixDrafter()
    found = [
        drafter.confidence(request_of([*block, 0, *block[50 - length :]]))
        for length in (2, 3, 4, 15, 25, 45)
    ]
    assert found == sorted(found)
    assert 0 < found[0] < found[-1] <= 1
    assert drafter.confidence(request_of(block)) == 0.0


def test_outputs_are_kept_when_asked_for() -> None:
    drafter, forgetful = SuffixDrafter(100), SuffixDrafter()
    for one in (drafter, forgetful):
        finish(one, [5, 6, 7, 8, 9])
    assert propose(drafter, request_of([5, 6])).token_ids == (7, 8, 9)
    assert propose(forgetful, request_of([5, 6])).token_ids == ()
    # Prompts are not.
    drafter.release(request_of([1, 2, 3, 4], [8, 8]))
    assert propose(drafter, request_of([1, 2])).token_ids == ()


def test_an_output_is_kept_once_however_often_its_request_is_released() -> None:
    drafter = SuffixDrafter(100)
    first, other = request_of([0], [1, 2, 3]), request_of([0], [1, 2, 4])
    for request in (first, first, other, first, other):
        drafter.release(request)
    assert [automaton.num_tokens for automaton in drafter.store.automata("")] == [6]


def test_a_running_request_learns_of_new_outputs() -> None:
    drafter = SuffixDrafter(100)
    running = request_of([3, 5, 6])
    assert propose(drafter, running).token_ids == ()
    finish(drafter, [5, 6, 7, 8])
    assert propose(drafter, running).token_ids == (7, 8)
    finish(drafter, [1, 5, 6, 9, 9])
    running.extend([1, 5, 6])
    assert propose(drafter, running, 2).token_ids == (9, 9)


def test_a_namespace_has_its_own_outputs() -> None:
    drafter = SuffixDrafter(100)
    finish(drafter, [5, 6, 7], "ours")
    assert propose(drafter, request_of([5], namespace="ours")).token_ids == (6, 7)
    assert propose(drafter, request_of([5], namespace="theirs")).token_ids == ()
    assert propose(drafter, request_of([5])).token_ids == ()


OUTPUTS = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 3), min_size=1, max_size=9)), max_size=12
)


@given(OUTPUTS, st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_a_namespace_never_sees_another(
    outputs: list[tuple[bool, list[int]]], prompt: list[int]
) -> None:
    """What is drafted is what a drafter drafts that was never told of the other namespace."""
    both, alone = SuffixDrafter(40), SuffixDrafter(40)
    for ours, output in outputs:
        finish(both, output, "ours" if ours else "theirs")
        if ours:
            finish(alone, output, "ours")
    for plan in (Plan(6), Plan(6, num_nodes=12)):
        drafts = {propose(one, request_of(prompt, namespace="ours"), plan) for one in (both, alone)}
        assert len(drafts) == 1


@given(st.integers(0, 30), st.lists(st.lists(st.integers(0, 3), max_size=20), max_size=12))
def test_the_bound_is_kept_and_the_latest_are_held(bound: int, outputs: list[list[int]]) -> None:
    store = SuffixStore(bound)
    for output in outputs:
        store.add("", output)
        assert _num_tokens(store) <= bound
        kept = output[max(len(output) - bound // 2, 0) :]
        if kept and bound > 1:
            assert any(_holds(one, kept) for one in store.automata(""))


def _num_tokens(store: SuffixStore) -> int:
    return sum(automaton.num_tokens for automaton in store.automata(""))


def _holds(automaton: Any, wanted: list[int]) -> bool:
    state = 0
    for token in wanted:
        state = automaton.step(state, token)
        if not state:
            return False
    return True


def test_generations_are_dropped_whole() -> None:
    store = SuffixStore(8)
    for number in range(4):
        store.add("", [10 * number, 10 * number + 1])
    assert _num_tokens(store) == 8
    store.add("", [90, 91])
    assert _num_tokens(store) == 6
    young, old = store.automata("")
    assert _holds(young, [90, 91])
    assert _holds(old, [20, 21])
    assert _holds(old, [30, 31])
    assert not any(_holds(one, [0]) or _holds(one, [10]) for one in (young, old))
    # The end of one and the beginning of the next are no text.
    assert not _holds(old, [21, 30])


def test_the_namespace_that_lay_idle_longest_goes() -> None:
    made = itertools.count()
    kept = Namespaces(lambda: next(made), 2)
    assert [kept.get_or_make(name) for name in "abacab"] == [0, 1, 0, 2, 0, 3]
    assert len(kept._kept) == 2
    assert kept.get("c") is None
    assert kept.get("a") == 0


def test_the_longer_match_proposes_and_of_equals_the_text_itself() -> None:
    drafter = SuffixDrafter(100)
    finish(drafter, [2, 3, 88, 88])
    assert propose(drafter, request_of([0, 2, 3]), 1).token_ids == (88,)
    assert propose(drafter, request_of([2, 3, 99, 0, 2, 3]), 1).token_ids == (99,)
    assert propose(drafter, request_of([3, 99, 0, 2, 3]), 1).token_ids == (88,)


def indexed(text: list[int]) -> SuffixAutomaton:
    corpus = SuffixAutomaton(text)
    corpus.end_text()
    return corpus


def test_a_match_in_the_corpus_counts_as_a_third_of_its_length() -> None:
    quoted = list(range(1, 30))
    drafter = SuffixDrafter(corpus=indexed(quoted))
    assert propose(drafter, request_of(quoted[:9]), 4).token_ids == (10, 11, 12, 13)
    assert propose(drafter, request_of(quoted[:2])).token_ids == ()
    # Three tokens of a match are drafted for each that it counts as.
    assert len(propose(drafter, request_of(quoted[:6]))) == 2 * TOKENS_PER_MATCHED
    # Six there are two here, which the text itself has as well.
    assert propose(drafter, request_of([5, 6, 99, *quoted[:6]]), 1).token_ids == (99,)
    assert propose(drafter, request_of([6, 99, *quoted[:6]]), 1).token_ids == (7,)
    tree = propose(drafter, request_of(quoted[:6]), Plan(3, num_nodes=9))
    assert tree.token_ids == (7, 8, 9)
    assert drafter.confidence(request_of(quoted[:9])) == dict(CONFIDENCES)[3]
    assert repr(drafter) == "SuffixDrafter(corpus)"


def test_a_request_that_grows_goes_on_in_the_corpus() -> None:
    quoted = list(range(1, 30))
    drafter, request = SuffixDrafter(corpus=indexed(quoted)), request_of([50, *quoted[:6]])
    for token in quoted[6:20]:
        assert propose(drafter, request, 1).token_ids == (token,)
        request.extend([token])
    request.extend([51])
    assert propose(drafter, request).token_ids == ()


def test_requests_do_not_see_each_other_and_are_forgotten() -> None:
    drafter = SuffixDrafter()
    first = request_of([1, 2, 3, 1])
    assert propose(drafter, first, 2).token_ids == (2, 3)
    assert propose(drafter, request_of([1]), 2).token_ids == ()
    drafter.release(first)
    again = Request(first.request_id, [9, 1], 2, SamplingParams(), seed=0)
    assert propose(drafter, again, 2).token_ids == ()


def test_nothing_is_kept_of_requests_that_do_not_speculate() -> None:
    drafter = SuffixDrafter(100)
    engine = Engine(ToyModel(7), drafter, SpeculativeConfig(policy="fixed"))
    params = SamplingParams(temperature=0.0, max_tokens=9)
    engine.generate([[1, 2]], params, speculative=False)
    assert list(engine.stream_plain([1, 2], params))
    assert not drafter.store.automata("")
    engine.generate([[1, 2]], params)
    assert drafter.store.automata("")
