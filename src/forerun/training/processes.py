"""Training by several processes, each of which takes its share of a step's micro-batches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, distributed

from forerun.errors import TrainingError

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """Rank of this process, and number of the processes that train together.

    Args:
        rank: index of this process, from 0.
        count: number of processes.
    """

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """True for the process that writes files and prints."""
        return self.rank == 0

    def share(self, parts: Sequence[T]) -> Sequence[T]:
        """The parts that this process works on; every part belongs to one process."""
        return parts[self.rank :: self.count]

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes, equal in each."""
        if self.count > 1:
            # It is summed as it lies in memory, so it must lie alike in every process.
            values = values.contiguous()
            distributed.all_reduce(values)
        return values

    def from_first(self, value: T) -> T:
        """The first process's value, in every process."""
        values = [value]
        if self.count > 1:
            distributed.broadcast_object_list(values)
        return values[0]


ALONE = Processes()


def join() -> Processes:
    """Join the processes of a launcher (`torchrun`, `accelerate launch`); without one, this is alone.

    Raises:
        TrainingError: if the processes cannot be joined.
    """
    if int(os.environ.get("WORLD_SIZE", "1") or 1) <= 1:
        return ALONE
    try:
        if not distributed.is_initialized():
            distributed.init_process_group("gloo")
    except (ValueError, RuntimeError) as error:
        raise TrainingError(
            f"the processes of WORLD_SIZE cannot be joined ({str(error).splitlines()[0]}); start them with "
            "torchrun or accelerate, or unset WORLD_SIZE to train in one."
        ) from error
    return Processes(distributed.get_rank(), distributed.get_world_size())
