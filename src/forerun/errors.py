"""All errors that forerun raises on purpose.

    ForerunError
    ├── ConfigError             a value, option or combination that is not allowed
    ├── UnknownNameError        a method, rule, policy or key that does not exist
    ├── PromptError             a prompt that cannot be run: empty, too long, not text
    ├── ModelError              something about a model
    │   ├── CheckpointError         missing, corrupt or incomplete files
    │   ├── UnsupportedModelError   an architecture that cannot be run speculatively
    │   └── IncompatibleDraftError  a draft that does not fit its target
    ├── MemoryLimitError        weights and caches would not fit
    ├── CacheError              a cache that is full or misused
    ├── SessionError            a saved session that is damaged, or of another model
    ├── DistributionError       invalid probabilities: all -inf, NaN, wrong sums
    ├── EndpointError           a server that is down, too slow, or refuses
    ├── ExactnessError          a method that changes the distribution, found by a check
    └── TrainingError           a training run that cannot start or go on

All of them are user errors in the sense of the command line: exit code 2 and one line on stderr.
All of them can be pickled, so that a process pool hands them on.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from reprlib import Repr
from typing import Any

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


class ForerunError(Exception):
    """Base of all errors that forerun raises on purpose. The message is one line."""


class ConfigError(ForerunError, ValueError):
    """A value, option or combination that is not allowed."""


class UnknownNameError(ConfigError):
    """A name that does not exist; the message lists those that do and suggests the nearest."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        # A known name with another library's prefix, such as torch_dtype, before one that looks alike.
        near = [known_name for known_name in names if str(name).endswith(f"_{known_name}")]
        near = near or difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {kind} {shown(name)}.{hint} Known: {', '.join(names)}.")
        self.kind, self.name, self.known = kind, name, names

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is unpickled from its message alone, which this constructor does not take.
        return type(self), (self.kind, self.name, self.known)


class PromptError(ForerunError, ValueError):
    """A prompt that cannot be run: empty, longer than the context, not text."""


class ModelError(ForerunError):
    """A problem with a model or its files."""


class CheckpointError(ModelError):
    """A checkpoint whose files are missing, corrupt or incomplete."""


class UnsupportedModelError(ModelError):
    """An architecture that cannot be run speculatively, or not at all."""


class IncompatibleDraftError(ModelError):
    """A draft that does not fit its target."""


class MemoryLimitError(ModelError):
    """Weights and caches that would not fit into the memory of their device."""


class CacheError(ForerunError):
    """A cache that is full or was asked for something that it does not hold."""

    @classmethod
    def no_room(cls, rows: int, capacity: int) -> CacheError:
        """The error for a cache without rows, or with rows that have no room for a token."""
        return cls(
            f"a cache of {rows} rows of {capacity} tokens holds nothing; ask for at least 1 of each."
        )

    @classmethod
    def beyond_context(cls, position: int, max_context: int) -> CacheError:
        """The error for a token at a position beyond the model's context."""
        return cls(
            f"position {position} lies beyond the context of {max_context} tokens; "
            "end the text or draft less far."
        )


class SessionError(ForerunError):
    """A saved session that is damaged, is of another kind, or does not fit the engine."""


class DistributionError(ForerunError, ValueError):
    """Invalid probabilities: a row of all -inf, NaN, a sum that is not one."""


class EndpointError(ForerunError):
    """A server that is down, too slow, or refuses a request."""


class ExactnessError(ForerunError, AssertionError):
    """A drafter or a rule that would change the target's distribution."""


class TrainingError(ForerunError):
    """A training run that cannot start or go on."""


def shown(value: Any) -> str:
    """A value on one line for a message, shortened if it is long."""
    line = " ".join(_SHORT.repr(value).split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def counted(count: int, noun: str) -> str:
    """A number with its noun, such as `1 token` or `6 tokens`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
