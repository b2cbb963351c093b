"""Faster arithmetic: functions compiled into one pass where this machine has a compiler, products in bf16."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from threading import RLock
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


_compiling, _casting = RLock(), RLock()
# Columns from which on compiling for some seconds pays.
LEAST_COLUMNS = 1024


def compiled(function: Callable[P, R], columns: int) -> Callable[P, R]:
    """A function for tensors of one fixed shape, compiled by torch when it is first called; as it is for
    few columns, and where compiling fails, as without a C++ compiler. Over rows of a vocabulary a
    compiled one is ten times as fast."""
    return function if columns < LEAST_COLUMNS else _compiled(function)


@cache
def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    chosen: list[Callable[P, R]] = [torch.compile(function, dynamic=False)]
    ready: list[bool] = []

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # Of several threads one compiles.
        with nullcontext() if ready else _compiling:
            made = attempt(*args, **kwargs)
        ready[:] = [True]
        return made

    def attempt(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return chosen[0](*args, **kwargs)
        except Exception as error:
            if chosen[0] is function:
                raise
            logger.info("%s is not compiled: %s", function.__name__, error)
            chosen[0] = function
            return function(*args, **kwargs)

    return run


@contextmanager
def in_bf16(device: torch.device) -> Iterator[None]:
    """A block whose products are in bf16, for one thread at a time: threads share the weights in bf16, which
    torch keeps until some thread's block ends, and gradients would be rounded by chance."""
    with _casting, torch.autocast(device.type, torch.bfloat16):
        yield


def filled(size: int, *tensors: Tensor) -> list[Tensor]:
    """Tensors of `size` rows each, the last of which is repeated: what is compiled sees one shape."""
    count, device = len(tensors[0]), tensors[0].device
    if count == size:
        return list(tensors)
    rows = torch.arange(size, device=device).clamp(max=count - 1)
    return [tensor[rows] for tensor in tensors]
