"""Wrappers for methods of modules and schedulers, which can be removed in any order.

Several wrappers may lie around one method, such as a guidance cache around a counter of evaluations. Each
can be removed while the others stay. Without the last one, the object is as it was before.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self


class Wrapper:
    """Replacement for a method; `call(inner, *args, **kwargs)` decides what runs.

    Args:
        owner: module or scheduler.
        name: name of its method.
        call: function that takes the wrapped method and then the method's own arguments.
        innermost: True to lie below the existing wrappers.
    """

    def __init__(
        self, owner: Any, name: str, call: Callable[..., Any], *, innermost: bool = False
    ) -> None:
        self.owner, self.name, self.call = owner, name, call
        self.inner: Any
        self.own: bool
        outer = getattr(owner, name)
        if innermost and isinstance(outer, Wrapper):
            lowest = outer
            while isinstance(lowest.inner, Wrapper):
                lowest = lowest.inner
            self.own, self.inner = lowest.own, lowest.inner
            lowest.inner = self
            return
        # True if the object itself, not its class, held the method; `remove` restores that.
        self.own = outer.own if isinstance(outer, Wrapper) else name in vars(owner)
        self.inner = outer
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(self.inner, *args, **kwargs)

    def remove(self) -> None:
        """Remove this wrapper; without effect if it is removed already."""
        outer = getattr(self.owner, self.name)
        if outer is self:
            if isinstance(self.inner, Wrapper) or self.own:
                setattr(self.owner, self.name, self.inner)
            else:
                delattr(self.owner, self.name)
            return
        while isinstance(outer, Wrapper):
            if outer.inner is self:
                outer.inner = self.inner
                return
            outer = outer.inner


class Handle:
    """Base of changes applied to a pipeline, which `remove` or leaving a `with` block undoes."""

    approximate = True
    """True if the samples differ from those of the unchanged pipeline."""

    def __init__(self) -> None:
        self._wrappers: list[Wrapper] = []

    def remove(self) -> None:
        """Restore the pipeline."""
        for wrapper in reversed(self._wrappers):
            wrapper.remove()
        self._wrappers.clear()

    @property
    def applied(self) -> bool:
        """True until the change is removed."""
        return bool(self._wrappers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()
