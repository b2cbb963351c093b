"""A language model of a few random tables in float64, easy to enumerate, and a drafter of trees from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import torch
from torch import Tensor

from forerun.contracts import Ability, DrafterSetup
from forerun.core import (
    NO_DRAFT,
    Batch,
    Draft,
    Drawing,
    Exactness,
    ForwardOutput,
    Plan,
    Request,
    Tree,
    View,
)
from forerun.drafters.base import BaseDrafter
from forerun.errors import CacheError, ConfigError, UnsupportedModelError
from forerun.kv_cache import check_length, check_path, check_row, held_before
from forerun.randomness import Randomness
from forerun.sampling import draw_siblings
from forerun.trees.growth import ShapeGrowth


class ToyCache:
    """A cache of the token ids of each row, which are all that a toy model attends to."""

    def __init__(self, rows: int, capacity: int) -> None:
        if rows < 1 or capacity < 1:
            raise CacheError.no_room(rows, capacity)
        self.capacity = capacity
        self.token_ids: list[list[int]] = [[] for _ in range(rows)]

    @property
    def rows(self) -> int:
        return len(self.token_ids)

    def length(self, row: int, layer: int | None = None) -> int:
        check_row(row, self.rows)
        return len(self.token_ids[row])

    def check_view(self, view: View | None) -> None:
        """Accept any view: it changes what a toy model attends to."""

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        check_row(row, self.rows)
        held = self.token_ids[row]
        check_path(row, length, path, len(held))
        held[length:] = [held[length + token] for token in path]

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        if layers is not None:
            raise CacheError(f"a toy cache has no {layers} to trim apart; give no layers.")
        check_row(row, self.rows)
        check_length(row, length)
        del self.token_ids[row][length:]


class ToyModel:
    """A model whose logits are a sum of random tables of the last `order` tokens in view.

    Two models with the same `seed` agree more, the smaller their `noise` is.

    Args:
        vocab_size: number of tokens.
        order: number of previous tokens that the logits depend on.
        seed: seed of the tables.
        noise: standard deviation of the noise added to every table entry.
        noise_seed: seed of the noise.
        sharpness: approximate standard deviation of the logits before noise.
    """

    num_layers = 1
    hidden_size = 1
    device = torch.device("cpu")
    dtype = torch.float64
    precision = "fp64"
    exactness = Exactness.BITWISE
    abilities = frozenset({Ability.VIEWS})

    def __init__(
        self,
        vocab_size: int = 11,
        order: int = 3,
        seed: int = 0,
        noise: float = 0.0,
        noise_seed: int = 1,
        sharpness: float = 2.0,
        max_context: int = 512,
    ) -> None:
        self.name = f"toy-{vocab_size}"
        self.vocab_size, self.order, self.max_context = vocab_size, order, max_context
        shape = (order, vocab_size, vocab_size)
        tables = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=self.dtype)
        extra = torch.randn(
            shape, generator=torch.Generator().manual_seed(noise_seed), dtype=self.dtype
        )
        self.tables = (tables * sharpness + extra * noise) / order**0.5

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vocab_size})"

    def bytes_read(self, context: int, layers: int, view: View | None = None) -> float:
        """Units read by `layers` layers: one for a layer's tables and one for each token in view."""
        return float(layers * (1 + (context if view is None else view.tokens(context))))

    def new_cache(self, rows: int, capacity: int) -> ToyCache:
        return ToyCache(rows, capacity)

    def next_logits(self, token_ids: Sequence[int]) -> Tensor:
        """Logits [V] after `token_ids`."""
        logits = torch.zeros(self.vocab_size, dtype=self.tables.dtype)
        for back, token in enumerate(reversed(token_ids[-self.order :])):
            logits += self.tables[back, token]
        return logits

    def forward(self, batch: Batch, cache: ToyCache) -> ForwardOutput:
        """Logits as in `forerun.contracts.CausalLM.forward`, without runs of single layers.

        Raises:
            UnsupportedModelError: for partial runs.
            CacheError: for a batch that contradicts the cache.
        """
        if batch.layers is not None or batch.hidden_in is not None:
            raise UnsupportedModelError(f"{self.name} has no layers to run apart.")
        self._check(batch, cache, range(self.num_layers))
        logits = torch.zeros(len(batch), batch.width, self.vocab_size, dtype=self.dtype)
        for index, row in enumerate(batch.rows):
            for new, seen in enumerate(append(batch, index, cache.token_ids[row])):
                logits[index, new] = self.next_logits(seen)
        hidden = dict.fromkeys(batch.hidden_layers, logits[..., :1])
        return ForwardOutput(wanted_logits(batch, logits), hidden)

    def _check(self, batch: Batch, cache: ToyCache, layers: range) -> None:
        if batch.furthest >= self.max_context:
            raise CacheError.beyond_context(batch.furthest, self.max_context)
        held_before(batch, cache, layers)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Refuse, because a toy model has no hidden states.

        Raises:
            UnsupportedModelError: always.
        """
        raise UnsupportedModelError(f"{self.name} has no embedding to run apart.")

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Refuse, because a toy model has no layers and no norm above them.

        Raises:
            UnsupportedModelError: always.
        """
        raise UnsupportedModelError(f"{self.name} has no head to run apart.")

    lm_head = final_norm


