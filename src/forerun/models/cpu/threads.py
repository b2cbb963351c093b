"""The threads that all models on the kernels share."""

from __future__ import annotations

import os
from functools import cache as once
from typing import Any

import torch

from forerun import _native
from forerun.errors import ConfigError

THREADS_VARIABLE = "FORERUN_NUM_THREADS"
# What `set_num_threads` was told, the latest last.
_asked: list[int] = []


def set_num_threads(threads: int) -> None:
    """Threads of the models that are loaded from now on.

    Raises:
        ConfigError: for none, or more than there are cores.
    """
    _check_threads(threads)
    _asked.append(threads)


def _check_threads(threads: int) -> None:
    cores = os.cpu_count() or 1
    if not 1 <= threads <= cores:
        # Threads that wait for a core would hold up those that have one.
        raise ConfigError(f"{threads} threads were asked for; this machine has {cores} cores.")


def shared_runtime() -> Any:
    """The threads that models share: as many as were asked for, in FORERUN_NUM_THREADS or of torch.

    Raises:
        ConfigError: for a variable that is no number of threads.
    """
    if not _asked:
        asked = os.environ.get(THREADS_VARIABLE) or str(torch.get_num_threads())
        if not asked.isdecimal():
            raise ConfigError(f"{THREADS_VARIABLE} is {asked!r}; it must be a number of threads.")
        set_num_threads(int(asked))
    # Two sets of threads on the same cores slow each other down many times over.
    torch.set_num_threads(1)
    return runtime(_asked[-1])


@once
def runtime(threads: int) -> Any:
    _check_threads(threads)
    return _native.kernels.Runtime(threads)
