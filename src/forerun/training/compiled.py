"""Functions of many element-wise steps, compiled into one pass where this machine has a compiler."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import ParamSpec, TypeVar

import torch

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


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
