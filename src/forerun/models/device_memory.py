"""A readable error for a device that runs out of memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from forerun.errors import MemoryLimitError


@dataclass(frozen=True)
class DeviceMemory:
    """Context manager that turns torch's out-of-memory error into an error of our own.

    It is a class because it is entered for every forward: a generator takes several times as long.

    Args:
        device: the device that may run out of memory.
        what: the thing that does not fit, for the message.
        advice: remedy, for the message.
    """

    device: torch.device
    what: str
    advice: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            raise MemoryLimitError(
                f"there is not enough memory on {self.device} for {self.what}; {self.advice}."
            ) from error
