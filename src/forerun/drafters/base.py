"""Base classes of drafters: a method defines `propose` and overrides where it differs."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from forerun.contracts import Cache, CausalLM, Drafter, DrafterSetup
from forerun.core import (
    MOST_NODES,
    NO_DRAFT,
    Draft,
    Drawing,
    Exactness,
    ForwardOutput,
    Plan,
    Request,
    Verdict,
)
from forerun.errors import ConfigError
from forerun.options import NoOptions

# Modules that need torch are imported where they are used: options and help are read without it.
if TYPE_CHECKING:
    from torch import Tensor

    from forerun.heads.features import Features, Missing
    from forerun.randomness import Randomness
    from forerun.trees.growth import Growth


T = TypeVar("T")

# Columns of a block: the likeliest tokens are in the blocks with the largest maxima. Ten times faster over
# 150,000 columns, and no gain over few.
_BLOCK, _LEAST_BLOCKS = 64, 128


class BaseDrafter(ABC):
    """A drafter of point masses, from any vocabulary, for any number of requests, that keeps nothing.

    It implements `forerun.contracts.Drafter` except for the proposals.
    """

    name: str
    exactness = Exactness.DISTRIBUTIONAL
    drawings: frozenset[Drawing] = frozenset({Drawing.GREEDY})
    draws_trees = False
    takes_trees = False
    needs_draft_model = False
    head: str | None = None
    reads_predictions = False
    acceptance: tuple[tuple[float, ...], ...] | None = None
    shared_layers: int = 0
    hidden_layers: tuple[int, ...] = ()
    vocab_size: int | None = None
    rows: int | None = None
    members: tuple[Drafter, ...] = ()
    looks_up = False
    origin = ""
    options: type[Any] = NoOptions
    features: Features | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @classmethod
    def member_methods(cls, options: Any) -> tuple[str, ...]:  # noqa: ARG003
        """None: the drafter drafts alone."""
        return ()

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:  # noqa: ARG003
        """Make a drafter for an engine; only for drafters that are named, not for instances.

        Raises:
            ConfigError: unless a subclass defines it.
        """
        raise ConfigError(
            f"{cls.__name__} defines no build, by which a drafter is made from its name; define it, or "
            "give an instance: forerun.load(..., drafter=...)."
        )

    @abstractmethod
    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        """Propose one draft per request."""

    def attach(self, cache: Cache) -> None:
        """Do nothing: the target's cache is not used."""

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        output: ForwardOutput,
    ) -> None:
        """Store the target's states that a head reads; without a head, do nothing."""
        if self.features is not None:
            self.features.observe(requests, verdicts, output)

    def observe_prefill(self, request: Request, start: int, output: ForwardOutput) -> None:
        """Store the states of a prompt that a head reads; without a head, do nothing."""
        if self.features is not None:
            self.features.observe_prefill(request, start, output)

    def pending(self, request: Request) -> int:
        """Number of a request's tokens that the head has not read; 0 without a head."""
        return 0 if self.features is None else self.features.pending(request)

    def cost_share(self, request: Request) -> float | None:
        """None: the cost is only known from measurements."""
        return None

    def confidence(self, request: Request) -> float:
        """Full confidence: there is always a proposal."""
        return 1.0

    def clear_row(self, row: int) -> None:
        """Forget the states of a row."""
        if self.features is not None:
            self.features.clear(row)

    def release(self, request: Request) -> None:
        """Do nothing: nothing is kept for a request."""


def drafts_of(
    requests: Sequence[Request],
    plans: Mapping[int, Plan],
    draft: Callable[[list[Request], list[Plan]], list[Draft]],
) -> list[Draft]:
    """The drafts of a batch: `draft` makes those of the requests that have a plan, by index, if any does."""
    drafts = [NO_DRAFT] * len(requests)
    if plans:
        made = draft([requests[index] for index in plans], list(plans.values()))
        for index, own in zip(plans, made, strict=True):
            drafts[index] = own
    return drafts


def fits_one_call(
    requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
) -> bool:
    """True if a model may draft these chains in one call: no trees, penalties, masks or record of keys."""
    return (
        randomness.by_key_alone
        and not any(request.params.adjusts for request in requests)
        and all(plan.is_chain for plan in plans)
    )


def likeliest(logits: Tensor, count: int) -> Tensor:
    """Ids of the largest logits of each row, [n, V] -> [n, min(count, V)], the largest first."""
    import torch

    size = logits.shape[1]
    whole = size - size % _BLOCK
    if whole < _LEAST_BLOCKS * _BLOCK:
        return logits.topk(min(count, size)).indices
    blocks = logits[:, :whole].reshape(len(logits), -1, _BLOCK).amax(2).topk(count).indices
    ids = (blocks[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=logits.device)).flatten(1)
    if whole < size:
        rest = torch.arange(whole, size, device=logits.device)
        ids = torch.cat([ids, rest.expand(len(ids), -1)], 1)
    best: Tensor = ids.gather(1, logits.gather(1, ids).topk(count).indices)
    return best


