"""The words of the system: drafts, plans, verdicts, sequences."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from operator import lt

import numpy as np
import torch
from torch import Tensor

from forerun.params import SamplingParams


class Origin(enum.StrEnum):
    """Where an emitted token came from."""

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"
    PLAIN = "plain"


class Exactness(enum.StrEnum):
    """What a method or backend promises about its output, compared with plain decoding."""

    BITWISE = "bitwise"
    DISTRIBUTIONAL = "distributional"
    APPROXIMATE = "approximate"


class Drawing(enum.StrEnum):
    """How a drafter picks its tokens; the verification rule decides which it needs."""

    DRAW = "draw"
    TOP = "top"
    COUPLE = "couple"


@dataclass(frozen=True)
class TreePlan:
    """Which tree to grow.

    Args:
        num_nodes: its nodes at most.
        parents: its shape, node by node, where that is fixed; None leaves the shape to the drafter,
            which takes the nodes that it finds most probable. Drawn trees have a fixed one: which
            nodes there are must not depend on what was drawn.
    """

    num_nodes: int
    parents: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Plan:
    """How far to speculate for one sequence in one round.

    Args:
        num_tokens: along any path at most; zero is a plain round.
        drawing: how tokens are picked.
        tree: the tree to grow; None is a chain.
    """

    num_tokens: int
    drawing: Drawing = Drawing.TOP
    tree: TreePlan | None = None


@dataclass(frozen=True)
class SparseProbs:
    """Rows of probability with few entries: `token_ids` [n, k] and `values` [n, k], the rest zero."""

    token_ids: Tensor
    values: Tensor

    def dense(self, vocab_size: int) -> Tensor:
        """The same rows as one tensor [n, V]; ids listed twice add up."""
        rows = self.values.new_zeros(len(self.values), vocab_size)
        return rows.scatter_add_(1, self.token_ids, self.values)


@dataclass(frozen=True)
class Draft:
    """A tree of proposed tokens.

    Args:
        token_ids: one id a node, n of them.
        parents: the parent of each node, a smaller index; -1 is the last committed token.
        probs: row i is the distribution that token i was really drawn from when it was drawn, [n, V]
            (or sparse). None if the tree is a deterministic function of the committed tokens.
        hidden: of a drafter that runs the target's first layers itself: their output for the newest
            committed token and each node, [n + 1, hidden_size]. The keys and values of those layers
            are in the target's cache then. None if nothing was run.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    probs: Tensor | SparseProbs | None = None
    hidden: Tensor | None = None

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.parents), "one parent a node"
        assert min(self.parents, default=-1) >= -1, "-1 is the committed text"
        assert all(map(lt, self.parents, range(len(self.parents)))), "parents first"

    @classmethod
    def chain(cls, token_ids: Iterable[int], probs: Tensor | None = None) -> Draft:
        ids = tuple(token_ids)
        return cls(ids, tuple(range(-1, len(ids) - 1)), probs)

    def __len__(self) -> int:
        return len(self.token_ids)

    @cached_property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.parents) - 1))

    @cached_property
    def depths(self) -> list[int]:
        """The number of drafted ancestors of each node; a child of the committed text has none."""
        if self.is_chain:
            return list(range(len(self.parents)))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return depths

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def path_to(self, node: int) -> list[int]:
        """The nodes from the first drafted ancestor of `node` to `node`; [] for -1."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def tokens_to(self, node: int) -> list[int]:
        return [self.token_ids[step] for step in self.path_to(node)]

    def attention_mask(self) -> Tensor:
        """Which of [last committed token, *nodes] each of them sees, bool [n + 1, n + 1]."""
        mask = np.eye(len(self) + 1, dtype=bool)
        mask[:, 0] = True
        for node, parent in enumerate(self.parents):
            mask[node + 1] |= mask[parent + 1]
        return torch.from_numpy(mask)

    def dense_probs(self, vocab_size: int) -> Tensor | None:
        if isinstance(self.probs, SparseProbs):
            return self.probs.dense(vocab_size)
        return self.probs


NO_DRAFT = Draft((), ())


@dataclass(frozen=True)
class Verdict:
    """What verification made of a draft.

    Args:
        path: the accepted nodes, from the root down.
        token_ids: the tokens to emit: those of `path`, then one recovered or bonus token unless
            the verdict was truncated before it.
        origins: where each of `token_ids` came from.
    """

    path: tuple[int, ...]
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]

    @classmethod
    def of(cls, draft: Draft, end: int, token_id: int) -> Verdict:
        """The verdict whose path ends at node `end` (-1: nothing accepted) and emits `token_id` there."""
        path = draft.path_to(end)
        last = Origin.RECOVERED if end in draft.parents else Origin.BONUS
        if not len(draft):
            last = Origin.PLAIN
        tokens = [draft.token_ids[node] for node in path]
        return cls(tuple(path), (*tokens, token_id), (Origin.ACCEPTED,) * len(path) + (last,))

    @property
    def num_accepted(self) -> int:
        return self.origins.count(Origin.ACCEPTED)

    def truncate(self, count: int) -> Verdict:
        """Emit only the first `count` >= 1 tokens: a request ended inside the path."""
        if count >= len(self.token_ids):
            return self
        # The newest token is never in the cache, so the path keeps one node less than is emitted.
        return Verdict(self.path[: count - 1], self.token_ids[:count], self.origins[:count])


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True)
class Hints:
    """What the one who asks tells the drafters of a request; none of it changes what comes out.

    Args:
        prediction: an output that is expected, parts of which may come so, as text or token ids; a
            sequence has its ids. Empty for none.
        namespace: whose earlier outputs may be drafted from, where a drafter keeps such a store;
            requests of different namespaces never see each other's. Nothing is kept of requests that
            do not speculate.
    """

    prediction: str | tuple[int, ...] = ()
    namespace: str = ""


NO_HINTS = Hints()


@dataclass
class Sequence:
    """One request on its way: its tokens so far and what belongs to it.

    Args:
        request_id: unique in an engine.
        token_ids: prompt and emitted tokens.
        num_prompt_tokens: how many of them are the prompt.
        params: how its tokens are drawn.
        seed: the key of its randomness: `params.seed`, or one drawn for it.
        row: its row in the caches, set at admission.
        speculative: whether to draft for it at all.
        stop_token_ids: tokens that end it; nothing is drafted after them.
        hints: what drafters are told of it.
        finish_reason: None while it runs.
    """

    request_id: int
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    row: int = -1
    speculative: bool = True
    stop_token_ids: frozenset[int] = frozenset()
    hints: Hints = NO_HINTS
    finish_reason: FinishReason | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def extend(self, token_ids: Iterable[int]) -> None:
        self.token_ids.extend(token_ids)


@dataclass(frozen=True)
class ForwardOutput:
    """What a forward pass returns.

    Args:
        logits: [B, n, V] for `logits_for="all"`, [B, 1, V] for `"last"` (the last token of each row
            that is no padding), None for `"none"`.
        hidden: the requested hidden states by layer index, each [B, n, hidden_size]; layer i is the
            output of the first i layers (0 the embedding), before the final norm.
    """

    logits: Tensor | None
    hidden: dict[int, Tensor] = field(default_factory=dict)
