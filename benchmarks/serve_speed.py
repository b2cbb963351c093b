"""Speed of `forerun serve` at several streams, beside the engine without it, and beside llama-server.

python -m benchmarks.serve_speed -m MODEL.gguf --ways engine forerun plain llama --llama-server PATH

Each turn asks every side the same questions, one a stream, all at once, for `--max-tokens` greedy tokens.
Tokens a second are of all streams, from the first question to the last token: median of the turns, least and
largest. Times are of all turns: to the first token, and between two tokens, where those that come in one
chunk wait no time and a chunk of llama-server counts as one token, if it has text; TPOT is a stream's time
after its first token by the tokens after it. `of engine` is the median of the turns' ratios to the engine
alone, which has all prompts at once where those of a server arrive one by one. The clients are one thread
that parses nothing before the end of a turn; their CPU time, and that of the server's event loop, are shown
a token, for both take it from the engine where they run on its cores.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.serve_load import TEXT, serving
from forerun.bench.request import built_in
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.proof.outside.engines import served
from forerun.report.markdown import heading, line

OPTIONS = {"forerun": (), "plain": ("--no-speculative",), "pacing": ("--stream-pacing",)}
"""Ways that are `forerun serve`, with its options."""


@dataclass
class Times:
    """Times of one turn of one side.

    Args:
        tokens: of all streams.
        seconds: from the first question to the last token.
        first, between, each: seconds to the first token, between two, and a token, of each stream.
        clients, loop: CPU seconds of the clients, and of the server's event loop.
    """

    tokens: int = 0
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    each: list[float] = field(default_factory=list)
    clients: float = 0.0
    loop: float = 0.0

    def add(
        self, started: float, arrivals: Sequence[tuple[float, int]], tokens: int | None = None
    ) -> None:
        """Count a stream, given when its chunks came and how many tokens each held.

        Args:
            tokens: of the stream, where some may have come without text; left out, those of the chunks.
        """
        times = [time for time, count in arrivals for _ in range(count)]
        count = len(times) if tokens is None else tokens
        self.tokens += count
        if not times:
            return
        self.first.append(times[0] - started)
        self.between += [after - before for before, after in pairwise(times)]
        self.each.append((times[-1] - times[0]) / max(1, count - 1))


Side = Callable[[Sequence[str]], Times]


def responses(url: str, bodies: Sequence[dict[str, Any]]) -> list[list[tuple[float, bytes]]]:
    """Lines of the responses to requests sent at once, each with the time at which its end came."""
    address = urlsplit(url)
    came: dict[socket.socket, list[tuple[float, bytes]]] = {}
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        for body in bodies:
            connection = socket.create_connection((address.hostname, address.port), timeout=600.0)
            came[stack.enter_context(connection)] = []
            selector.register(connection, selectors.EVENT_READ)
            content = json.dumps(body).encode()
            head = (
                f"POST {TEXT} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            connection.sendall(head.encode() + content)
        while selector.get_map():
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                if received := key.fileobj.recv(1 << 16):
                    came[key.fileobj].append((perf_counter(), received))
                else:
                    selector.unregister(key.fileobj)
    return [list(_lines(chunks)) for chunks in came.values()]


def _lines(chunks: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    left = b""
    for time, content in chunks:
        *whole, left = (left + content).split(b"\n")
        yield from ((time, one) for one in whole)
    if left:
        yield chunks[-1][0], left


def _summary(came: Sequence[tuple[float, bytes]]) -> str:
    """The status and the body of a response in one line."""
    lines = [text.decode(errors="replace").strip() for _, text in came]
    body = lines[lines.index("") :] if "" in lines else []
    return " ".join([*lines[:1], *filter(None, body)])[:400] or "nothing"


def of_server(url: str, limits: dict[str, Any], process: int | None = None) -> Side:
    """A side that asks a server by HTTP.

    Args:
        url: its address.
        limits: fields of all requests.
        process: of `forerun serve`, whose chunks hold the ids of their tokens.

    Raises:
        SystemExit: for a response that fails or has no token, with what the server answered.
    """
    usage = {"stream": True, "stream_options": {"include_usage": True}}

    def run(prompts: Sequence[str]) -> Times:
        times, started = Times(), perf_counter()
        clients, loop = process_time(), _loop_seconds(process)
        found = responses(url, [{"prompt": prompt, **usage, **limits} for prompt in prompts])
        times.seconds = perf_counter() - started
        times.clients, times.loop = process_time() - clients, _loop_seconds(process) - loop
        for came in found:
            tokens, arrivals = 0, list[tuple[float, int]]()
            for time, text in came:
                data = text.removeprefix(b"data: ").strip()
                if data == text.strip() or data == b"[DONE]":
                    continue
                chunk = json.loads(data)
                tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
                if "error" in chunk:
                    raise SystemExit(f"{url} failed in a stream: {data.decode()}")
                for choice in chunk["choices"]:
                    counted = bool(choice["text"]) if process is None else len(choice["token_ids"])
                    arrivals.append((time, int(counted)))
            if not tokens and not any(count for _, count in arrivals):
                raise SystemExit(f"{url} brought no token; it answered: {_summary(came)}")
            times.add(started, arrivals, tokens)
        return times

    return run


def _loop_seconds(process: int | None) -> float:
    """CPU seconds of a process's main thread, where the event loop runs; 0 where Linux does not tell."""
    path = Path(f"/proc/{process}/task/{process}/schedstat")
    return int(path.read_text().split()[0]) / 1e9 if process and path.exists() else 0.0


