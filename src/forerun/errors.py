"""Every error that forerun raises on purpose.

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
    ├── DistributionError       probabilities that are none: all -inf, NaN, wrong sums
    ├── ExactnessError          a method that changes the distribution, found by a check
    └── TrainingError           a training run that cannot start or go on

All of them are user errors in the sense of the command line: exit code 2 and one line on stderr.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ForerunError(Exception):
    """Base of all errors that forerun raises on purpose. The message is one line."""


class ConfigError(ForerunError, ValueError):
    """A value, option or combination that is not allowed."""


class UnknownNameError(ConfigError):
    """A name that does not exist; the message lists those that do and suggests the nearest."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}.")
        self.kind, self.name, self.known = kind, name, names


class PromptError(ForerunError, ValueError):
    """A prompt that cannot be run: empty, longer than the context, not text."""


class ModelError(ForerunError):
    """Something about a model."""


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


class DistributionError(ForerunError, ValueError):
    """Probabilities that are none: a row of all -inf, NaN, a sum that is not one."""


class ExactnessError(ForerunError, AssertionError):
    """A drafter or a rule that would change the target's distribution."""


class TrainingError(ForerunError):
    """A training run that cannot start or go on."""
