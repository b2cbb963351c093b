"""Threads that all models on the kernels share."""

from __future__ import annotations

import atexit
import os
from functools import cache as once
from typing import TYPE_CHECKING

import torch

from forerun import _native
from forerun._native import rows
from forerun.errors import ConfigError
from forerun.processor import cores

if TYPE_CHECKING:
    from forerun._native.kernels import ThreadPool

THREADS_VARIABLE = "FORERUN_THREADS"
# Numbers given to `set_num_threads`, the latest last.
_asked: list[int] = []


def set_num_threads(threads: int) -> None:
    """Set the number of threads for models that are loaded on the kernels from now on."""
    _asked.append(threads)


def num_threads() -> int:
    """Number of threads: the one set, or that in FORERUN_THREADS, or torch's, at most the number of cores.

    Raises:
        ConfigError: for a variable that does not hold a number.
    """
    if not _asked:
        asked = os.environ.get(THREADS_VARIABLE)
        if asked is not None and not asked.isdecimal():
            raise ConfigError(f"{THREADS_VARIABLE} is {asked!r}; it must be a number of threads.")
        # A program may have set torch's number above that of the cores.
        set_num_threads(int(asked) if asked else min(torch.get_num_threads(), cores()))
    return _asked[-1]


def threads_in_use() -> int:
    """Number of threads of the kernels, or torch's if no model has been loaded on them."""
    return _asked[-1] if _asked else torch.get_num_threads()


def shared_pool() -> ThreadPool:
    """The threads that all models on the kernels share.

    From then on torch is limited to one thread: two sets of threads on the same cores slow each
    other down many times over.

    Raises:
        ConfigError: for a number of threads below 1 or above that of the cores.
    """
    shared = thread_pool(num_threads())
    torch.set_num_threads(1)
    rows.use_threads(shared)
    return shared


@once
def thread_pool(threads: int) -> ThreadPool:
    """A set of threads, the same for each call with the same number.

    Raises:
        ConfigError: for a number below 1 or above that of the cores, or that the system refuses.
    """
    if not 1 <= threads <= cores():
        # A thread that waits for a core would delay all others.
        raise ConfigError(
            f"{threads} threads were asked for on the CPU kernels; give 1 to {cores()}, the cores "
            "that this process may use."
        )
    try:
        return _native.kernels.ThreadPool(threads)
    except RuntimeError as error:
        raise ConfigError(
            f"{threads} threads cannot be started here ({error}); give fewer, by --threads or "
            f"{THREADS_VARIABLE}."
        ) from None


@atexit.register
def _release_threads() -> None:
    """End the threads of models that are gone before the interpreter exits.

    At exit the interpreter never clears a module to which one of its own objects still refers.
    """
    thread_pool.cache_clear()
    rows.use_threads(None)
