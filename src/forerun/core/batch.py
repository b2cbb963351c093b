"""A forward pass as a value: the input of a model and its output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Literal, Protocol

from forerun.core.tree import Tree
from forerun.errors import CacheError, ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

LogitsFor = Literal["all", "last", "none"]


class HasLengths(Protocol):
    """The part of a cache that a batch needs: the number of tokens in each row."""

    def length(self, row: int, layer: int | None = None) -> int:
        """Tokens of `row` in `layer`; in its shortest layer if None."""


BLOCK_SIZE = 64
"""Tokens in a block, the unit in which a view selects text."""


@dataclass(frozen=True)
class View:
    """The part of a text that new tokens attend to: its start, its end and selected blocks between.

    The first tokens are attention sinks (arXiv 2309.17453); the selected blocks are those that
    matter most (heavy hitters). The selection is exact or approximate.

    Args:
        sinks: positions below this are seen, 0 or more.
        window: a token at position i sees those above i - window, 1 or more.
        coarse: read only the upper nibbles of keys and values in int8 (QuantSpec, arXiv
            2502.10424).
        blocks: number of blocks that each layer and key head reads besides, out of the whole blocks
            of 64 tokens (positions 0 to 63, and so on) that end before the window. Selected are the
            blocks whose mean key has the largest product with the sum of the token's queries; a
            block whose product is not a number is never selected. Blocks that hold nodes of a tree
            are not selected; layers with a sliding window select none.
    """

    sinks: int
    window: int
    coarse: bool = False
    blocks: int = 0

    def __post_init__(self) -> None:
        if self.sinks < 0 or self.window < 1 or self.blocks < 0:
            raise ConfigError(
                f"a view of {self.sinks} sinks, a window of {self.window} tokens and {self.blocks} blocks is "
                "empty or negative; give 0 or more sinks, a window of 1 or more and 0 or more blocks."
            )

    def tokens(self, context: int) -> int:
        """Most tokens that the newest token of a text of `context` tokens reads."""
        return min(context, self.sinks + self.window + self.blocks * BLOCK_SIZE)


@dataclass(frozen=True)
class Batch:
    """New tokens for some rows of a cache, to be run in one forward pass.

    Args:
        rows: rows of the cache, each at most once.
        token_ids: the new tokens of each row, at least one; rows may differ in their number.
        positions: the position of each of them.
        trees: for each row the tree of its newest nodes: those in the cache that are not committed
            text, then the new tokens. None for a row without branches; None instead of the list if
            no row has branches.
        layers: layers to run; None for all. Only their caches grow, and only the last layer of the
            model yields logits.
        hidden_in: input of the first of `layers` in place of the embedding, [B, width,
            hidden_size], padded at the end of shorter rows.
        hidden_layers: layers whose hidden states to return; i is the output of the first i layers,
            0 the embedding.
        logits_for: the tokens that need logits: all, the last of each row, or none.
        view: the part of the text that is read; None for all of it. Only for models with
            `Ability.VIEWS`.

    Raises:
        ConfigError: for a batch whose parts do not fit each other.
    """

    rows: Sequence[int]
    token_ids: Sequence[Sequence[int]]
    positions: Sequence[Sequence[int]]
    trees: Sequence[Tree | None] | None = None
    layers: range | None = None
    hidden_in: Tensor | None = None
    hidden_layers: tuple[int, ...] = ()
    logits_for: LogitsFor = "all"
    view: View | None = None

    continues: InitVar[bool] = False
    """True if the positions were made to continue the rows' text, and need no check."""

    counts: tuple[int, ...] = field(init=False)
    """Number of new tokens of each row."""

    def __post_init__(self, continues: bool) -> None:
        rows, counts, places = self.rows, tuple(map(len, self.token_ids)), self.positions
        object.__setattr__(self, "counts", counts)
        fits = 0 < len(rows) == len(counts) == len(set(rows)) and 0 not in counts
        if fits and not continues:
            fits = tuple(map(len, places)) == counts and min(map(min, places)) >= 0
        if not fits:
            raise ConfigError(
                f"rows {list(rows)} with {list(counts)} token ids and positions {list(places)} are "
                "not a batch: name each row once and give it one position, 0 or more, for each of "
                "its token ids, at least one."
            )
        trees = self.trees
        if trees is not None and (
            len(trees) != len(rows)
            or any(
                tree is not None and len(tree) < n for tree, n in zip(trees, counts, strict=True)
            )
        ):
            raise ConfigError(
                f"trees of {[None if tree is None else len(tree) for tree in trees]} nodes do not "
                f"fit {list(counts)} new tokens; give one a row that holds all of them."
            )

    @classmethod
    def after(
        cls,
        cache: HasLengths,
        rows: Sequence[int],
        token_ids: Sequence[Sequence[int]],
        *,
        trees: Sequence[Tree | None] | None = None,
        layers: range | None = None,
        hidden_in: Tensor | None = None,
        hidden_layers: tuple[int, ...] = (),
        logits_for: LogitsFor = "all",
        view: View | None = None,
    ) -> Batch:
        """A batch whose positions continue the text that the rows hold in the layers to run.

        Raises:
            CacheError: for a row that the cache does not have, or that holds fewer tokens than its
                tree needs.
            ConfigError: for a batch whose parts do not fit each other.
        """
        layer = None if layers is None else layers.start
        positions = []
        for row, tokens, tree in zip(rows, token_ids, trees or repeat(None), strict=False):
            positions.append(_positions(row, cache.length(row, layer), len(tokens), tree))
        if trees is not None and all(tree is None or tree.is_chain for tree in trees):
            trees = None
        return cls(
            *(
                rows,
                token_ids,
                positions,
                trees,
                layers,
                hidden_in,
                hidden_layers,
                logits_for,
                view,
            ),
            continues=True,
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        """Number of new tokens of the longest row."""
        return max(self.counts)

    @property
    def even(self) -> bool:
        """True if all rows have the same number of new tokens."""
        return min(self.counts) == max(self.counts)

    @cached_property
    def furthest(self) -> int:
        """The largest position of a new token."""
        return max(map(max, self.positions))

    @cached_property
    def tree_mask(self) -> NDArray[np.bool_] | None:
        """Attention mask among the newest tokens of each row, [B, width, m].

        Row i of a mask marks the tokens that new token i sees. The columns are the last m - width
        tokens of the row and its new ones; all earlier tokens are seen. None if no row has
        branches. Columns before a row's first token, and the rows of padding, mean nothing.
        """
        import numpy as np  # Here and below, because importing the core types alone loads no NumPy.

        if self.trees is None:
            return None
        if len(self) == 1 and self.trees[0] is not None:
            return self.trees[0].mask[None, -self.width :]
        old = max(
            0 if tree is None else len(tree) - count
            for tree, count in zip(self.trees, self.counts, strict=True)
        )
        mask = np.zeros((len(self), self.width, old + self.width), dtype=np.bool_)
        for seen, tree, count in zip(mask, self.trees, self.counts, strict=True):
            chain = Tree.chain(count) if tree is None else tree
            # A row with fewer old nodes has text in the first of these columns.
            first = old + count - len(chain)
            seen[:count, :first] = True
            seen[:count, first : old + count] = chain.mask[-count:]
        return mask

    def padded(self, values: Sequence[Sequence[int]], padding: int) -> NDArray[np.int64]:
        """One array [B, width] made from ragged lists, with `padding` at the end of rows."""
        import numpy as np

        if self.even:
            return np.array(values, dtype=np.int64)
        padded = np.full((len(self), self.width), padding, dtype=np.int64)
        for line, row in zip(padded, values, strict=True):
            line[: len(row)] = row
        return padded


def _positions(row: int, length: int, count: int, tree: Tree | None) -> Sequence[int]:
    """The positions of `count` new tokens of a row that holds `length` tokens."""
    if tree is None or tree.is_chain:
        return range(length, length + count)
    old = len(tree) - count
    if old > length:
        raise CacheError(
            f"row {row} holds {length} tokens and cannot hold {old} nodes of a tree already."
        )
    return [length - old + depth for depth in tree.depths[old:]]


class HiddenStates(Mapping[int, "Tensor"]):
    """Hidden states by layer, side by side in memory.

    Args:
        layers: indices of the layers.
        states: [B, n, len(layers) * hidden_size].
    """

    def __init__(self, layers: Sequence[int], states: Tensor) -> None:
        self.layers, self.states = tuple(layers), states

    def __getitem__(self, layer: int) -> Tensor:
        if layer not in self.layers:
            raise KeyError(layer)
        size = self.states.shape[-1] // len(self.layers)
        return self.states.narrow(-1, self.layers.index(layer) * size, size)

    def __iter__(self) -> Iterator[int]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """Output of a forward pass.

    Args:
        logits: [B, n, V] for `logits_for="all"`, [B, 1, V] for `"last"` (the last token of each row
            that is not padding), None for `"none"`.
        hidden: the requested hidden states by layer index, each [B, n, hidden_size]; layer i is the
            output of the first i layers (0 the embedding), before the final norm.
    """

    logits: Tensor | None
    hidden: Mapping[int, Tensor] = field(default_factory=dict)

    def side_by_side(self, layers: Sequence[int]) -> Tensor:
        """Hidden states of the given layers in that order, joined, [B, n, len(layers) * hidden_size]."""
        import torch

        if isinstance(self.hidden, HiddenStates) and self.hidden.layers == tuple(layers):
            return self.hidden.states
        return torch.cat([self.hidden[layer] for layer in layers], dim=-1)
