"""Group 4: speculative decoding on held-out code, beside its own bound and the peers at their best."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.checkpoints import zoo_target
from benchmarks.deepened import layers_for, write_deep
from benchmarks.groups.report import Figure, Setting, paired_ratio, spread
from forerun.bench.peers.process import RemoteEngine
from forerun.models.checkpoint import Checkpoint
from forerun.models.zoo import packaged_path
from forerun.proof.prompts import held_out_prompts

GROUP = 4
SHARE = 0.9
GOALS = {
    "bf16": {"llama.cpp": 1.8, "openvino": 2.2, "transformers": 5.0},
    "int8": {"llama.cpp": 3.0, "openvino": 3.0},
}
LENGTHS = (2, 3, 4, 5, 6, 8)
PEER_LENGTHS = (0, *LENGTHS)
MOST_PROMPT = 400
DEEP_BILLIONS = 0.077
CONTEXT = 256


@dataclass(frozen=True)
class Task:
    """Prompts as token ids, and the number of tokens to generate."""

    prompts: Sequence[list[int]]
    num_tokens: int


def run(setting: Setting) -> Iterator[Figure]:
    """Figures of the zoo's pair in bf16 and int8, and of the deeper target in int8."""
    target, draft = str(zoo_target(setting.work / "zoo-target")), str(packaged_path("zoo-draft"))
    task = _task(setting)
    for precision in ("bf16", "int8"):
        setting.progress(f"4: zoo {precision}")
        with setting.ours(target, precision, draft) as ours:
            yield from _bounds(setting, ours, task, f"zoo {precision}")
            if precision == "bf16":
                peers = setting.peers(GOALS[precision], target, precision, draft)
                yield from _against(setting, ours, peers, task, "zoo bf16", GOALS[precision])
    setting.progress("4: the deeper target")
    layers = layers_for(packaged_path("zoo"), DEEP_BILLIONS)
    file = write_deep(packaged_path("zoo"), setting.work / f"zoo-{layers}-layers.gguf", layers)
    deep = str(zoo_target(file.with_suffix(""), file))
    with setting.ours(deep, "int8", draft) as ours:
        size = ours.call("describe")["weight_bytes"]
        what = f"zoo deepened to {size / 1e6:.0f} MB, int8"
        yield from _bounds(setting, ours, task, what)
        peers = setting.peers(GOALS["int8"], deep, "int8", draft)
        yield from _against(setting, ours, peers, task, what, GOALS["int8"])


def _task(setting: Setting) -> Task:
    tokenizer = Checkpoint.open("zoo").tokenizer
    prompts = held_out_prompts()[: setting.pick(20, 4)]
    ids = [tokenizer.encode(prompt)[:MOST_PROMPT] for prompt in prompts]
    return Task(ids, setting.pick(128, 64))


def best_length(engine: RemoteEngine, task: Task, lengths: Sequence[int]) -> int:
    """The number of drafted tokens that is fastest on a fifth of the prompts."""
    few = task.prompts[: max(1, len(task.prompts) // 5)]
    totals = {}
    for length in lengths:
        request = {"num_tokens": task.num_tokens, "num_speculative_tokens": length}
        engine.call("generate", prompt_ids=task.prompts[0], **request)
        totals[length] = sum(
            engine.call("generate", prompt_ids=prompt, **request)[1] for prompt in few
        )
    return min(totals, key=lambda length: totals[length])


def _bounds(setting: Setting, ours: RemoteEngine, task: Task, what: str) -> Iterator[Figure]:
    """Tokens per second over the bound of the forwards alone, greedy and at temperature 1."""
    length = best_length(ours, task, LENGTHS)
    for temperature, name in ((0.0, "greedy"), (1.0, "T = 1")):
        sampled, count = temperature > 0, setting.pick(40, 10)
        shares, accepted, speeds = [], [], []
        for prompt in task.prompts:
            forwards = ours.call(
                "rounds", drafted=length, context=CONTEXT, count=count, sampled=sampled
            )
            seconds = forwards["target"] + length * forwards["draft"]
            stats = ours.call(
                "generate",
                prompt_ids=prompt,
                num_tokens=task.num_tokens,
                num_speculative_tokens=length,
                temperature=temperature,
            )[2]
            accepted.append(stats["mean_acceptance_length"])
            speeds.append(stats["tokens_per_second"])
            shares.append(speeds[-1] * seconds / accepted[-1])
        detail = (
            f"{length} drafted, {statistics.mean(accepted):.2f} a round, "
            f"{statistics.median(speeds):.0f} tokens/s, {spread(shares)}"
        )
        share = statistics.median(shares)
        yield Figure(GROUP, f"{what} {name}: share of the bound", share, SHARE, False, "", detail)


def _against(
    setting: Setting,
    ours: RemoteEngine,
    peers: Mapping[str, RemoteEngine],
    task: Task,
    what: str,
    goals: Mapping[str, float],
) -> Iterator[Figure]:
    length = best_length(ours, task, LENGTHS)
    for name, peer in peers.items():
        setting.progress(f"4: {what}, {name}")
        with peer:
            their_length = best_length(peer, task, PEER_LENGTHS)
            times: tuple[list[float], list[float]] = ([], [])
            pairs = ((ours, length), (peer, their_length))
            same = 0
            for prompt in task.prompts:
                outputs = []
                for (engine, drafted), seconds in zip(pairs, times, strict=True):
                    request = {"num_tokens": task.num_tokens, "num_speculative_tokens": drafted}
                    answer = engine.call("generate", prompt_ids=prompt, **request)
                    assert len(answer[0]) == task.num_tokens
                    outputs.append(answer[0])
                    seconds.append(answer[1])
                same += outputs[0] == outputs[1]
        ratio, around = paired_ratio(*times)
        rates = [task.num_tokens / statistics.median(seconds) for seconds in times]
        detail = (
            f"{rates[0]:.0f} and {rates[1]:.0f} tokens/s, {length} and {their_length} drafted, "
            f"{same} of {len(task.prompts)} outputs the same, {around}"
        )
        yield Figure(GROUP, f"{what} greedy: over {name}", ratio, goals[name], detail=detail)
