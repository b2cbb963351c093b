"""Group 1: plain decoding reads weights as fast as memory allows, and is faster than the peers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from benchmarks.checkpoints import write_checkpoint
from benchmarks.groups.report import Figure, Setting, paired_ratio, spread
from forerun.bench.peers.process import RemoteEngine

GROUP = 1
CONTEXT = 128
SHARE = 0.92
GOALS = {
    "bf16": {"llama.cpp": 1.0, "openvino": 1.2, "transformers": 2.0},
    "int8": {"llama.cpp": 1.25, "openvino": 1.5},
    "int4": {"llama.cpp": 1.1},
}
PROMPT = list(range(1, 33))


def run(setting: Setting) -> Iterator[Figure]:
    """Figures of all models and precisions."""
    for name in ("llama-350m",) if setting.quick else ("llama-350m", "qwen3-0.6b"):
        directory = str(write_checkpoint(name, setting.work / name))
        for precision, goals in GOALS.items():
            setting.progress(f"1: {name} {precision}")
            peers = setting.peers(goals, directory, precision)
            with setting.ours(directory, precision) as ours:
                yield _bandwidth(setting, ours, f"{name} {precision}")
                yield from _against(setting, ours, peers, f"{name} {precision}", goals)


def _bandwidth(setting: Setting, ours: RemoteEngine, what: str) -> Figure:
    ours.call("share_of_bandwidth", context=CONTEXT)
    turns = [ours.call("share_of_bandwidth", context=CONTEXT) for _ in range(setting.pick(25, 7))]
    shares = [turn["share"] for turn in turns]
    rates = [statistics.median(turn[key] for turn in turns) / 1e9 for key in _RATES]
    return Figure(
        GROUP,
        f"{what}: share of the streaming bandwidth",
        statistics.median(shares),
        SHARE,
        unit="",
        detail=f"{rates[0]:.1f} of {rates[1]:.1f} GB/s, {spread(shares)}",
    )


_RATES = ("bytes_per_second", "machine")


def _against(
    setting: Setting,
    ours: RemoteEngine,
    peers: Mapping[str, RemoteEngine],
    what: str,
    goals: Mapping[str, float],
) -> Iterator[Figure]:
    count = setting.pick(64, 24)
    times = alternate(ours, peers, setting.pick(7, 3), PROMPT, count)
    for name, (our, their) in times.items():
        ratio, around = paired_ratio(our, their)
        rates = [count / statistics.median(seconds) for seconds in (our, their)]
        detail = f"{rates[0]:.1f} and {rates[1]:.1f} tokens/s, {around}"
        yield Figure(GROUP, f"{what}: tokens/s over {name}", ratio, goals[name], detail=detail)


def alternate(
    ours: RemoteEngine,
    peers: Mapping[str, RemoteEngine],
    rounds: int,
    prompt: list[int],
    count: int,
) -> dict[str, tuple[list[float], list[float]]]:
    """Seconds of our engine and each peer in alternation, by peer; closes the peers afterwards."""
    request = {"prompt_ids": prompt, "num_tokens": count}
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in peers}
    for name, peer in peers.items():
        with peer:
            for turn in range(rounds + 1):
                for engine, own_times in zip((ours, peer), times[name], strict=True):
                    tokens, seconds = engine.call("generate", **request)[:2]
                    assert len(tokens) == count
                    if turn:
                        own_times.append(seconds)
    return times