def append(batch: Batch, index: int, held: list[int]) -> Iterator[list[int]]:
    """Append a row's new tokens to those it holds, and yield the token ids that each new one sees."""
    tree = None if batch.trees is None else batch.trees[index]
    held.extend(batch.token_ids[index])
    count = batch.counts[index]
    for new in range(-count, 0):
        if tree is None:
            seen = held[: len(held) + new + 1]
        else:
            text = len(held) - len(tree)
            path = tree.path_to(len(tree) + new)
            seen = held[:text] + [held[text + node] for node in path]
        if batch.view is not None and len(seen) > batch.view.sinks + batch.view.window:
            seen = seen[: batch.view.sinks] + seen[-batch.view.window :]
        yield seen


def wanted_logits(batch: Batch, logits: Tensor) -> Tensor | None:
    """The logits that a batch asks for, out of those of all its tokens [B, n, V]."""
    if batch.logits_for == "none":
        return None
    if batch.logits_for == "all":
        return logits
    return torch.stack(
        [row[count - 1 : count] for row, count in zip(logits, batch.counts, strict=True)]
    )


class TreeDrafter(BaseDrafter):
    """A drafter that gives every node of depth d `branching[d]` children, whatever tree is planned.

    Args:
        model: the toy model that the children are drawn from.
        branching: children of a node by depth; the plan's number of tokens bounds the depth.
        replacement: True if a sibling may repeat the token of an earlier one.
    """

    name = "tree"
    drawings = frozenset(Drawing)
    draws_trees = True

    def __init__(
        self, model: ToyModel, branching: tuple[int, ...] = (2, 2, 1), replacement: bool = False
    ) -> None:
        self.model, self.branching, self.replacement = model, branching, replacement
        self.vocab_size = model.vocab_size

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        """Draft from the target itself, which must be a toy model."""
        if not isinstance(setup.target, ToyModel):
            raise ConfigError(f"{cls.name} drafts from toy models only, not {setup.target.name}.")
        return cls(setup.target)

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        pairs = zip(requests, plans, strict=True)
        return [self._grow(request, plan, randomness) for request, plan in pairs]

    def _grow(self, request: Request, plan: Plan, randomness: Randomness) -> Draft:
        if not plan.num_tokens:
            return NO_DRAFT
        shape = Tree.branching(self.branching[: plan.num_tokens])
        growth = ShapeGrowth(request, plan.drawing, shape)
        while growth.frontier:
            prefixes = growth.prefixes()
            texts = [[*request.token_ids, *prefix.drafted] for prefix in prefixes]
            logits = torch.stack([self.model.next_logits(text) for text in texts])
            growth.extend(
                draw_siblings(
                    logits,
                    prefixes,
                    plan.drawing,
                    growth.wanted(),
                    randomness,
                    replacement=self.replacement,
                )
            )
        return growth.finish()
