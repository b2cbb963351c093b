"""Simulator of plain, greedy and speculative decoding with small language models.

All results are exact and slow: rows are functions of the context (see `language_models`), and costs are
counted in plain target forwards. With NumPy's legacy generator and chains, numbers are drawn in the order
of the NumPy tutorial on speculative decoding (machinelearningplus.com), whose figures are reproduced.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import Field

from forerun.core import Tree
from forerun.errors import ConfigError, DistributionError, shown
from forerun.options import check
from forerun.simulation.language_models import Context, LanguageModel
from forerun.simulation.rounds import RelativeCost, SimulatedRound, Simulation
from forerun.theory.adaptive import AdaptiveLength
from forerun.theory.inputs import Floats, as_row
from forerun.theory.rows import corrected_distribution

LONGEST_TEXT = 1 << 24
MOST_DRAFTED = 4096
_Widths = tuple[Annotated[int, Field(ge=1, le=MOST_DRAFTED)], ...]


class NumpyRandom(Protocol):
    """A random generator, such as numpy.random.default_rng or RandomState, or a script of draws."""

    def random(self) -> Any:
        """A uniform number from [0, 1), which is only compared with `<`."""

    def choice(self, a: int, /, *, p: Floats) -> Any:
        """A token id below `a`, drawn from the row `p` [V]."""


def standard(
    target: LanguageModel, context: Sequence[int], num_tokens: int, rng: NumpyRandom
) -> Simulation:
    """Decode plainly: one target forward and one draw per token.

    Raises:
        ConfigError: for a number of tokens below 1.
        DistributionError: for a model with invalid rows.
    """
    return _plain(target, context, num_tokens, lambda row: int(rng.choice(len(row), p=row)))


def greedy(target: LanguageModel, context: Sequence[int], num_tokens: int) -> Simulation:
    """Decode plainly by the most likely token, with the lowest id on ties.

    Raises:
        ConfigError, DistributionError: as `standard`.
    """
    return _plain(target, context, num_tokens, lambda row: int(np.argmax(row)))


@dataclass(frozen=True)
class Speculation:
    """Drafting parameters and costs of speculation.

    Args:
        length: depth of drafts; 0 is plain decoding. An adaptive rule is copied.
        branching: children of each node at the first depths. Further depths have 1, so () is a chain.
        cost: costs of rounds.

    Raises:
        ConfigError: for a length or branching out of range, or a tree of more than 4096 nodes.
    """

    length: int | AdaptiveLength = 5
    branching: Sequence[int] = ()
    cost: RelativeCost = field(default_factory=RelativeCost)

    def __post_init__(self) -> None:
        if isinstance(self.length, AdaptiveLength):
            deepest = self.length.limits.longest_draft
        else:
            deepest = check("length", self.length, int, ge=0, le=MOST_DRAFTED)
        check("branching", self.branching, _Widths)
        if sum(accumulate(self.shape(deepest), operator.mul)) > MOST_DRAFTED:
            raise ConfigError(
                f"branching {shown(self.branching)} gives a tree of more than {MOST_DRAFTED} nodes; "
                "give fewer children or depths."
            )

    def shape(self, depth: int) -> tuple[int, ...]:
        """Number of children of each node by depth, for a tree of a depth."""
        return (*self.branching[:depth], *[1] * (depth - len(self.branching)))


CHAIN = Speculation()


def speculative(
    target: LanguageModel,
    draft: LanguageModel,
    context: Sequence[int],
    num_tokens: int,
    rng: NumpyRandom,
    speculation: Speculation = CHAIN,
) -> Simulation:
    """Decode speculatively with the token rule (Leviathan et al., arXiv 2211.17192).

    A tree is drawn and verified as in Sequoia (arXiv 2402.12374): siblings are drawn without replacement
    and tested in that order, each against the residual after the siblings before it.

    Raises:
        ConfigError: for a number of tokens below 1.
        DistributionError: for invalid rows, or models of different vocabularies.
    """
    check("num_tokens", num_tokens, int, ge=1, le=LONGEST_TEXT)
    rule = copy.deepcopy(speculation.length)
    committed, rounds = list(context), list[SimulatedRound]()
    while len(committed) - len(context) < num_tokens:
        depth = rule.length if isinstance(rule, AdaptiveLength) else rule
        tree = _drafted(draft, tuple(committed), speculation.shape(depth), rng)
        tokens = _verified(target, tree, tuple(committed), rng)
        committed += tokens
        accepted = len(tokens) - 1
        cost = speculation.cost.of(depth, len(tree.token_ids))
        rounds.append(SimulatedRound(tuple(tokens), tree.widths, accepted, depth, cost))
        if isinstance(rule, AdaptiveLength):
            rule.observe(depth, accepted)
    return Simulation(tuple(committed[len(context) :][:num_tokens]), tuple(rounds))


@dataclass
class _Tree:
    """A drafted tree; row i is the distribution that token i was drawn from."""

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    rows: list[Floats] = field(default_factory=list)
    widths: tuple[int, ...] = ()


def _plain(
    target: LanguageModel,
    context: Sequence[int],
    num_tokens: int,
    pick: Callable[[Floats], int],
) -> Simulation:
    tokens = tuple(context)
    for _ in range(check("num_tokens", num_tokens, int, ge=1, le=LONGEST_TEXT)):
        tokens += (pick(as_row("the target's row", target(tokens))),)
    new = tokens[len(context) :]
    return Simulation(new, tuple(SimulatedRound((token,), (), 0, 0, 1.0) for token in new))


def _drafted(
    draft: LanguageModel, context: Context, shape: tuple[int, ...], rng: NumpyRandom
) -> _Tree:
    """Draw a tree depth by depth, and the children of a node one after the other."""
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
                    break  # No token is left to draw.
        tree.widths += (len(grown),)
        level = grown
    return tree


def _verified(target: LanguageModel, tree: _Tree, context: Context, rng: NumpyRandom) -> list[int]:
    """Verify a tree: the tokens of the accepted path, and the token that ends the round."""
    node, tokens, shape = -1, list[int](), Tree(tuple(tree.parents))
    while True:
        row = as_row("the target's row", target((*context, *tokens)))
        for child in shape.children(node):
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
            row = corrected_distribution(row, drawn)
        else:
            return [*tokens, int(rng.choice(len(row), p=row))]


def _without(row: Floats, token: int) -> Floats:
    """The row without a token, normalized; all zero if no other token can be drawn."""
    others = row.copy()
    others[token] = 0.0
    total = others.sum()
    return others / total if total > 0.0 else others
