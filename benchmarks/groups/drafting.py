"""Group 3: drafting is nearly free, and so is what the host does around it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.groups.report import Figure, Setting, spread
from benchmarks.rounds import alone, measure_rounds
from benchmarks.shapes import build
from forerun.bench.forwards import use_threads
from forerun.core import Drawing

GROUP = 3
DRAFT, TARGET = "draft-15m", "llama-350m"
CONTEXT = 128
CHAIN, DRAFTED = 128, 4
ALONE_MS, IN_ROUNDS_MS = 0.2, 0.35
# Setting and vocabulary of the rows of host_time, and microseconds at most.
HOST = {("greedy", 4096): 60, ("top-p 0.9", 4096): 150, ("top-p 0.9", 151_936): 1000}


def run(setting: Setting) -> Iterator[Figure]:
    """Figures of the draft alone, inside rounds, and of the host."""
    use_threads(setting.threads)
    setting.progress(f"3: {DRAFT} int8")
    draft = build(DRAFT, "int8")
    times = [1e3 * seconds for seconds in alone(draft, CHAIN, CONTEXT, setting.pick(30, 10))]
    yield Figure(
        GROUP,
        f"{DRAFT} int8 alone, a token",
        statistics.median(times),
        ALONE_MS,
        at_most=True,
        unit="ms",
        detail=f"{draft.weight_bytes / 1e6:.1f} MB, chains of {CHAIN}, best {min(times):.3f} ms, "
        f"{spread(times)}",
    )
    target = build(TARGET, "int8")
    count = setting.pick(60, 20)
    medians = measure_rounds(target, draft, DRAFTED, CONTEXT, count, Drawing.GREEDY)
    yield Figure(
        GROUP,
        f"{DRAFT} int8 inside rounds, a token",
        1e3 * medians["draft"],
        IN_ROUNDS_MS,
        at_most=True,
        unit="ms",
        detail=f"chains of {DRAFTED} in turns with {TARGET} int8, {1e3 * medians['target']:.2f} ms",
    )
    yield from host_figures(setting)


def host_figures(setting: Setting) -> Iterator[Figure]:
    """Figures of rounds without forwards, measured in another process."""
    setting.progress("3: host time a round")
    program = [sys.executable, "-m", "benchmarks.host_time", "--json"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode:
        setting.note(f"without host times: {done.stderr.strip().splitlines()[-1:]}")
        return
    for row in json.loads(done.stdout):
        goal = HOST.get((row["setting"], row["vocabulary"]))
        yield Figure(
            GROUP,
            f"host time a round, {row['setting']}, vocabulary {row['vocabulary']}",
            row["microseconds"],
            goal,
            at_most=True,
            unit="us",
            detail=f"{row['drawing']:.0f} us of it drawing drafts",
        )
