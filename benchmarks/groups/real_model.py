"""Group 6: SmolLM2 from its GGUF file, in the file's own numbers, beside llama.cpp on the same file."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from time import perf_counter

from benchmarks.groups.plain import PROMPT, alternate
from benchmarks.groups.report import Figure, Setting, paired_ratio
from forerun.bench.peers.process import RemoteEngine
from forerun.errors import ConfigError
from forerun.models.zoo import packaged_path

GROUP = 6
NAME = "smollm2"
PEER = "llama.cpp"
TIMES = 3
# Tokens of prompt and of output.
RUNS = {"decoding": (len(PROMPT), 128), "512 tokens to the first": (512, 1)}


def run(setting: Setting) -> Iterator[Figure]:
    """Figures of decoding, the first token, loading and memory."""
    file = str(packaged_path(NAME))
    for what, (prompt, count) in RUNS.items():
        setting.progress(f"6: {what}")
        peers = setting.peers([PEER], file, "stored")
        ids = [1 + at % 40000 for at in range(prompt)]
        with setting.ours(NAME, "stored") as ours:
            times = alternate(ours, peers, setting.pick(15, 5), ids, count)
        for our, their in times.values():
            ratio, around = paired_ratio(our, their)
            rates = [(count if count > 1 else prompt) / statistics.median(s) for s in (our, their)]
            detail = f"{rates[0]:.0f} and {rates[1]:.0f} tokens/s, {around}"
            yield Figure(GROUP, f"{NAME}: {what}, over {PEER}", ratio, 1.0, detail=detail)
    yield from _footprints(setting, file)


def _footprints(setting: Setting, file: str) -> Iterator[Figure]:
    """Loading and memory of fresh processes; interpreter and libraries are part of both."""
    loads: dict[str, list[float]] = {"forerun": [], PEER: []}
    peaks: dict[str, list[int]] = {"forerun": [], PEER: []}
    for _ in range(TIMES):
        for name in loads:
            setting.progress(f"6: a fresh process of {name}")
            started = perf_counter()
            try:
                engine = _fresh(setting, name, file)
            except ConfigError as error:
                setting.note(f"without {name}: {error}")
                continue
            with engine:
                loads[name].append(perf_counter() - started)
                engine.call("generate", prompt_ids=PROMPT, num_tokens=32)
                peaks[name].append(engine.peak_bytes())
    for name in [name for name in loads if loads[name]]:
        low, high = min(loads[name]), max(loads[name])
        detail = f"{low:.2f} to {high:.2f} s in {TIMES} fresh processes"
        median = statistics.median(loads[name])
        yield Figure(GROUP, f"{name}: start and load", median, unit="s", detail=detail)
        yield Figure(GROUP, f"{name}: peak memory", max(peaks[name]) / 1e6, unit="MB")


def _fresh(setting: Setting, name: str, file: str) -> RemoteEngine:
    if name == "forerun":
        return setting.ours(NAME, "stored")
    return setting.peer(name, file, "stored")
