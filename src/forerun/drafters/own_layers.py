"""Base of drafters that run the target's own layers, in its own cache."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from forerun.contracts import Cache, CausalLM
from forerun.core import Batch, Drawing, Tree, View
from forerun.drafters.base import BaseDrafter
from forerun.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from forerun.trees.growth import Growth


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

    def _run(
        self,
        growths: Sequence[Growth],
        token_ids: Sequence[Sequence[int]],
        layers: range,
        hidden_in: Tensor | None,
        *,
        trees: Sequence[Tree | None] | None = None,
        view: View | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run tokens of some growths through some layers.

        The result is their output [B, n, hidden_size] and, after the last layer, logits [B, n, V].
        """
        batch = Batch.after(
            self._cache,
            [growth.request.row for growth in growths],
            token_ids,
            trees=trees,
            layers=layers,
            hidden_in=hidden_in,
            hidden_layers=(layers.stop,),
            view=view,
        )
        output = self.target.forward(batch, self._cache)
        return output.hidden[layers.stop], output.logits


def drafting_layers(skip_layers: Collection[int], num_layers: int) -> list[range]:
    """The layers that draft, in unbroken ranges; layer 0 is always among them.

    Raises:
        ConfigError: for layers that the target does not have, all of them, or the first.
    """
    skipped = set(skip_layers)
    if not skipped < set(range(num_layers)) or 0 in skipped:
        raise no_such_layers(skipped, num_layers)
    edges = itertools.pairwise([-1, *sorted(skipped), num_layers])
    return [range(below + 1, above) for below, above in edges if below + 1 < above]


def no_such_layers(skip_layers: Collection[int], num_layers: int) -> ConfigError:
    """The error for layers that a target of `num_layers` layers cannot leave out."""
    return ConfigError(
        f"layers {sorted(skip_layers)} cannot be skipped in a target of {num_layers} layers; "
        f"give one or more from 1 to {num_layers - 1}: layer 0 always drafts."
    )


def check_runs_apart(target: CausalLM, view: View | None = None) -> None:
    """Run one token through one layer and the output head, to refuse a target that cannot.

    Raises:
        ForerunError: the target's error, saying what it lacks.
    """
    cache = target.new_cache(1, 1)
    batch = Batch.after(cache, [0], [[0]], layers=range(1), hidden_layers=(1,), view=view)
    hidden = target.forward(batch, cache).hidden[1]
    target.lm_head(target.final_norm(hidden))
