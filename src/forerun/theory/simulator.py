"""Plain, greedy and speculative decoding of small language models, step by step.

Everything is exact and slow: rows are functions of the context (see `language_models`), costs are
counted in plain target forwards. With NumPy's legacy generator and chains it draws in the order of
the NumPy tutorial on speculative decoding (machinelearningplus.com), whose figures it reproduces.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from forerun.checks import several, whole
from forerun.errors import DistributionError
from forerun.theory.adaptive import AdaptiveLength
from forerun.theory.inputs import Floats, as_row
from forerun.theory.language_models import Context, LanguageModel
from forerun.theory.results import Round, RoundCost, Simulation
from forerun.theory.trees import branching_parents

LONGEST_TEXT = 1 << 24
LONGEST_DRAFT = 4096


class RandomSource(Protocol):
    """What is drawn with: numpy.random.default_rng(seed), numpy.random.RandomState(seed), a script."""

    def random(self) -> Any:
        """A uniform of [0, 1); it is only ever compared with `<`."""

    def choice(self, a: int, /, *, p: Floats) -> Any:
        """A token id below `a`, drawn from the row `p` [V]."""


def standard(
    target: LanguageModel, context: Sequence[int], num_tokens: int, rng: RandomSource
) -> Simulation:
    """Plain decoding: one target forward and one draw a token.

    Raises:
        ConfigError: for a number of tokens below one.
        DistributionError: for a model whose rows are no probabilities.
    """
    return _plain(target, context, num_tokens, lambda row: int(rng.choice(len(row), p=row)))


def greedy(target: LanguageModel, context: Sequence[int], num_tokens: int) -> Simulation:
    """Plain decoding that takes the likeliest token, the lowest id on ties.

    For greedy speculation, wrap both models in `language_models.GreedyModel`.

    Raises:
        As `standard`.
    """
    return _plain(target, context, num_tokens, lambda row: int(np.argmax(row)))


def speculative(
    target: LanguageModel,
    draft: LanguageModel,
    context: Sequence[int],
    num_tokens: int,
    rng: RandomSource,
    *,
    length: int | AdaptiveLength = 5,
    branching: Sequence[int] = (),
    cost_ratio: float = 0.0,
    verification_cost: Callable[[int], float] | None = None,
) -> Simulation:
    """Speculative decoding with the token rule (Leviathan et al., arXiv 2211.17192).

    A drawn tree is verified as Sequoia does (arXiv 2402.12374): siblings are drawn without
    replacement and tested in that order, each against what the ones before it have left.

    Args:
        length: how deep to draft; 0 is plain decoding. An adaptive rule is copied, and told after
            each round how deep it was and how many tokens were accepted.
        branching: how many children each node of the first depths has; one at all further depths,
            so that () is a chain.
        cost_ratio: the cost of one draft forward, which takes all nodes of a depth together.
        verification_cost: the cost of a target forward by the number of tokens that it takes, the
            newest committed one included; 1 for any number by default.

    Raises:
        ConfigError: for numbers out of range or a tree of more than 4096 nodes.
        DistributionError: for rows that are no probabilities or of different vocabularies.
    """
    num_tokens = whole(1, LONGEST_TEXT)("num_tokens", num_tokens)
    rule = copy.deepcopy(length) if isinstance(length, AdaptiveLength) else None
    depth = rule.length if rule else whole(0, LONGEST_DRAFT)("length", length)
    cost = RoundCost(cost_ratio, verification_cost)
    widths = several(whole(1, LONGEST_DRAFT))("branching", branching)
    committed, rounds = list(context), list[Round]()
    while len(committed) - len(context) < num_tokens:
        shape = (widths + (1,) * depth)[:depth]
        tree = _drafted(draft, tuple(committed), shape, rng)
        tokens = _verified(target, tree, tuple(committed), rng)
        committed += tokens
        accepted = len(tokens) - 1
        spent = cost.of(len(shape), len(tree.token_ids))
        rounds.append(Round(tuple(tokens), tree.widths, accepted, len(shape), spent))
        if rule:
            depth = rule.observe(depth, accepted)
    return Simulation(tuple(committed[len(context) :][:num_tokens]), tuple(rounds))


@dataclass
class _Tree:
    """A drafted tree; row i is what token i was drawn from when it was drawn."""

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    rows: list[Floats] = field(default_factory=list)
    widths: tuple[int, ...] = ()

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]


def _plain(
    target: LanguageModel,
    context: Sequence[int],
    num_tokens: int,
    pick: Callable[[Floats], int],
) -> Simulation:
    tokens = tuple(context)
    for _ in range(whole(1, LONGEST_TEXT)("num_tokens", num_tokens)):
        tokens += (pick(as_row("the target's row", target(tokens))),)
    new = tokens[len(context) :]
    return Simulation(new, tuple(Round((token,), (), 0, 0, 1.0) for token in new))


def _drafted(
    draft: LanguageModel, context: Context, shape: tuple[int, ...], rng: RandomSource
) -> _Tree:
    """Draw a tree depth by depth, and the children of a node one after the other."""
    branching_parents(shape)  # refuses what is too large
    tree, level = _Tree(), [(-1, context)]
    for width in shape:
        grown: list[tuple[int, Context]] = []
        for parent, text in level:
            row = as_row("the draft's row", draft(text))
            for sibling in range(1, width + 1):
                token = int(rng.choice(len(row), p=row))
                grown.append((len(tree.token_ids), (*text, token)))
                tree.token_ids.append(token)
                tree.parents.append(parent)
                tree.rows.append(row)
                if sibling == width:
                    break
                row = _without(row, token)
                if not row.any():
                    break  # every token that can be drawn has been
        tree.widths += (len(grown),)
        level = grown
    return tree


def _verified(target: LanguageModel, tree: _Tree, context: Context, rng: RandomSource) -> list[int]:
    """The accepted path and the token that ends the round."""
    node, tokens = -1, list[int]()
    while True:
        row = as_row("the target's row", target((*context, *tokens)))
        for child in tree.children(node):
            token, drawn = tree.token_ids[child], tree.rows[child]
            if len(drawn) != len(row):
                raise DistributionError(
                    f"the target has {len(row)} tokens and the draft {len(drawn)}; "
                    "both must share one vocabulary."
                )
            if rng.random() < min(1.0, float(row[token]) / float(drawn[token])):
                node = child
                tokens.append(token)
                break
            row = _residual(row, drawn)
        else:
            return [*tokens, int(rng.choice(len(row), p=row))]


def _residual(row: Floats, drawn: Floats) -> Floats:
    """What the target has left after a rejection; the row itself where that is nothing."""
    left = np.maximum(row - drawn, 0.0)
    total = left.sum()
    return left / total if total > 0.0 else row


def _without(row: Floats, token: int) -> Floats:
    """The row less one token; all zero where nothing else can be drawn."""
    others = row.copy()
    others[token] = 0.0
    total = others.sum()
    return others / total if total > 0.0 else others
