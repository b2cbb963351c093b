"""Growth of trees with a model, level by level: in a fixed shape, or with the most probable nodes.

A growth is one unfinished tree. The caller, who has the model, runs the nodes of its frontier and
gives them their children, until the frontier is empty. Sampled trees have a fixed shape (SpecInfer,
arXiv 2305.09781; Sequoia, arXiv 2402.12374): whether a node exists depends on nothing drawn after
it. Trees of the most probable tokens expand the best nodes of each level and keep the best of all
in the end (EAGLE-2, arXiv 2406.16858); they are point masses, so their nodes may be selected
freely.
"""

from __future__ import annotations

import heapq
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from forerun.core import MOST_NODES, NO_DRAFT, Draft, Drawing, Plan, Request, Tree
from forerun.randomness import Randomness
from forerun.sampling import Children, DraftVocabulary, Prefix, draw_siblings, most_probable

# Nodes of a level that are run, and children of each, if no shape is fixed.
MOST_EXPANDED = 8


class Growth(ABC):
    """An unfinished tree.

    Args:
        request: the request that it is drafted for.
        drawing: the way its tokens are picked.
    """

    takes_tops = False
    """True if each level is the one token with the largest logit."""
    ends_early = False
    """True for a chain that may end where acceptance is unlikely."""

    def __init__(self, request: Request, drawing: Drawing) -> None:
        self.request, self.drawing = request, drawing
        self.kind = (drawing, request.params.adjusts)
        """Key of the trees that get their next level together."""
        self.token_ids: list[int] = []
        self.parents: list[int] = []
        self.expected = 1.0
        """Probability that all tokens so far are accepted, where `likely` is asked."""
        self.frontier: list[int] = [-1]
        """Nodes that get children next; at first -1, the text."""
        self._order = {-1: -1}

    @abstractmethod
    def wanted(self) -> list[Sequence[int]]:
        """Keys of the random numbers for the children of each node of the frontier, one per child."""

    @abstractmethod
    def extend(self, children: Sequence[Children]) -> None:
        """Give the nodes of the frontier their children and set the next frontier."""

    @abstractmethod
    def finish(self) -> Draft:
        """The finished tree as a draft."""

    def prefixes(self) -> list[Prefix]:
        """The prefix of the children of each node of the frontier."""
        if self.kind in ((Drawing.GREEDY, False), (Drawing.SAMPLED, False)):
            # Only penalties, biases, masks and shared noise depend on drafted tokens.
            return [Prefix(self.request)] * len(self.frontier)
        return [Prefix(self.request, tuple(self._tokens_to(node))) for node in self.frontier]

    def run_frontier(self) -> tuple[list[int], list[int]]:
        """Tokens of the frontier, to be run now, and the index of each one's parent among run nodes.

        Index -1 is the text.
        """
        above = [self._order[self.parents[node]] for node in self.frontier]
        for node in self.frontier:
            self._order[node] = len(self._order) - 1
        return [self.token_ids[node] for node in self.frontier], above

    def _tokens_to(self, node: int) -> list[int]:
        tokens = []
        while node >= 0:
            tokens.append(self.token_ids[node])
            node = self.parents[node]
        return tokens[::-1]

    def _add(self, parent: int, token: int) -> int:
        self.token_ids.append(token)
        self.parents.append(parent)
        return len(self.parents) - 1


class ShapeGrowth(Growth):
    """A tree of a fixed shape, without the nodes for which there are no tokens.

    A node's random number is keyed by its index in the shape.
    """

    def __init__(self, request: Request, drawing: Drawing, shape: Tree) -> None:
        super().__init__(request, drawing)
        self._shape = shape
        self.takes_tops = self.kind == (Drawing.GREEDY, False) and shape.is_chain
        if not shape:
            self.frontier = []
        # Index of each node in the shape.
        self._index = {-1: -1}
        self._rows: list[Tensor] = []
        self._vocabulary: DraftVocabulary | None = None

    def wanted(self) -> list[Sequence[int]]:
        return [self._shape.children(self._index[node]) for node in self.frontier]

    def extend(self, children: Sequence[Children]) -> None:
        frontier = []
        for parent, below in zip(self.frontier, children, strict=True):
            indices = self._shape.children(self._index[parent])
            for token, index in zip(below.token_ids, indices, strict=False):
                node = self._add(parent, token)
                self._index[node] = index
                # Nothing follows a stop token.
                if self._shape.children(index) and token not in self.request.stop_token_ids:
                    frontier.append(node)
            if below.token_ids and below.rows is not None:
                self._rows.append(below.rows)
                self._vocabulary = below.vocabulary
        self.frontier = frontier

    def finish(self) -> Draft:
        if not self.token_ids:
            return NO_DRAFT
        probs = torch.cat(self._rows) if self._rows else None
        if probs is not None and self._vocabulary is not None:
            probs = self._vocabulary.widen(probs, 0.0)
        parents = tuple(self.parents)
        # A fully drawn tree is the shape itself, whose depths and mask are already computed.
        tree = self._shape if parents == self._shape.parents else Tree(parents)
        return Draft(tree, tuple(self.token_ids), probs)


