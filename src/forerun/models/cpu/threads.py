"""The threads that all models on the kernels share."""

from __future__ import annotations

import os
from functools import cache as once
from typing import Any

import torch

from forerun import _native
from forerun.errors import ConfigError

THREADS_VARIABLE = "FORERUN_THREADS"
# What `set_num_threads` was told, the latest last.
_asked: list[int] = []


def cores() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_num_threads(threads: int) -> None:
    """Threads of the models that are loaded on the kernels from now on."""
    _asked.append(threads)


def num_threads() -> int:
    """As many as were asked for, in FORERUN_THREADS, or of torch: one a core at most.

    Raises:
        ConfigError: for a variable that is no number of threads.
    """
    if not _asked:
        asked = os.environ.get(THREADS_VARIABLE)
        if asked is not None and not asked.isdecimal():
            raise ConfigError(f"{THREADS_VARIABLE} is {asked!r}; it must be a number of threads.")
        # Torch counts for itself, and a program may have told it anything.
        set_num_threads(int(asked) if asked else min(torch.get_num_threads(), cores()))
    return _asked[-1]


def threads_in_use() -> int:
    """What the kernels run on, or torch where no model has been loaded on them."""
    return _asked[-1] if _asked else torch.get_num_threads()


def shared_runtime() -> Any:
    """The threads that all models on the kernels share. Torch is held to one from then on: two sets
    of threads on the same cores slow each other down many times over.

    Raises:
        ConfigError: for none, or more than there are cores.
    """
    shared = runtime(num_threads())
    torch.set_num_threads(1)
    return shared


@once
def runtime(threads: int) -> Any:
    """A set of threads, the same whenever the same number is asked for.

    Raises:
        ConfigError: for none, or more than there are cores.
    """
    if not 1 <= threads <= cores():
        # Threads that wait for a core would hold up those that have one.
        raise ConfigError(
            f"{threads} threads were asked for on the CPU kernels; give 1 to {cores()}, the cores "
            "that this process may use."
        )
    return _native.kernels.Runtime(threads)