class Namespaces(Generic[T]):
    """One object for each of the most recently used namespaces.

    Args:
        make: makes a new object.
        most: most namespaces.
    """

    def __init__(self, make: Callable[[], T], most: int) -> None:
        self._make, self._most = make, most
        self._kept: OrderedDict[str, T] = OrderedDict()

    def get(self, name: str) -> T | None:
        """The namespace's object, marked as used now, or None."""
        if name in self._kept:
            self._kept.move_to_end(name)
        return self._kept.get(name)

    def get_or_make(self, name: str) -> T:
        """The namespace's object, marked as used now; a new one replaces the least recently used."""
        if name not in self._kept:
            if len(self._kept) == self._most:
                self._kept.popitem(last=False)
            self._kept[name] = self._make()
        self._kept.move_to_end(name)
        return self._kept[name]


class LookupDrafter(BaseDrafter):
    """Looks tokens up, for each request separately, as chains and as trees."""

    takes_trees = True
    looks_up = True

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        return [
            self.draft(request, plan) if plan.num_tokens else NO_DRAFT
            for request, plan in zip(requests, plans, strict=True)
        ]

    @abstractmethod
    def draft(self, request: Request, plan: Plan) -> Draft:
        """Draft for a request whose plan has at least one token."""


class HeadDrafter(BaseDrafter):
    """Drafts chains and trees with a trained head, from the target's hidden states.

    It drafts nothing for a request until it has seen the state of the newest token that the target
    has run. Greedy trees have the most probable nodes, sampled ones a fixed shape.

    Args:
        head: the head, on its target's backend.
        vocab_size: the target's.
        rows: number of rows of the target's cache.
        capacity: tokens per row, drafted ones included.
        tree_slots: slots per row for the nodes of trees.
        acceptance: acceptance by depth and rank, measured when the head was trained.
    """

    drawings = frozenset(Drawing)
    takes_trees = True
    features: Features
    head_class: str
    """Name of the head's class in its module of `forerun.heads`, which is called like `head`."""

    def __init__(
        self,
        head: Any,
        vocab_size: int,
        rows: int,
        capacity: int,
        tree_slots: int = MOST_NODES,
        acceptance: tuple[tuple[float, ...], ...] | None = None,
    ) -> None:
        from forerun.heads.features import Features

        self.module = head
        self.rows, self.capacity, self.vocab_size = rows, capacity, vocab_size
        self.hidden_layers, self.acceptance = head.hidden_layers, acceptance
        self.cache = head.new_cache(rows, capacity + tree_slots)
        self.features = Features(self.hidden_layers, rows, self.cache)

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        assert setup.head is not None, "the engine opens the head"
        module = import_module(f"forerun.heads.{cls.head}")
        return cls(
            getattr(module, cls.head_class).open(setup.target, setup.head),
            setup.target.vocab_size,
            setup.rows,
            setup.capacity,
            setup.tree_slots,
            setup.head.acceptance_by_rank,
        )

    @abstractmethod
    def longest(self, request: Request) -> int:
        """Most tokens of a request's draft."""

    @abstractmethod
    def grow(
        self,
        growths: list[Growth],
        missing: list[Missing],
        num_tokens: int,
        randomness: Randomness,
    ) -> None:
        """Grow trees from the states that the head has not read, at most `num_tokens` deep."""

    def draft(
        self,
        requests: list[Request],
        plans: list[Plan],
        missing: list[Missing],
        randomness: Randomness,
    ) -> list[Draft]:
        """Draft for requests with a plan, from the states that the head has not read."""
        from forerun.trees.growth import start

        growths = [start(*pair) for pair in zip(requests, plans, strict=True)]
        self.grow(growths, missing, max(plan.num_tokens for plan in plans), randomness)
        return [growth.finish() for growth in growths]

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        drafting: dict[int, Plan] = {}
        missing: list[Missing] = []
        for index, (request, plan) in enumerate(zip(requests, plans, strict=True)):
            longest = self.longest(request) if plan.num_tokens else 0
            lacking = self.features.missing(request) if longest > 0 else None
            if lacking is not None:
                drafting[index] = plan.cut(longest)
                missing.append(lacking)
        return drafts_of(
            requests, drafting, lambda chosen, own: self.draft(chosen, own, missing, randomness)
        )


class OwnLayersDrafter(BaseDrafter):
    """Drafts with the target's own layers, in its own cache.

    Args:
        target: the model that drafts for itself.
    """

    drawings = frozenset(Drawing)

    def __init__(self, target: CausalLM) -> None:
        self.target = target
        self.vocab_size: int | None = target.vocab_size
        # Weak, so that another engine can use the drafter after the first is deleted.
        self._attached: weakref.ref[Cache] | None = None

    def attach(self, cache: Cache) -> None:
        """Receive the cache to draft in, without keeping it alive.

        Raises:
            ConfigError: while the cache that it was attached to before still exists.
        """
        earlier = None if self._attached is None else self._attached()
        if earlier is not None and earlier is not cache:
            raise ConfigError(
                f"this {self.name} drafter already drafts in the cache of another engine; "
                "build a drafter for each engine."
            )
        self._attached = weakref.ref(cache)

    @property
    def _cache(self) -> Cache:
        cache = None if self._attached is None else self._attached()
        assert cache is not None, "attach comes first"
        return cache
