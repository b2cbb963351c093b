"""Growth of trees on the host, for drafters that look up their tokens and run no model.

Such a drafter is a function from a state to the tokens that may come next; the trees are
deterministic, so their nodes may be selected by probability. The search is best first, with a heap
in which a node also stands for its later siblings (DDTree): each node of the tree costs one
function call and two entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import TypeVar

from forerun.core import NO_DRAFT, Draft, Plan, Request, Tree

S = TypeVar("S")

Child = tuple[int, float, S]
"""A token, its probability after its parent, and the state that it leads to."""
Expand = Callable[[S], list[Child[S]]]
"""Returns the children of a state, the most probable first; it accepts any state that it has returned."""


def grow_on_host(request: Request, plan: Plan, root: S, expand: Expand[S]) -> Draft:
    """The tree that a plan asks for, parents first; shorter or smaller if states have no children.

    A chain takes the best child each time, and a fixed shape takes children by their rank. Any
    other tree takes the nodes with the largest products of probabilities along their paths; among
    equals the first reached. Nothing follows a stop token. A state is expanded only when its
    children are needed, and at most once.

    Args:
        request: the request that it is drafted for.
        plan: the length and the tree.
        root: the state of the committed text.
        expand: returns the children of a state.
    """
    if plan.num_tokens < 1:
        return NO_DRAFT
    stops = request.stop_token_ids
    if plan.tree is not None:
        return _of_shape(plan.tree.cut(plan.num_tokens), stops, root, expand)
    if plan.num_nodes is not None:
        return _best_first(plan.num_nodes, plan.num_tokens, stops, root, expand)
    return _chain(plan.num_tokens, stops, root, expand)


def _chain(length: int, stops: frozenset[int], state: S, expand: Expand[S]) -> Draft:
    tokens: list[int] = []
    while len(tokens) < length:
        children = expand(state)
        if not children:
            break
        token, _, state = children[0]
        tokens.append(token)
        if token in stops:
            break
    return Draft.chain(tokens) if tokens else NO_DRAFT


def _of_shape(shape: Tree, stops: frozenset[int], root: S, expand: Expand[S]) -> Draft:
    tokens: list[int] = []
    parents: list[int] = []
    # By index in the shape, with the text (-1) last: the node in the tree, its state, its children.
    nodes = [-1] * (len(shape) + 1)
    states: list[S] = [root] * (len(shape) + 1)
    children: list[list[Child[S]] | None] = [None] * (len(shape) + 1)
    for index, (above, rank) in enumerate(zip(shape.parents, shape.ranks, strict=True)):
        parent = nodes[above]
        # Nodes below a node without a token, or below a stop token, have none.
        if above >= 0 and (parent < 0 or tokens[parent] in stops):
            continue
        siblings = children[above]
        if siblings is None:
            siblings = children[above] = expand(states[above])
        if rank < len(siblings):
            nodes[index] = len(tokens)
            token, _, states[index] = siblings[rank]
            tokens.append(token)
            parents.append(parent)
    return Draft(Tree(tuple(parents)), tuple(tokens)) if tokens else NO_DRAFT


def _best_first(
    num_nodes: int, depth: int, stops: frozenset[int], root: S, expand: Expand[S]
) -> Draft:
    siblings = expand(root)
    if not siblings:
        return NO_DRAFT
    tokens: list[int] = []
    parents: list[int] = []
    # Minus the probability of a path, a number that breaks ties, minus the probability of its
    # parent's path; then the node among its siblings, its parent, and the levels left below that.
    heap = [(-siblings[0][1], 0, -1.0, siblings, 0, -1, depth)]
    numbers = count(1)
    while heap:
        reached, _, above, siblings, rank, parent, levels = heap[0]
        token, _, state = siblings[rank]
        node = len(tokens)
        tokens.append(token)
        parents.append(parent)
        if node + 1 == num_nodes:
            break
        rank += 1
        if rank < len(siblings):
            prob = above * siblings[rank][1]
            heapreplace(heap, (prob, next(numbers), above, siblings, rank, parent, levels))
        else:
            heappop(heap)
        if levels > 1 and token not in stops:
            below = expand(state)
            if below:
                prob = reached * below[0][1]
                heappush(heap, (prob, next(numbers), reached, below, 0, node, levels - 1))
    return Draft(Tree(tuple(parents)), tuple(tokens))


# Assumed probability of the next token if all positions agree. It decides how deep a tree goes before it
# takes in less probable tokens.
AGREED = 0.9

Positions = list[tuple[int, float]]
"""Positions at which a text may be continued, with weights."""
State = tuple[int, Positions]
"""Number of tokens that a path has taken, and the positions that it continues from."""


class Continuations:
    """Tokens that follow some positions of a text, merged if they agree.

    Args:
        token_ids: the text.
        repeats: a continuation that reaches the end of the text starts again at its beginning: a
            period.
    """

    def __init__(self, token_ids: Sequence[int], repeats: bool) -> None:
        self._token_ids, self._repeats = token_ids, repeats

    def children(self, state: State) -> list[tuple[int, float, State]]:
        """The next tokens in the order of their positions' weight; among equals the first."""
        step, positions = state
        token_ids, length = self._token_ids, len(self._token_ids)
        if len(positions) == 1:
            at = positions[0][0]
            at += step % (length - at) if self._repeats else step
            return [(token_ids[at], AGREED, (step + 1, positions))] if at < length else []
        if self._repeats:
            tokens = [token_ids[position + step % (length - position)] for position, _ in positions]
        else:
            positions = [weighted for weighted in positions if weighted[0] + step < length]
            tokens = [token_ids[position + step] for position, _ in positions]
        if tokens and tokens.count(tokens[0]) == len(tokens):
            return [(tokens[0], AGREED, (step + 1, positions))]
        parted: dict[int, list[tuple[int, float]]] = {token: [] for token in tokens}
        weights = dict.fromkeys(tokens, 0.0)
        for token, weighted in zip(tokens, positions, strict=True):
            parted[token].append(weighted)
            weights[token] += weighted[1]
        total = sum(weights.values()) / AGREED
        return [
            (token, weights[token] / total, (step + 1, parted[token]))
            for token in sorted(weights, key=weights.__getitem__, reverse=True)
        ]