class BestFirstGrowth(Growth):
    """The most probable nodes under a budget, ranked by the product of probabilities along their paths.

    Args:
        request: the request that it is drafted for.
        num_nodes: most nodes of the tree.
        num_tokens: most tokens along any path.
    """

    def __init__(self, request: Request, num_nodes: int, num_tokens: int) -> None:
        super().__init__(request, Drawing.GREEDY)
        self.num_nodes, self._levels = num_nodes, num_tokens
        self._width = min(num_nodes, MOST_EXPANDED)
        self._probs: list[float] = []
        self._best: list[float] = []
        """The largest probabilities, one per node that the tree may have, in a heap with the least first."""

    def wanted(self) -> list[Sequence[int]]:
        return [range(self._width)] * len(self.frontier)

    def extend(self, children: Sequence[Children]) -> None:
        first = len(self.parents)
        for parent, below in zip(self.frontier, children, strict=True):
            reached = self._probs[parent] if parent >= 0 else 1.0
            for token, share in zip(below.token_ids, below.probs or (), strict=True):
                # The most probable come first: if one drops out, so do all after it.
                if not self._is_among_the_best(reached * share):
                    break
                self._add(parent, token)
                self._probs.append(reached * share)
        self._levels -= 1
        self.frontier = self._to_expand(first) if self._levels else []

    def finish(self) -> Draft:
        kept = self._largest(range(len(self.parents)), self.num_nodes)
        moved = {node: index for index, node in enumerate(kept)} | {-1: -1}
        return Draft(
            Tree(tuple(moved[self.parents[node]] for node in kept)),
            tuple(self.token_ids[node] for node in kept),
        )

    def _is_among_the_best(self, prob: float) -> bool:
        """True if a node of this probability is among the best so far; among equals the earlier one is."""
        if len(self._best) < self.num_nodes:
            heapq.heappush(self._best, prob)
            return True
        return heapq.heappushpop(self._best, prob) < prob

    def _to_expand(self, first: int) -> list[int]:
        """The best nodes of the level from node `first` on, without those that have dropped out since.

        A child is at most as probable as its parent, so a node that has dropped out has no child in
        the tree.
        """
        least = self._best[0] if len(self._best) == self.num_nodes else 0.0
        stops = self.request.stop_token_ids
        expandable = [
            node
            for node in range(first, len(self.parents))
            if self._probs[node] >= least and self.token_ids[node] not in stops
        ]
        # The draft's cache has no room for more.
        room = MOST_NODES - len(self._order) + 1
        return self._largest(expandable, min(self._width, room))

    def _largest(self, nodes: Sequence[int], count: int) -> list[int]:
        """The most probable nodes in index order; among equals the earlier, to keep parents."""
        return sorted(heapq.nlargest(count, nodes, key=self._probs.__getitem__))


def start(request: Request, plan: Plan) -> Growth:
    """Start the growth that a plan asks for."""
    if plan.num_nodes is None:
        shape = plan.tree or Tree.chain(plan.num_tokens)
        growth = ShapeGrowth(request, plan.drawing, shape)
        growth.ends_early = shape.is_chain and not plan.whole
        return growth
    assert plan.drawing is Drawing.GREEDY, "sampled trees have a shape"
    return BestFirstGrowth(request, plan.num_nodes, plan.num_tokens)


def likely(
    growths: Iterable[Growth], shares: Sequence[float], least: float
) -> tuple[list[bool], list[bool]]:
    """True for growths that get another level, and for each node of their frontiers.

    All trees do. A chain goes on while it is likely to be accepted with its next token. The decision
    depends on no token drawn after it.

    Args:
        growths: growths whose frontiers are not empty.
        shares: expected acceptance of a child of each node of their frontiers, tree after tree.
        least: probability of the whole chain below which it ends.
    """
    left, grows, nodes = iter(shares), list[bool](), list[bool]()
    for growth in growths:
        own = [next(left) for _ in growth.frontier]
        if growth.ends_early:
            growth.expected *= own[0]
        grows.append(not growth.ends_early or growth.expected >= least)
        nodes += [grows[-1]] * len(own)
    return grows, nodes


def grow(
    growths: Sequence[Growth],
    logits: Tensor,
    randomness: Randomness,
    vocabulary: DraftVocabulary | None = None,
    *,
    shared: bool = False,
) -> None:
    """Give every tree its next level.

    Args:
        growths: growths whose frontiers are not empty.
        logits: the rows after each node of their frontiers, [N, V], tree after tree.
        randomness: the engine's.
        vocabulary: the drafter's, if it differs from the target's.
        shared: the logits are one row per tree, for all of its frontier.
    """
    if len({growth.kind for growth in growths}) == 1:
        _grow_alike(growths, logits, randomness, vocabulary, shared)
        return
    counts = [1 if shared else len(growth.frontier) for growth in growths]
    kinds = [growth.kind for growth, n in zip(growths, counts, strict=True) for _ in range(n)]
    for kind in dict.fromkeys(kinds):
        some = [growth for growth in growths if growth.kind == kind]
        chosen = logits[[row for row, other in enumerate(kinds) if other == kind]]
        _grow_alike(some, chosen, randomness, vocabulary, shared)


def _grow_alike(
    growths: Sequence[Growth],
    logits: Tensor,
    randomness: Randomness,
    vocabulary: DraftVocabulary | None,
    shared: bool,
) -> None:
    """Give trees of one kind their next level."""
    if all(growth.takes_tops for growth in growths):
        tops = most_probable(logits, vocabulary)
        if tops is not None:
            for growth, top in zip(growths, tops, strict=True):
                growth.extend([Children([top])])
            return
    row_of = [row for row, growth in enumerate(growths) for _ in growth.frontier]
    drawn = draw_siblings(
        logits,
        [prefix for growth in growths for prefix in growth.prefixes()],
        growths[0].drawing,
        [wanted for growth in growths for wanted in growth.wanted()],
        randomness,
        vocabulary=vocabulary,
        row_of=row_of if shared else None,
    )
    children = iter(drawn)
    for growth in growths:
        growth.extend(list(itertools.islice(children, len(growth.frontier))))
