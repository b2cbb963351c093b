"""Faster arithmetic: functions compiled by torch where a compiler is available."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


# Minimum number of columns for which compiling, which takes some seconds, pays.
LEAST_COLUMNS = 1024


def compiled(function: Callable[P, R], columns: int) -> Callable[P, R]:
    """A function for tensors of one fixed shape, compiled by torch at its first call.

    With few columns, and where compiling fails (as without a C++ compiler), the function is used
    uncompiled. Over rows of a vocabulary, a compiled function is ten times as fast.
    """
    return function if columns < LEAST_COLUMNS else _compiled(function)


@cache
def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    chosen: list[Callable[P, R]] = [torch.compile(function, dynamic=False)]

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return chosen[0](*args, **kwargs)
        except Exception as error:
            if chosen[0] is function:
                raise
            logger.info("%s is not compiled: %s", function.__name__, error)
            chosen[0] = function
            return function(*args, **kwargs)

    return run


def filled(size: int, *tensors: Tensor) -> list[Tensor]:
    """Tensors padded to `size` rows by repeating the last row, so that compiled code sees one shape."""
    count, device = len(tensors[0]), tensors[0].device
    if count == size:
        return list(tensors)
    rows = torch.arange(size, device=device).clamp(max=count - 1)
    return [tensor[rows] for tensor in tensors]
