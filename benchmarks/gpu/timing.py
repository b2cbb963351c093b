"""Times of a device: its memory, forwards by their number of new tokens, and what a profile says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from forerun.contracts import CausalLM
from forerun.core import Batch
from forerun.models.running import prefill

TOP = 10
# What the host does to start work on the device, and to wait for it or exchange data with it.
_LAUNCHES = ("LaunchKernel",)
_COPIES = ("Memcpy", "Memset")
_WAITS = ("Synchronize",)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bandwidth(device: torch.device, num_bytes: int, repeats: int = 10) -> float:
    """Bytes a second of copies within a device's memory, those read and those written."""
    source = torch.ones(num_bytes // 2, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    times = _timed(lambda: target.copy_(source), device, repeats)
    return 2 * source.nbytes / median(times)


@dataclass(frozen=True)
class Forwards:
    """Forwards of a model behind a text.

    Args:
        context: tokens of the text.
        ms: medians by new tokens, each awaited, so that the host's time counts.
        queued_ms: the same where the host need not wait for the device between them.
        bytes_read: of weights, keys and values by a forward of one token.
    """

    context: int
    ms: dict[int, float]
    queued_ms: dict[int, float]
    bytes_read: float


def forwards(model: CausalLM, context: int, most: int = 16, repeats: int = 15) -> Forwards:
    """Time forwards of 1 to `most` new tokens."""
    cache = model.new_cache(1, context + most)
    prefill(model, cache, 0, [1] * context)
    awaited, queued = {}, {}
    for count in range(1, most + 1):

        def run(count: int = count) -> None:
            model.forward(Batch.after(cache, [0], [[2] * count]), cache)
            cache.trim(0, context)

        awaited[count] = 1e3 * median(_timed(run, model.device, repeats))
        synchronize(model.device)
        started = perf_counter()
        for _ in range(repeats):
            run()
        synchronize(model.device)
        queued[count] = 1e3 * (perf_counter() - started) / repeats
    read: Any = model
    return Forwards(context, awaited, queued, read.bytes_read(context, model.num_layers))


def _timed(run: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    for _ in range(3):
        run()
    seconds = []
    for _ in range(repeats):
        synchronize(device)
        started = perf_counter()
        run()
        synchronize(device)
        seconds.append(perf_counter() - started)
    return seconds


def profiled(run: Callable[[], int], device: torch.device) -> dict[str, Any]:
    """Time of rounds by operation: the device's, or the CPU's where there is no accelerator.

    Args:
        run: runs rounds and returns their number.
    """
    on_device = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]
    with profile(activities=activities) as profiler:
        rounds = max(run(), 1)
        synchronize(device)
    events = [event for event in profiler.key_averages() if not event.is_user_annotation]
    kernels = [event for event in events if str(event.device_type).endswith("CUDA")]
    operations = [event for event in events if not str(event.device_type).endswith("CUDA")]

    def spent(event: Any) -> float:
        return 1e-3 * float(
            event.self_device_time_total if on_device else event.self_cpu_time_total
        )

    def calls(names: tuple[str, ...]) -> float:
        counted = (e.count for e in operations if any(name in e.key for name in names))
        return round(float(sum(counted)) / rounds, 1)

    def top(some: list[Any]) -> list[dict[str, Any]]:
        ranked = sorted(some, key=spent, reverse=True)[:TOP]
        return [
            {
                "name": event.key[:100],
                "ms_a_round": round(spent(event) / rounds, 4),
                "calls_a_round": round(event.count / rounds, 1),
            }
            for event in ranked
        ]

    busy = sum(map(spent, kernels if on_device else operations))
    return {
        "rounds": rounds,
        "busy_ms_a_round": round(busy / rounds, 4),
        "launches_a_round": calls(_LAUNCHES),
        "copies_a_round": calls(_COPIES),
        "waits_a_round": calls(_WAITS),
        "top": top(operations),
        "top_kernels": top(kernels),
    }
