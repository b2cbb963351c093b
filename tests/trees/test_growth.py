"""Trees grown with a model: the shape that was asked for, or the best nodes there are."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_strategies import shapes

from forerun.core import Draft, Drawing, ForwardOutput, Plan, Sequence, TreePlan
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.params import SamplingParams
from forerun.randomness import Key, Randomness
from forerun.sampling import Children, Prefix, warp
from forerun.testing import ToyModel
from forerun.trees import MOST_NODES, TreeShape
from forerun.trees.growth import start

MODEL = ToyModel(7)


def text(tokens: list[int], params: SamplingParams | None = None, row: int = 0) -> Sequence:
    return Sequence(row, tokens, 1, params or SamplingParams(), seed=row, row=row)


def propose(plan: Plan, sequence: Sequence, randomness: Randomness | None = None) -> Draft:
    drafter = DraftModelDrafter(MODEL, 2, 100)
    return drafter.propose([sequence], [plan], randomness or Randomness())[0]


def row_after(sequence: Sequence, draft: Draft, node: int) -> torch.Tensor:
    drafted = tuple(draft.tokens_to(node))
    logits = MODEL.next_logits([*sequence.token_ids, *drafted])
    return warp(logits[None], [Prefix(sequence, drafted)])[0]


@settings(max_examples=40, deadline=None)
@given(shapes(), st.sampled_from(list(Drawing)))
def test_a_shape_is_grown_as_it_is(shape: TreeShape, drawing: Drawing) -> None:
    """Whatever order its nodes are listed in; here every row has tokens enough."""
    if max(shape.ranks) >= MODEL.vocab_size:
        return
    draft = propose(Plan(shape.depth, drawing, TreePlan(len(shape), shape.parents)), text([1, 2]))
    assert sorted(TreeShape(draft.parents).paths) == sorted(shape.paths)
    for node in range(-1, len(draft)):
        siblings = [draft.token_ids[child] for child in draft.children(node)]
        assert len(set(siblings)) == len(siblings)


def test_recorded_rows_lack_the_siblings_before() -> None:
    sequence = text([3, 1, 2])
    shape = TreeShape.branching((3, 2))
    draft = propose(Plan(2, Drawing.DRAW, TreePlan(9, shape.parents)), sequence)
    assert isinstance(draft.probs, torch.Tensor)
    for node, parent in enumerate(draft.parents):
        row = row_after(sequence, draft, parent).clone()
        for sibling in draft.children(parent):
            if sibling < node:
                row[draft.token_ids[sibling]] = 0.0
        torch.testing.assert_close(draft.probs[node], row / row.sum())


def test_numbers_are_drawn_once_each_and_by_their_place() -> None:
    keys: list[Key] = []
    shape = TreeShape.branching((3, 2))
    plan = Plan(2, Drawing.DRAW, TreePlan(9, shape.parents))
    propose(plan, text([3, 1, 2]), Randomness(keys.append))
    assert sorted(key.node for key in keys) == list(range(9))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_nodes", [1, 5, 12])
def test_the_most_probable_nodes_are_kept(num_nodes: int, temperature: float) -> None:
    """Against the products of all paths of three tokens: with seven tokens, eight children are all."""
    sequence = text([3, 1, 2], SamplingParams(temperature=temperature))
    ranked_by = text([3, 1, 2], SamplingParams(temperature=temperature or 0.5))
    draft = propose(Plan(3, Drawing.TOP, TreePlan(num_nodes)), sequence)
    assert draft.probs is None
    worth = {}
    for length in (1, 2, 3):
        for path in itertools.product(range(7), repeat=length):
            shares = []
            for depth, token in enumerate(path):
                logits = MODEL.next_logits([*sequence.token_ids, *path[:depth]])
                row = warp(logits[None], [Prefix(ranked_by, path[:depth])])[0]
                shares.append(float(row[token]))
            worth[path] = float(torch.tensor(shares).prod())
    best = sorted(worth, key=worth.__getitem__, reverse=True)[:num_nodes]
    assert sorted(tuple(draft.tokens_to(node)) for node in range(len(draft))) == sorted(best)


def test_nothing_follows_a_stop_token() -> None:
    for plan in (
        Plan(4, Drawing.TOP, TreePlan(40)),
        Plan(3, Drawing.DRAW, TreePlan(84, TreeShape.branching((4, 4, 4)).parents)),
    ):
        sequence = text([3, 1, 2])
        sequence.stop_token_ids = frozenset({0, 4})
        draft = propose(plan, sequence)
        stops = [node for node, token in enumerate(draft.token_ids) if token in (0, 4)]
        assert stops
        assert not any(draft.children(node) for node in stops)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_trees_never_depend_on_what_the_cache_went_through(data: st.DataObject) -> None:
    """Against a fresh drafter after rounds of trees and chains of which any path was accepted."""
    used = DraftModelDrafter(MODEL, 2, 200)
    sequences = [text([1, 2, 3]), text([4], row=1)]
    for _ in range(data.draw(st.integers(1, 5))):
        plans = []
        for _ in sequences:
            drawing = data.draw(st.sampled_from(list(Drawing)))
            shape = data.draw(shapes(8))
            if drawing is Drawing.TOP and data.draw(st.booleans()):
                plans.append(Plan(data.draw(st.integers(1, 4)), drawing, TreePlan(10)))
            else:
                plans.append(Plan(shape.depth, drawing, TreePlan(len(shape), shape.parents)))
        ours = used.propose(sequences, plans, Randomness())
        fresh = DraftModelDrafter(MODEL, 2, 200).propose(sequences, plans, Randomness())
        for one, other, sequence in zip(ours, fresh, sequences, strict=True):
            assert (one.token_ids, one.parents) == (other.token_ids, other.parents)
            end = data.draw(st.integers(-1, len(one) - 1))
            emitted = data.draw(st.integers(0, 6))
            sequence.extend([*one.tokens_to(end), emitted])


def test_deep_trees_stay_within_the_cache() -> None:
    """More levels than there are slots for nodes: fewer are expanded, none is too many."""
    drafter = DraftModelDrafter(MODEL, 1, 300)
    plan = Plan(64, Drawing.TOP, TreePlan(MOST_NODES))
    draft = drafter.propose([text([1, 2])], [plan], Randomness())[0]
    assert len(draft) == MOST_NODES
    assert drafter.cache.cache.length(0) <= 2 + MOST_NODES


def test_no_more_nodes_run_than_the_cache_holds() -> None:
    """A draft that is sure of ten tokens and then of none: what was run beside the ten drops out of the
    tree later, so that more nodes would be run than it has in the end."""
    growth = start(text([1]), Plan(64, Drawing.TOP, TreePlan(MOST_NODES)))
    sure, torn = (0.99, *[0.001] * 7), (0.125,) * 8
    has_run = 0
    for level in range(64):
        growth.extend(
            [Children(range(8), torn if level == 10 else sure, None) for _ in growth.frontier]
        )
        has_run += len(growth.run_frontier()[0])
    assert has_run == MOST_NODES
    assert len(growth.finish()) == MOST_NODES


def test_a_context_that_ends_cuts_the_tree() -> None:
    drafter = DraftModelDrafter(MODEL, 1, 5)
    shape = TreeShape.branching((2, 2, 2))
    for tree in (TreePlan(14, shape.parents), TreePlan(14)):
        plan = Plan(3, Drawing.TOP, tree)
        assert max(drafter.propose([text([1, 2, 3])], [plan], Randomness())[0].depths) == 1
        assert not len(drafter.propose([text([1] * 5)], [plan], Randomness())[0])


class Interrupted(ToyModel):
    """Is interrupted in a forward pass of its choice, before or after it has filled the cache."""

    left = -1
    filled = True

    def forward(self, *args: object, **options: object) -> ForwardOutput:
        self.left -= 1
        if self.left == 0 and not self.filled:
            raise KeyboardInterrupt
        output = super().forward(*args, **options)  # type: ignore[arg-type]
        if self.left == 0:
            raise KeyboardInterrupt
        return output


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("forward", [1, 2, 3])
@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_an_interrupted_draft_leaves_nothing_behind(filled: bool, forward: int, taken: int) -> None:
    """What was drafted when it came is emitted all the same, by rounds that do not draft."""
    model = Interrupted(7)
    drafter, sequence = DraftModelDrafter(model, 1, 200), text([1, 2, 3])
    plan = Plan(4, Drawing.TOP, TreePlan(8))
    lost = propose(plan, sequence)
    model.left, model.filled = forward, filled
    with pytest.raises(KeyboardInterrupt):
        drafter.propose([sequence], [plan], Randomness())
    deepest = max(range(len(lost)), key=lost.depths.__getitem__)
    sequence.extend([*lost.tokens_to(deepest)[:taken], 5])
    for _ in range(3):
        ours = drafter.propose([sequence], [plan], Randomness())[0]
        fresh = propose(plan, sequence)
        assert (ours.token_ids, ours.parents) == (fresh.token_ids, fresh.parents)
        sequence.extend([*ours.tokens_to(0), 4])
