"""Errors in words for a device that runs out of memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from forerun.errors import MemoryLimitError


@dataclass(frozen=True)
class DeviceMemory:
    """Raises what torch raises for a device without memory, inside a `with`, as an error of our own.

    A class, as these blocks are entered for every forward: a generator takes several times as long.

    Args:
        device: that may run out of memory.
        what: there is not enough memory for.
        advice: what to do.
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
