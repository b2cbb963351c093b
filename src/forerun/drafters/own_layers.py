"""Base of drafters that run the target's own layers, in its own cache."""

from __future__ import annotations

import weakref

from forerun.contracts import Cache, CausalLM
from forerun.core import Batch, Drawing
from forerun.drafters.base import BaseDrafter
from forerun.errors import ConfigError


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


def check_runs_apart(target: CausalLM) -> None:
    """Run one token through one layer and the output head, to refuse a target that cannot.

    Raises:
        ForerunError: the target's error, saying what it lacks.
    """
    cache = target.new_cache(1, 1)
    batch = Batch.after(cache, [0], [[0]], layers=range(1), hidden_layers=(1,))
    target.lm_head(target.final_norm(target.forward(batch, cache).hidden[1]))
