"""Training by several processes, each of which takes its share of a step's micro-batches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import torch
from torch import Tensor, distributed

from forerun.errors import TrainingError
from forerun.files import lock, printable, reason

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
        """The sum of a tensor over all processes."""
        if self.count > 1:
            distributed.all_reduce(values)
        return values

    def mean(self, value: float) -> float:
        """The mean of a number over all processes, equal in each."""
        if self.count == 1:
            return value
        return float(self.sum(torch.tensor([value], dtype=torch.float64))) / self.count


ALONE = Processes()


def join() -> Processes:
    """Join the processes started by a launcher (`accelerate launch`, `torchrun`).

    Without a launcher, this process is alone. If accelerate is not installed, torch (gloo) joins the
    processes by the variables that launchers set: WORLD_SIZE, RANK, MASTER_ADDR, MASTER_PORT.

    Raises:
        TrainingError: if the processes cannot be joined.
    """
    count = int(os.environ.get("WORLD_SIZE", "1") or 1)
    if count <= 1:
        return ALONE
    try:
        from accelerate import PartialState  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return _joined_by_torch()
    state = PartialState(cpu=True)
    return Processes(state.process_index, state.num_processes)


def _joined_by_torch() -> Processes:
    try:
        if not distributed.is_initialized():
            distributed.init_process_group("gloo")
    except (ValueError, RuntimeError) as error:
        raise TrainingError(
            f"the processes of WORLD_SIZE cannot be joined ({str(error).splitlines()[0]}); start them with "
            "torchrun or accelerate, or unset WORLD_SIZE to train in one."
        ) from error
    return Processes(distributed.get_rank(), distributed.get_world_size())


def locked(work: Path) -> IO[str]:
    """The lock of a run's directory, which is created if it is missing.

    Raises:
        TrainingError: if it cannot be created, or another run trains in it.
    """
    try:
        work.mkdir(parents=True, exist_ok=True)
        file = (work / "lock").open("w", encoding="utf-8")
    except OSError as error:
        raise TrainingError(
            f"{printable(work.parent)} can be no directory of a drafter: {reason(error)}; give "
            "another --output."
        ) from error
    if not lock(file):
        file.close()
        raise TrainingError(
            f"another run trains in {printable(work.parent)}; wait for its end, or give another --output."
        )
    return file
