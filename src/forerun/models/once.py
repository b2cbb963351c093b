"""Loading a model once where several engines run it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from forerun.contracts import CausalLM

_loaded: ContextVar[dict[Hashable, CausalLM] | None] = ContextVar("loaded", default=None)


@contextmanager
def loading_once() -> Iterator[None]:
    """Within the block a checkpoint that is loaded again to run in the same way is the same model.

    A model keeps nothing between forwards: every engine has a cache of its own.
    """
    token = _loaded.set({})
    try:
        yield
    finally:
        _loaded.reset(token)


def once(key: Hashable, load: Callable[[], CausalLM]) -> CausalLM:
    """What `load` makes, or within `loading_once` what it has made for the key before."""
    loaded = _loaded.get()
    if loaded is None:
        return load()
    if key not in loaded:
        loaded[key] = load()
    return loaded[key]
