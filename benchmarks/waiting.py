"""How long streams wait while a long prompt arrives, and how much of it a second turn runs again.

python -m benchmarks.waiting

Eight streams decode with looked-up drafts; then a prompt of 4,000 tokens is added. Printed is how long
streams wait for their next tokens meanwhile, in the time of a median round before it (rounds differ: a
draft has none to four tokens) and in that of the round that ends the wait; and the reused tokens of a
second turn of that conversation. The weights are random, which does not change times.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from time import perf_counter

from benchmarks.shapes import build
from forerun.drafters.ngram import NgramDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams

STREAMS = 8


def measure(model: str, dtype: str, prompt_tokens: int, warm_up: int = 20) -> dict[str, float]:
    """Times of rounds of `STREAMS` streams, with and without a prompt in prefill."""
    target = build(model, dtype)
    config = SpeculativeConfig(num_speculative_tokens=4, policy="fixed")
    engine = Engine(
        target, NgramDrafter(1, 3), config, max_batch_size=STREAMS + 1, max_context=8000
    )
    source = random.Random(0)

    def prompt(count: int) -> list[int]:
        return [source.randrange(1000) for _ in range(count)]

    endless = SamplingParams(temperature=0.0, max_tokens=None)
    for _ in range(STREAMS):
        engine.add(prompt(30), endless)
    for _ in range(warm_up):
        engine.step()
    before = [_timed_step(engine)[0] for _ in range(warm_up)]
    text = prompt(prompt_tokens)
    added = perf_counter()
    long = engine.add(text, SamplingParams(temperature=0.0, max_tokens=4))
    during, own = [], []
    while True:
        prefill = engine.stats.prefill_seconds
        seconds, requests = _timed_step(engine)
        if long in requests:
            break
        during.append(seconds)
        own.append(seconds / (seconds - engine.stats.prefill_seconds + prefill))
    first_token = perf_counter() - added
    for _ in range(4):
        engine.step()
    first = engine.completion(long)
    turn = engine.add([*text, *first.token_ids, 5, 6, 7], SamplingParams(max_tokens=1))
    for _ in range(4):
        engine.step()
    second = engine.completion(turn)
    usual = statistics.median(before)
    return {
        "round_ms": 1000 * usual,
        "rounds_max": max(before) / usual,
        **_spread("waits", [seconds / usual for seconds in during]),
        **_spread("waits_in_own_rounds", own),
        "chunks": len(during),
        "first_token_s": first_token,
        "second_turn_tokens": second.stats.prompt_tokens,
        "second_turn_cached": second.stats.num_cached_tokens,
    }


def _spread(name: str, values: list[float]) -> dict[str, float]:
    return {
        f"{name}_median": statistics.median(values),
        f"{name}_p95": statistics.quantiles(values, n=20)[-1],
        f"{name}_max": max(values),
    }


def _timed_step(engine: Engine) -> tuple[float, set[int]]:
    started = perf_counter()
    events = engine.step()
    return perf_counter() - started, {event.request_id for event in events}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="llama-110m")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    options = parser.parse_args()
    result = measure(options.model, options.dtype, options.prompt_tokens)
    print(json.dumps({name: round(value, 3) for name, value in result.items()}, indent=1))


if __name__ == "__main__":
    main()
