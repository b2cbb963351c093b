"""Forwards at long contexts beside llama.cpp's flash attention, and beside what memory allows.

python -m benchmarks.deep_context --peers-python PYTHON

Random weights and a filled cache: how long a forward takes does not depend on what they are. The engines
take turns, each in a process of its own that rests meanwhile; the first forward of a turn is not counted. A
share is the rate at which a forward of ours reads weights, keys and values, over that of a read of as many
bytes right before it. llama.cpp keeps its cache in f16, ours has 2 bytes a number too (bf16), or fewer with
--kv-dtype.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import write_checkpoint
from benchmarks.groups.report import local, paired_ratio
from forerun.bench.forwards import use_threads
from forerun.bench.peers.process import RemoteEngine
from forerun.errors import ForerunError
from forerun.files import write_text

TOKENS = (1, 8, 16)


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each context and number of tokens."""
    directory = str(write_checkpoint(options.model, options.work / options.model))
    threads = use_threads(options.threads)
    ours = local(
        "forerun",
        "benchmarks.ours:Ours",
        threads=threads,
        model=directory,
        precision=options.precision,
        kv_dtype=options.kv_dtype,
    )
    peer = _peer(options, directory, threads)
    for context in options.contexts:
        yield from _rows_at(context, ours, peer, options.turns)


def _peer(options: argparse.Namespace, directory: str, threads: int) -> RemoteEngine | None:
    if options.peers_python is None:
        return None
    return RemoteEngine(
        "llama.cpp",
        name="llama.cpp",
        python=options.peers_python,
        checkpoint_dir=directory,
        precision=options.precision,
        threads=threads,
        cache_dir=str(options.work / "peers"),
        max_context=max(options.contexts) + max(TOKENS),
    )


def _rows_at(
    context: int, ours: RemoteEngine, peer: RemoteEngine | None, turns: int
) -> Iterator[dict[str, Any]]:
    mine: dict[int, list[float]] = {n: [] for n in TOKENS}
    theirs: dict[int, list[float]] = {n: [] for n in TOKENS}
    shares = []
    for turn in range(turns + 1):
        share = ours.call("share_of_bandwidth", context=context)
        for n in TOKENS:
            for engine, seconds in ((ours, mine), (peer, theirs)):
                if engine is None:
                    continue
                engine.call("forward_seconds", n=n, context=context)
                taken = engine.call("forward_seconds", n=n, context=context)
                if turn:
                    seconds[n].append(taken)
        if turn:
            shares.append(share["share"])
    for n in TOKENS:
        row: dict[str, Any] = {
            "context": context,
            "tokens": n,
            "milliseconds": 1e3 * statistics.median(mine[n]),
            "over_one": statistics.median(a / b for a, b in zip(mine[n], mine[1], strict=True)),
        }
        if n == 1:
            row["share_of_bandwidth"] = statistics.median(shares)
        if peer is not None:
            row["peer_milliseconds"] = 1e3 * statistics.median(theirs[n])
            row["faster"], row["spread"] = paired_ratio(mine[n], theirs[n])
        yield row


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    text = (
        f"context {row['context']}, {row['tokens']} tokens: {row['milliseconds']:.1f} ms, "
        f"{row['over_one']:.2f} x one"
    )
    if "share_of_bandwidth" in row:
        text += f", {row['share_of_bandwidth']:.0%} of the memory's rate"
    if "faster" in row:
        text += (
            f"; llama.cpp {row['peer_milliseconds']:.1f} ms: {row['faster']:.2f} x, {row['spread']}"
        )
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deep_context")
    parser.add_argument("--model", default="llama-350m", help="a shape of forerun roofline")
    parser.add_argument("--precision", default="bf16", help="of the weights")
    parser.add_argument("--kv-dtype", default="auto", help="of our cache")
    parser.add_argument("--contexts", type=int, nargs="+", default=[4096, 16384, 32768])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--peers-python", help="the interpreter that has forerun[peers]")
    parser.add_argument("--work", type=Path, default=Path("build/bench-cpu"))
    parser.add_argument("--json", type=Path, help="file for the rows")
    options = parser.parse_args(arguments)
    options.work = options.work.resolve()
    measured: list[dict[str, Any]] = []
    try:
        for row in rows(options):
            print(line(row), flush=True)
            measured.append(row)
    except ForerunError as error:
        print(f"forerun: error: {error}", file=sys.stderr)
        return 2
    if options.json:
        write_text(options.json, json.dumps(measured, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
