"""A machine that is the same everywhere: forwards of models move its clock, its caches and rates are given.

What forerun measures on it, and says about that, is a function of the code alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forerun import _native
from forerun.models import CpuModel

# Seconds: of a look at the clock, and of a forward by the bytes that it reads and by its tokens.
LOOK, BYTE, TOKEN = 1e-6, 1e-7, 1e-4
CACHES = {"1": "32K", "2": "2048K"}
# Bytes, and multiply-adds of the instructions, a second.
BANDWIDTH, RATES = 1e10, {"fp32": 1e11, "bf16": 2e11, "int8": 4e11}


class VirtualClock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self.now = 0.0

    def look(self) -> float:
        self.now += LOOK
        return self.now

    def run(self, model: CpuModel, num_tokens: int) -> None:
        """Let the time of a forward pass."""
        self.now += BYTE * model.weight_bytes + TOKEN * num_tokens


class Stream:
    """Stands in for the memory that reads are measured on."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def read(self, pool: Any, nbytes: int, times: int = 1) -> float:
        return nbytes / BANDWIDTH


@contextmanager
def virtual_machine(folder: Path) -> Iterator[None]:
    """Have forerun run on it; the folder is for what the system says about caches."""
    clock = VirtualClock()
    look = clock.look
    real = {name: getattr(time, name) for name in ("perf_counter", "monotonic")}
    with pytest.MonkeyPatch.context() as patch:
        for name, function in real.items():
            for module in _modules_with(name, function, "forerun."):
                patch.setattr(module, name, look)
            patch.setattr(time, name, look)
        _time_forwards(patch, clock)
        patch.setattr("forerun.processor.CACHES", _caches(folder))
        patch.setattr(_native.kernels, "Stream", Stream)
        patch.setattr(_native.kernels, "peak_rate", lambda pool, name: RATES[name])
        yield
    # Modules that were first imported meanwhile took the virtual clock.
    for name, function in real.items():
        for module in _modules_with(name, look):
            setattr(module, name, function)


def _modules_with(name: str, value: Any, prefix: str = "") -> list[Any]:
    """The modules that have imported a function under its name."""
    modules = [module for key, module in sys.modules.items() if key.startswith(prefix)]
    return [module for module in modules if getattr(module, "__dict__", {}).get(name) is value]


def _time_forwards(patch: pytest.MonkeyPatch, clock: VirtualClock) -> None:
    forward, draft_chains = CpuModel.forward, CpuModel.draft_chains

    def timed_forward(self: CpuModel, batch: Any, cache: Any) -> Any:
        clock.run(self, sum(batch.counts))
        return forward(self, batch, cache)

    def timed_chains(self: CpuModel, cache: Any, requests: Any, *args: Any, **more: Any) -> Any:
        for _ in range(max(request.limit for request in requests)):
            clock.run(self, len(requests))
        return draft_chains(self, cache, requests, *args, **more)

    patch.setattr(CpuModel, "forward", timed_forward)
    patch.setattr(CpuModel, "draft_chains", timed_chains)


def _caches(folder: Path) -> Path:
    """A folder that describes the caches as the system does."""
    for level, size in CACHES.items():
        index = folder / f"index{level}"
        index.mkdir(parents=True)
        facts = {"level": level, "size": size, "type": "Unified", "shared_cpu_list": "0"}
        for name, text in facts.items():
            (index / name).write_text(text, encoding="ascii")
    return folder
