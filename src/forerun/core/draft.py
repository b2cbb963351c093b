"""Requests, and plans, drafts and verdicts of a round."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forerun.core.tree import NO_TREE, Tree

if TYPE_CHECKING:
    from torch import Tensor


from forerun.params import SamplingParams


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True)
class Hints:
    """A caller's hints to the drafters of a request; they never change what is emitted.

    Args:
        prediction: an expected output, parts of which may come true, as text or token ids; a
            request holds its ids. Empty for none.
        namespace: the store of earlier outputs to draft from, if the drafter keeps one; requests of
            different namespaces never see each other's outputs, and share no cached prefix. Outputs of
            requests that do not speculate are not stored.
        num_speculative_tokens: drafted tokens a round at most; None leaves it to the policy.
    """

    prediction: str | tuple[int, ...] = ()
    namespace: str = ""
    num_speculative_tokens: int | None = None


NO_HINTS = Hints()


@dataclass
class Request:
    """One request in the engine: its tokens so far, its parameters and its place in the caches.

    Args:
        request_id: unique in an engine.
        token_ids: prompt and emitted tokens.
        num_prompt_tokens: number of prompt tokens among them.
        params: the sampling parameters.
        seed: key of the request's randomness: `params.seed`, or a seed drawn for the request.
        row: row in the caches, set at admission.
        speculative: draft for this request.
        stop_token_ids: tokens that end the request; nothing is drafted after them.
        hints: the caller's hints to drafters.
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


class Origin(enum.StrEnum):
    """Origin of an emitted token."""

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"
    PLAIN = "plain"


class Exactness(enum.StrEnum):
    """The promise of a method or backend about its output, compared with plain decoding."""

    BITWISE = "bitwise"
    DISTRIBUTIONAL = "distributional"
    APPROXIMATE = "approximate"


class Drawing(enum.StrEnum):
    """The way a drafter picks its tokens; the verification rule decides which one it needs."""

    SAMPLED = "sampled"
    GREEDY = "greedy"
    COUPLED = "coupled"


class PlainReason(enum.StrEnum):
    """The reason why a round drafted nothing for a request."""

    ASKED = "asked"
    """Plain decoding was asked for."""
    SHORT = "short"
    """One token is left to emit; a round emits it without a draft."""
    NOTHING_FOUND = "nothing_found"
    """The drafter had nothing to propose."""
    TIMED = "timed"
    """The policy timed a plain round to compare drafting rounds with it."""
    PAUSED = "paused"
    """The policy expects that drafts are not worth their time."""
    CONTEXT = "context"
    """The text fills the drafter's context."""
    FAILED = "failed"
    """The drafter raised an error, or is left out because it raised too many."""
    EVICTS = "evicts"
    """The cache evicts tokens before the next one is run."""
    POLICY = "policy"
    """The policy planned no draft."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of speculation for one request in one round.

    Args:
        num_tokens: most tokens along any path; zero is a plain round.
        drawing: the way tokens are picked.
        tree: the shape to draft. Sampled trees always have one, because a node's existence must not
            depend on a drawn token.
        num_nodes: most nodes of a tree whose shape is left to the drafter, which takes the nodes
            that it finds most probable. Without a shape and a budget the draft is a chain.
        reason: why there is no draft, if `num_tokens` is zero.
        member: which of the drafter's `members` drafts; None leaves it to the drafter.
        whole: draft all tokens, even unlikely ones, so that they can be timed.
        rule: the rule that verifies the draft, as far as it does not depend on the draft's shape.
    """

    num_tokens: int
    drawing: Drawing = Drawing.GREEDY
    tree: Tree | None = None
    num_nodes: int | None = None
    reason: PlainReason = PlainReason.POLICY
    member: int | None = None
    whole: bool = False
    rule: str = "auto"

    @property
    def is_chain(self) -> bool:
        return self.tree is None and self.num_nodes is None

    def cut(self, depth: int) -> Plan:
        """The plan with its paths limited to `depth` >= 1 tokens."""
        if self.num_tokens <= depth:
            return self
        tree = None if self.tree is None else self.tree.cut(depth)
        return replace(self, num_tokens=depth, tree=tree)


NO_PLAN = Plan(0)


