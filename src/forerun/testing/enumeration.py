"""The exact distribution of a rule's output, over every draft and every branch of the rule's tests.

Distributions are over whole sequences: the accepted path, the emitted token, then plain decoding up
to a common length. So the effect of a rule on later rounds counts too.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from forerun.core import Draft, Request, Tree
from forerun.sampling import Prefix, warp
from forerun.testing.toy import ToyModel
from forerun.theory.acceptance import end_probabilities
from forerun.theory.inputs import Floats
from forerun.verification.decision import Decision

Distribution = dict[tuple[int, ...], float]
Outcomes = Iterable[tuple[float, tuple[int, ...]]]
Emit = Callable[[Draft, Tensor], Outcomes]
"""Function from a draft and the target's rows to all outcomes: emitted tokens and probability."""


class Rows(Protocol):
    """A language model given by its rows: a distribution after every prefix."""

    vocab_size: int

    def row(self, prefix: tuple[int, ...]) -> Floats:
        """The distribution of the token after `prefix`, [V]."""


class RandomRows:
    """Random rows for every prefix; a share of the entries is zero, as after top-k and masks."""

    def __init__(self, vocab_size: int, seed: int, zeros: float = 0.3) -> None:
        self.vocab_size, self.seed, self.zeros = vocab_size, seed, zeros
        self._rows: dict[tuple[int, ...], Floats] = {}

    def row(self, prefix: tuple[int, ...]) -> Floats:
        if prefix not in self._rows:
            random = np.random.default_rng([self.seed, 7, *prefix])
            row = random.dirichlet(np.full(self.vocab_size, 0.7))
            row[random.random(self.vocab_size) < self.zeros] = 0.0
            if row.sum() == 0:
                row[random.integers(self.vocab_size)] = 1.0
            self._rows[prefix] = row / row.sum()
        return self._rows[prefix]


class WarpedRows:
    """The rows of a toy model after a request, warped by the sampler with its parameters."""

    def __init__(self, model: ToyModel, request: Request) -> None:
        self.vocab_size = model.vocab_size
        self.model, self.request = model, request
        self._rows: dict[tuple[int, ...], Floats] = {}

    def row(self, prefix: tuple[int, ...]) -> Floats:
        if prefix not in self._rows:
            logits = self.model.next_logits([*self.request.token_ids, *prefix])
            self._rows[prefix] = warp(logits[None], [Prefix(self.request, prefix)])[0].numpy()
        return self._rows[prefix]


def target_distribution(rows: Rows, length: int) -> Distribution:
    """The distribution of plain decoding over sequences of `length` tokens."""
    distribution = {}
    for sequence in itertools.product(range(rows.vocab_size), repeat=length):
        steps = [rows.row(sequence[:index])[token] for index, token in enumerate(sequence)]
        distribution[sequence] = float(np.prod(steps))
    return distribution


def target_rows(rows: Rows, draft: Draft) -> Tensor:
    """The target's rows for a draft of n nodes, float64 [n + 1, V]."""
    nodes = range(-1, len(draft))
    return torch.tensor(np.array([rows.row(tuple(draft.tokens_to(node))) for node in nodes]))


def drawn_drafts(
    rows: Rows, parents: tuple[int, ...], replacement: bool = False
) -> Iterator[tuple[float, Draft]]:
    """Every draft that can be drawn over a tree, with its probability and its rows.

    Args:
        rows: distributions that the nodes are drawn from.
        parents: parent of each node of the tree.
        replacement: True if a sibling may repeat the token of an earlier one.
    """

    def grow(
        tokens: tuple[int, ...], drawn: list[Floats], probability: float
    ) -> Iterator[tuple[float, tuple[int, ...], list[Floats]]]:
        node = len(tokens)
        if node == len(parents):
            yield probability, tokens, drawn
            return
        partial = Draft(Tree(parents[:node]), tokens)
        row = rows.row(tuple(partial.tokens_to(parents[node]))).copy()
        if not replacement:
            row[[tokens[sibling] for sibling in partial.tree.children(parents[node])]] = 0.0
        if row.sum() <= 0:
            return  # No token is left, so a drafter would propose a smaller tree.
        row = row / row.sum()
        for token in np.flatnonzero(row):
            yield from grow((*tokens, int(token)), [*drawn, row], probability * row[token])

    for probability, tokens, drawn in grow((), [], 1.0):
        yield probability, Draft(Tree(parents), tokens, torch.tensor(np.array(drawn)))


def by_decision(decide: Callable[[Draft, Tensor], Decision]) -> Emit:
    """An `Emit` that enumerates every branch of a decision's tests."""

    def emit(draft: Draft, probs: Tensor) -> Outcomes:
        decision = decide(draft, probs)
        ends = ends_of(decision, len(draft))
        for end in range(-1, len(draft)):
            if ends[end + 1] == 0.0:
                continue
            path = draft.tokens_to(end)
            for token, share in enumerate(decision.emit[end + 1].tolist()):
                yield ends[end + 1] * share, (*path, token)

    return emit


def ends_of(decision: Decision, num_nodes: int) -> Floats:
    """Probability that the walk ends at each node, [n + 1], starting with the last committed token."""
    return end_probabilities(
        decision.accept.double().cpu().numpy(),
        decision.on_accept,
        decision.on_reject,
        decision.start,
        num_nodes,
    )


def emitted_distribution(
    emit: Emit, target: Rows, drafts: Iterable[tuple[float, Draft]], length: int
) -> Distribution:
    """The distribution of sequences of `length` tokens from one round and then plain decoding."""
    distribution: Distribution = defaultdict(float)

    def complete(emitted: tuple[int, ...], weight: float) -> None:
        if len(emitted) >= length:
            distribution[emitted[:length]] += weight
            return
        for token, share in enumerate(target.row(emitted)):
            if share:
                complete((*emitted, token), weight * share)

    for probability, draft in drafts:
        for share, emitted in emit(draft, target_rows(target, draft)):
            if probability * share:
                complete(emitted, probability * share)
    return distribution


def deviation(distribution: Distribution, truth: Distribution) -> float:
    """The largest difference between two probabilities of a sequence; infinite if one is NaN."""
    sequences = {*distribution, *truth}
    differences = [abs(distribution.get(key, 0.0) - truth.get(key, 0.0)) for key in sequences]
    return float(np.nan_to_num(differences, nan=np.inf).max())
