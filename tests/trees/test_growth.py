"""Trees grown with a model: the shape that was asked for, or the best nodes there are."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import MOST_NODES, Batch, Draft, Drawing, ForwardOutput, Plan, Request, Tree
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.params import SamplingParams
from forerun.randomness import Key, Randomness
from forerun.sampling import Children, Prefix, warp
from forerun.testing import ToyModel
from forerun.testing.toy import ToyCache
from forerun.trees.growth import start
from tests.helpers.examples import examples
from tests.helpers.tree_strategies import shapes

MODEL = ToyModel(7)


def text(tokens: list[int], params: SamplingParams | None = None, row: int = 0) -> Request:
    return Request(row, tokens, 1, params or SamplingParams(), seed=row, row=row)


def propose(plan: Plan, request: Request, randomness: Randomness | None = None) -> Draft:
    drafter = DraftModelDrafter(MODEL, 2, 100)
    return drafter.propose([request], [plan], randomness or Randomness())[0]


def row_after(request: Request, draft: Draft, node: int) -> torch.Tensor:
    drafted = tuple(draft.tokens_to(node))
    logits = MODEL.next_logits([*request.token_ids, *drafted])
    return warp(logits[None], [Prefix(request, drafted)])[0]


@examples(40)
@given(shapes(), st.sampled_from(list(Drawing)))
def test_a_shape_is_grown_as_it_is(shape: Tree, drawing: Drawing) -> None:
    """Whatever order its nodes are listed in; here every row has tokens enough."""
    if max(shape.ranks) >= MODEL.vocab_size:
        return
    draft = propose(Plan(shape.depth, drawing, tree=shape), text([1, 2]))
    assert sorted(Tree(draft.tree.parents).paths) == sorted(shape.paths)
    for node in range(-1, len(draft)):
        siblings = [draft.token_ids[child] for child in draft.tree.children(node)]
        assert len(set(siblings)) == len(siblings)


def test_recorded_rows_lack_the_siblings_before() -> None:
    request = text([3, 1, 2])
    shape = Tree.branching((3, 2))
    draft = propose(Plan(2, Drawing.SAMPLED, tree=shape), request)
    assert isinstance(draft.probs, torch.Tensor)
    for node, parent in enumerate(draft.tree.parents):
        row = row_after(request, draft, parent).clone()
        for sibling in draft.tree.children(parent):
            if sibling < node:
                row[draft.token_ids[sibling]] = 0.0
        torch.testing.assert_close(draft.probs[node], row / row.sum())


def test_numbers_are_drawn_once_each_and_by_their_place() -> None:
    keys: list[Key] = []
    shape = Tree.branching((3, 2))
    plan = Plan(2, Drawing.SAMPLED, tree=shape)
    propose(plan, text([3, 1, 2]), Randomness(keys.append))
    assert sorted(key.node for key in keys) == list(range(9))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_nodes", [1, 5, 12])
def test_the_most_probable_nodes_are_kept(num_nodes: int, temperature: float) -> None:
    """Against the products of all paths of three tokens: with seven tokens, eight children are all."""
    request = text([3, 1, 2], SamplingParams(temperature=temperature))
    ranked_by = text([3, 1, 2], SamplingParams(temperature=temperature or 0.5))
    draft = propose(Plan(3, Drawing.GREEDY, num_nodes=num_nodes), request)
    assert draft.probs is None
    worth = {}
    for length in (1, 2, 3):
        for path in itertools.product(range(7), repeat=length):
            shares = []
            for depth, token in enumerate(path):
                logits = MODEL.next_logits([*request.token_ids, *path[:depth]])
                row = warp(logits[None], [Prefix(ranked_by, path[:depth])])[0]
                shares.append(float(row[token]))
            worth[path] = float(torch.tensor(shares).prod())
    best = sorted(worth, key=worth.__getitem__, reverse=True)[:num_nodes]
    assert sorted(tuple(draft.tokens_to(node)) for node in range(len(draft))) == sorted(best)


def test_nothing_follows_a_stop_token() -> None:
    for plan in (
        Plan(4, Drawing.GREEDY, num_nodes=40),
        Plan(3, Drawing.SAMPLED, tree=Tree.branching((4, 4, 4))),
    ):
        request = text([3, 1, 2])
        request.stop_token_ids = frozenset({0, 4})
        draft = propose(plan, request)
        stops = [node for node, token in enumerate(draft.token_ids) if token in (0, 4)]
        assert stops
        assert not any(draft.tree.children(node) for node in stops)


@examples(30)
@given(st.data())
def test_trees_never_depend_on_what_the_cache_went_through(data: st.DataObject) -> None:
    """Against a fresh drafter after rounds of trees and chains of which any path was accepted."""
    used = DraftModelDrafter(MODEL, 2, 200)
    requests = [text([1, 2, 3]), text([4], row=1)]
    for _ in range(data.draw(st.integers(1, 5))):
        plans = []
        for _ in requests:
            drawing = data.draw(st.sampled_from(list(Drawing)))
            shape = data.draw(shapes(8))
            if drawing is Drawing.GREEDY and data.draw(st.booleans()):
                plans.append(Plan(data.draw(st.integers(1, 4)), drawing, num_nodes=10))
            else:
                plans.append(Plan(shape.depth, drawing, tree=shape))
        ours = used.propose(requests, plans, Randomness())
        fresh = DraftModelDrafter(MODEL, 2, 200).propose(requests, plans, Randomness())
        for one, other, request in zip(ours, fresh, requests, strict=True):
            assert (one.token_ids, one.tree) == (other.token_ids, other.tree)
            end = data.draw(st.integers(-1, len(one) - 1))
            emitted = data.draw(st.integers(0, 6))
            request.extend([*one.tokens_to(end), emitted])


def test_deep_trees_stay_within_the_cache() -> None:
    """More levels than there are slots for nodes: fewer are expanded, none is too many."""
    drafter = DraftModelDrafter(MODEL, 1, 300)
    plan = Plan(64, Drawing.GREEDY, num_nodes=MOST_NODES)
    draft = drafter.propose([text([1, 2])], [plan], Randomness())[0]
    assert len(draft) == MOST_NODES
    assert drafter.cache.cache.length(0) <= 2 + MOST_NODES


def test_no_more_nodes_run_than_the_cache_holds() -> None:
    """A draft that is sure of ten tokens and then of none: what was run beside the ten drops out of the
    tree later, so that more nodes would be run than it has in the end."""
    growth = start(text([1]), Plan(64, Drawing.GREEDY, num_nodes=MOST_NODES))
    sure, torn = [0.99, *[0.001] * 7], [0.125] * 8
    has_run = 0
    for level in range(64):
        growth.extend(
            [Children([*range(8)], torn if level == 10 else sure, None) for _ in growth.frontier]
        )
        has_run += len(growth.run_frontier()[0])
    assert has_run == MOST_NODES
    assert len(growth.finish()) == MOST_NODES


def test_a_context_that_ends_cuts_the_tree() -> None:
    drafter = DraftModelDrafter(MODEL, 1, 5)
    shape = Tree.branching((2, 2, 2))
    for plan in (Plan(3, tree=shape), Plan(3, num_nodes=14)):
        assert drafter.propose([text([1, 2, 3])], [plan], Randomness())[0].tree.depth == 2
        assert not len(drafter.propose([text([1] * 5)], [plan], Randomness())[0])


class Interrupted(ToyModel):
    """Is interrupted in a forward pass of its choice, before or after it has filled the cache."""

    left = -1
    filled = True

    def forward(self, batch: Batch, cache: ToyCache) -> ForwardOutput:
        self.left -= 1
        if self.left == 0 and not self.filled:
            raise KeyboardInterrupt
        output = super().forward(batch, cache)
        if self.left == 0:
            raise KeyboardInterrupt
        return output


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("forward", [1, 2, 3])
@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_an_interrupted_draft_leaves_nothing_behind(filled: bool, forward: int, taken: int) -> None:
    """What was drafted when it came is emitted all the same, by rounds that do not draft."""
    model = Interrupted(7)
    drafter, request = DraftModelDrafter(model, 1, 200), text([1, 2, 3])
    plan = Plan(4, Drawing.GREEDY, num_nodes=8)
    lost = propose(plan, request)
    model.left, model.filled = forward, filled
    with pytest.raises(KeyboardInterrupt):
        drafter.propose([request], [plan], Randomness())
    deepest = max(range(len(lost)), key=lost.tree.depths.__getitem__)
    request.extend([*lost.tokens_to(deepest)[:taken], 5])
    for _ in range(3):
        ours = drafter.propose([request], [plan], Randomness())[0]
        fresh = propose(plan, request)
        assert (ours.token_ids, ours.tree) == (fresh.token_ids, fresh.tree)
        request.extend([*ours.tokens_to(0), 4])
