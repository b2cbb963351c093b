"""Wrapping a method of a module or a scheduler, so that it can be unwrapped in any order.

Several wrappers may lie around one method: a cache for guidance around a counter of evaluations, say.
Each can be removed while the others stay, and with the last one gone the object is as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self


class Wrapper:
    """Stands in for a method; `call(inner, *args, **kwargs)` decides what runs.

    Args:
        owner: the module or scheduler.
        name: of its method.
        call: given what is wrapped, then the method's own arguments.
        innermost: whether to lie below the wrappers that are there already.
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
        # Whether the object itself, not its class, held the method: `remove` restores just that.
        self.own = outer.own if isinstance(outer, Wrapper) else name in vars(owner)
        self.inner = outer
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(self.inner, *args, **kwargs)

    def remove(self) -> None:
        """Take this wrapper out; without effect when it is out already."""
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
    """What is applied to a pipeline: `remove` takes it off again, as does leaving a `with` block."""

    approximate = True
    """Whether the samples differ from those of the pipeline without it."""

    def __init__(self) -> None:
        self._wrappers: list[Wrapper] = []

    def remove(self) -> None:
        """Restore the pipeline."""
        for wrapper in reversed(self._wrappers):
            wrapper.remove()
        self._wrappers.clear()

    @property
    def applied(self) -> bool:
        """Whether it has not been removed."""
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