def of_engine(engine: Engine, limits: dict[str, Any]) -> Side:
    """A side that steps an engine in this process."""

    def run(prompts: Sequence[str]) -> Times:
        times, started = Times(), perf_counter()
        arrivals: dict[int, list[tuple[float, int]]] = {}
        for prompt in prompts:
            arrivals[engine.add(prompt, limits)] = []
        while engine.has_work:
            for event in engine.step():
                arrivals[event.request_id].append((perf_counter(), 1))
        times.seconds = perf_counter() - started
        for number, came in arrivals.items():
            engine.completion(number)
            times.add(started, came)
        return times

    return run


def sides(given: argparse.Namespace, stack: ExitStack) -> dict[str, Side]:
    """All sides, started and loaded."""
    streams, found = max(given.streams), dict[str, Side]()
    limits = {"max_tokens": given.max_tokens, "temperature": 0.0, "ignore_eos": True}
    size = ("--max-batch-size", str(streams), "--max-context", str(given.max_context))
    for way in given.ways:
        if way == "engine":
            engine = load(given.model, max_batch_size=streams, max_context=given.max_context)
            found[way] = of_engine(stack.enter_context(engine), limits)
        elif way == "llama":
            command = [str(given.llama_server), "-m", given.model, "-np", str(streams)]
            command += ["-c", str(streams * given.max_context), *given.llama_options.split()]
            libraries = {**os.environ, "LD_LIBRARY_PATH": str(given.llama_server.parent)}
            started = served(command, libraries)
            found[way] = of_server(stack.enter_context(started), limits | {"cache_prompt": False})
        else:
            options = (*OPTIONS[way], *given.options.split())
            server = stack.enter_context(serving(given.model, *size, *options))
            asked = limits | {"return_token_ids": True}
            found[way] = of_server(server.url, asked, server.process.pid)
    return found


def measure(given: argparse.Namespace) -> Iterator[tuple[int, str, list[Times], list[Times]]]:
    """Times of all turns by streams and way, and those of the engine."""
    texts = [question.opening for question in built_in()]
    with ExitStack() as stack:
        ways = sides(given, stack)
        for streams in given.streams:
            times: dict[str, list[Times]] = {way: [] for way in ways}
            # The first turn warms up.
            for turn in range(given.turns + 1):
                # Other questions every turn, so that no side finds their prompts in its cache.
                prompts = [texts[(turn * streams + one) % len(texts)] for one in range(streams)]
                for way, run in ways.items():
                    done = run([f"{turn}. {text}" for text in prompts])
                    if turn:
                        times[way].append(done)
            for way, found in times.items():
                yield streams, way, found, times.get("engine", [])


def row(streams: int, way: str, times: Sequence[Times], engine: Sequence[Times]) -> list[str]:
    """A row of the table."""
    speeds = [one.tokens / one.seconds for one in times]
    ratios = [
        speed * alone.seconds / alone.tokens for speed, alone in zip(speeds, engine, strict=False)
    ]

    def shown(name: str, *shares: float) -> list[str]:
        seconds = [second for one in times for second in getattr(one, name)]
        if not seconds:
            # One token a stream has no time between two.
            return ["–"] * len(shares)
        return [f"{1000 * float(np.quantile(seconds, share)):.1f}" for share in shares]

    cpu = [one.loop for one in times], [one.clients for one in times]
    return [
        *(str(streams), way),
        f"{statistics.median(speeds):.1f} ({min(speeds):.1f} to {max(speeds):.1f})",
        f"{statistics.median(ratios):.3f}" if ratios else "",
        *shown("first", 0.5, 0.99),
        *shown("between", 0.5, 0.99),
        *shown("each", 0.5),
        *(f"{1e6 * sum(parts) / sum(one.tokens for one in times):.0f}" for parts in cpu),
    ]


COLUMNS = (
    *("streams", "way", "tokens/s", "of engine", "first token p50 ms", "p99"),
    *("between tokens p50 ms", "p99", "TPOT p50 ms", "event loop µs/token", "clients µs/token"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-m", "--model", default="smollm2")
    ways = ("engine", "llama", *OPTIONS)
    parser.add_argument("--ways", nargs="+", default=["engine", "forerun", "plain"], choices=ways)
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--max-context", type=int, default=1024)
    parser.add_argument("--options", default="", help="of forerun serve")
    parser.add_argument("--llama-server", type=Path, default=Path("llama-server"))
    parser.add_argument("--llama-options", default="", help="of llama-server")
    given = parser.parse_args(arguments)
    print(heading(COLUMNS))
    for found in measure(given):
        print(line(row(*found)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
