"""Shared loading: several engines that run the same model load it once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from forerun.contracts import CausalLM

_loaded: ContextVar[dict[Hashable, CausalLM] | None] = ContextVar("loaded", default=None)


@contextmanager
def loading_once() -> Iterator[None]:
    """Within the block, load each checkpoint once for the same settings.

    A model keeps nothing between forwards: every engine has a cache of its own.
    """
    token = _loaded.set({})
    try:
        yield
    finally:
        _loaded.reset(token)


def once(key: Hashable, load: Callable[[], CausalLM]) -> CausalLM:
    """The result of `load`, or within `loading_once` its earlier result for the same key."""
    loaded = _loaded.get()
    if loaded is None:
        return load()
    if key not in loaded:
        loaded[key] = load()
    return loaded[key]