@dataclass(frozen=True, slots=True)
class SparseProbs:
    """Rows of probability with few entries: `token_ids` [n, k] and `values` [n, k], the rest zero."""

    token_ids: Tensor
    values: Tensor

    def dense(self, vocab_size: int) -> Tensor:
        """The rows as one tensor [n, V]; values of an id that is listed twice are added."""
        rows = self.values.new_zeros(len(self.values), vocab_size)
        return rows.scatter_add_(1, self.token_ids, self.values)


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of proposed tokens.

    Args:
        tree: the shape, n nodes.
        token_ids: the token of each node.
        probs: row i is the distribution that token i was really drawn from when it was drawn, [n,
            V] (or sparse). None if the tree is a deterministic function of the committed tokens.
        hidden: set by a drafter that runs the target's first layers itself: their output for the
            newest committed token and each node, [n + 1, hidden_size]. The keys and values of those
            layers are then in the target's cache. None if nothing was run.
        reason: why the draft is empty, if it is.
        forced: the request's mask allows no other tokens, so that nothing follows for the drafter.
    """

    tree: Tree
    token_ids: tuple[int, ...]
    probs: Tensor | SparseProbs | None = None
    hidden: Tensor | None = None
    reason: PlainReason = PlainReason.NOTHING_FOUND
    forced: bool = False

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.tree), "one token a node"

    @classmethod
    def chain(cls, token_ids: Iterable[int], probs: Tensor | None = None) -> Draft:
        ids = tuple(token_ids)
        return cls(Tree.chain(len(ids)), ids, probs)

    def __len__(self) -> int:
        return len(self.token_ids)

    def tokens_to(self, node: int) -> list[int]:
        """The tokens on the path to `node`; [] for -1."""
        return [self.token_ids[step] for step in self.tree.path_to(node)]

    def holds(self, token_ids: Iterable[int]) -> bool:
        """True if these tokens are a path from the root."""
        node = -1
        for token in token_ids:
            children = (n for n in self.tree.children(node) if self.token_ids[n] == token)
            found = next(children, None)
            if found is None:
                return False
            node = found
        return True

    def dense_probs(self, vocab_size: int) -> Tensor | None:
        """`probs` as one tensor [n, V]; None if there are none."""
        if isinstance(self.probs, SparseProbs):
            return self.probs.dense(vocab_size)
        return self.probs


NO_DRAFT = Draft(NO_TREE, ())
CONTEXT_FULL = Draft(NO_TREE, (), reason=PlainReason.CONTEXT)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of the verification of a draft.

    Args:
        path: the accepted nodes, from the root down.
        token_ids: the tokens to emit: those of `path`, then one recovered or bonus token, unless
            the verdict was truncated or failed before it.
        origins: the origin of each of `token_ids`.
        error: the error that plain decoding would meet after these tokens as well: a mask hook that
            raised, a row of logits that leaves no token possible.
    """

    path: tuple[int, ...]
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    error: Exception | None = None

    @classmethod
    def of(cls, draft: Draft, end: int, token_id: int) -> Verdict:
        """The verdict whose path ends at node `end` (-1: nothing accepted) and emits `token_id` there."""
        if not draft.token_ids:
            return cls((), (token_id,), (Origin.PLAIN,))
        path = draft.tree.path_to(end)
        last = Origin.RECOVERED if draft.tree.children(end) else Origin.BONUS
        tokens = [draft.token_ids[node] for node in path]
        return cls(tuple(path), (*tokens, token_id), (Origin.ACCEPTED,) * len(path) + (last,))

    @classmethod
    def up_to(cls, draft: Draft, end: int, error: Exception | None = None) -> Verdict:
        """The verdict that emits the tokens up to node `end` and none after it."""
        path = draft.tree.path_to(end)
        tokens = tuple(draft.token_ids[node] for node in path)
        # As in `truncate`: the newest token is never in the cache.
        return cls(tuple(path[:-1]), tokens, (Origin.ACCEPTED,) * len(path), error)

    @property
    def num_accepted(self) -> int:
        return self.origins.count(Origin.ACCEPTED)

    def truncate(self, count: int) -> Verdict:
        """The verdict cut to its first `count` >= 1 tokens, for a request that ends inside the path."""
        if count >= len(self.token_ids):
            return self
        # The newest token is never in the cache, so the path has one node less than there are tokens.
        return Verdict(self.path[: count - 1], self.token_ids[:count], self.origins[:count])
