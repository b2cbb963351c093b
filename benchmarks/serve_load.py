"""`forerun serve` under mixed load: every answer is that of its request alone, and none is lost.

python -m benchmarks.serve_load -m zoo --requests 10000

Requests of all kinds (chat and completions, whole and streamed, with seeds, stop strings, schemas, tools,
several answers; clients that leave, bodies that are wrong) come from so many clients at once. Each seeded
answer is compared with that of the request alone, without speculation, on the same server. Printed are the
answers that differ, the outcomes by kind, the server's memory at half of the requests and at their end, and
the rounds after which a short prompt beside one of `--long` tokens gets its first token. Anything wrong exits
with 1. Speed is measured by `benchmarks.serve_speed`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import sleep
from typing import Any
from urllib.request import urlopen

from forerun.bench.request import built_in
from forerun.errors import EndpointError
from forerun.proof.outside.client import Endpoint, RefusedError

Body = dict[str, Any]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["a", "bc"]}, "count": {"type": "integer", "maximum": 99}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
WRONG: Sequence[tuple[str, Body]] = (
    (TEXT, {"prompt": "a", "temprature": 1}),
    (TEXT, {"prompt": [2**30]}),
    (TEXT, {"prompt": "a", "model": "../../etc/passwd"}),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "n": 0}),
    (TEXT, {"prompt": "a", "grammar": "no grammar"}),
)
"""Requests that must be refused with 400 or 404."""


@dataclass(frozen=True)
class Serving:
    """A server that runs as a process of its own."""

    url: str
    process: subprocess.Popen[str]

    @property
    def memory(self) -> float:
        """Resident MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s*(\d+)", status)
        assert found is not None
        return int(found[1]) / 1024


@contextmanager
def serving(model: str, *options: str) -> Iterator[Serving]:
    """`forerun serve` on a free port, once its model is loaded."""
    command = [sys.executable, "-m", "forerun", "serve", "-m", model, "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if "ready:" in line:
            break
    address = re.search(r"http://[^\s/]+", said)
    if process.poll() is not None or address is None:
        raise SystemExit(f"forerun serve did not start: {said}")
    threading.Thread(target=process.stderr.read, daemon=True).start()
    try:
        yield Serving(address[0], process)
    finally:
        process.terminate()
        process.wait()


def bodies(model: Body, variety: int) -> list[tuple[str, Body]]:
    """So many different requests, all seeded."""
    source, texts = random.Random(0), [question.opening for question in built_in()]
    room, able = model["max_model_len"], model["capabilities"]
    made = []
    for seed in range(variety):
        # A token has at least a character.
        text = " ".join(source.sample(texts, 3))[: source.choice((20, 200, room // 2))]
        body: Body = {"seed": seed, "temperature": source.choice((0.0, 0.7, 1.3))}
        body["max_tokens"] = source.choice((1, 8, 40, 100))
        body |= source.choice(
            ({}, {}, {"stop": ["e", ".\n"]}, {"n": 2}, {"top_p": 0.8, "min_p": 0.05})
        )
        forms: list[Body] = [{}, {}, {"frequency_penalty": 0.5}]
        forms.append(
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
        )
        path = source.choice((CHAT, TEXT) if able["chat"] else (TEXT,))
        if path == CHAT:
            body["messages"] = [{"role": "user", "content": text}]
            if able["tools"]:
                forms.append({"tools": [TOOL], "tool_choice": "required"})
        else:
            body["prompt"] = text
        made.append((path, body | source.choice(forms)))
    return made


def whole(server: Endpoint, path: str, body: Body) -> list[list[str]]:
    """Text, arguments of calls and end of each choice."""
    found = []
    for choice in server.fetch(path, body)["choices"]:
        message = choice.get("message", {})
        text = message.get("content") or choice.get("text") or ""
        calls = "".join(one["function"]["arguments"] for one in message.get("tool_calls", ()))
        found.append([text, calls, choice["finish_reason"]])
    return found


def events(server: Endpoint, path: str, body: Body) -> Generator[Body]:
    """Chunks of a stream.

    Raises:
        EndpointError: if it ends early, or by an error.
    """
    for line in server.lines(path, body | {"stream": True}):
        data = line.removeprefix("data: ").strip()
        if data == "[DONE]":
            return
        if data:
            chunk: Body = json.loads(data)
            if "error" in chunk:
                raise EndpointError(f"a stream ended by {chunk['error']}")
            yield chunk
    raise EndpointError("a stream ended without [DONE]")


def streamed(server: Endpoint, path: str, body: Body) -> list[list[str]]:
    """The same of a stream."""
    found = [["", "", ""] for _ in range(body.get("n", 1))]
    for chunk in events(server, path, body):
        for choice in chunk["choices"]:
            own, delta = found[choice["index"]], choice.get("delta", {})
            own[0] += delta.get("content") or choice.get("text") or ""
            calls = delta.get("tool_calls", ())
            own[1] += "".join(one["function"]["arguments"] for one in calls)
            own[2] = choice["finish_reason"] or own[2]
    return found


@dataclass
class Load:
    """Mixed requests to one server.

    Args:
        server: the server.
        work: different requests.
        expected: their answers alone.
    """

    server: Endpoint
    work: Sequence[tuple[str, Body]]
    expected: Sequence[list[list[str]]]

    def __call__(self, number: int) -> str:
        """The outcome of a request."""
        source = random.Random(number)
        place = source.randrange(len(self.work))
        path, body = self.work[place]
        kind = source.choice(("whole", "streamed", "streamed", "left", "refused"))
        try:
            match kind:
                case "whole":
                    right = whole(self.server, path, body) == self.expected[place]
                case "streamed":
                    right = streamed(self.server, path, body) == self.expected[place]
                case "left":
                    right = self._leave(path, body, source.randrange(6))
                case _:
                    right = self._refused(*source.choice(WRONG))
        except (EndpointError, OSError) as error:
            return f"{kind}: lost ({error})"
        return kind if right else f"{kind}: wrong ({place})"

    def _leave(self, path: str, body: Body, after: int) -> bool:
        with closing(events(self.server, path, body)) as chunks:
            return len(list(islice(chunks, after))) <= after

    def _refused(self, path: str, body: Body) -> bool:
        try:
            self.server.fetch(path, body)
        except RefusedError as error:
            return error.status in (400, 404)
        return False


def first_token_rounds(server: Endpoint, long: int) -> int:
    """Rounds of another stream until a short prompt beside a long one has its first token."""
    rounds = threading.Event(), [0]
    endless = {"prompt": "Once", "max_tokens": long, "ignore_eos": True, "temperature": 0.0}
    endless["speculative"] = False
    left = threading.Event()

    def watch() -> None:
        with closing(events(server, TEXT, endless)) as chunks:
            for _ in chunks:
                rounds[1][0] += 1
                rounds[0].set()
                if left.is_set():
                    return

    def ask(prompt: str | list[int]) -> None:
        next(events(server, TEXT, {"prompt": prompt, "max_tokens": 1, "temperature": 0.0}), None)

    watching = threading.Thread(target=watch)
    watching.start()
    rounds[0].wait()
    token_ids = [random.Random(long).randrange(300, 1000) for _ in range(long)]
    other = threading.Thread(target=ask, args=[token_ids])
    other.start()
    before = rounds[1][0]
    while rounds[1][0] < before + 2:
        sleep(0.001)
    before = rounds[1][0]
    ask("The sky")
    found = rounds[1][0] - before
    left.set()
    other.join()
    watching.join()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-m", "--model", default="zoo")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--variety", type=int, default=200, help="different requests")
    parser.add_argument("--long", type=int, default=4000, help="tokens of the long prompt")
    parser.add_argument("options", nargs="*", help="further options of forerun serve, after --")
    given = parser.parse_args(arguments)
    context = 1024 if given.model == "zoo" else given.long + 512
    with serving(given.model, "--max-context", str(context), *given.options) as found:
        server = Endpoint(found.url, timeout=600.0)
        [model] = server.fetch("/v1/models")["data"]
        work = bodies(model, given.variety)
        alone = [whole(server, path, body | {"speculative": False}) for path, body in work]
        load, outcomes, memory = Load(server, work, alone), Counter[str](), list[float]()
        with ThreadPoolExecutor(given.at_once) as pool:
            for count, outcome in enumerate(pool.map(load, range(given.requests)), start=1):
                outcomes[outcome] += 1
                if count in (given.requests // 2, given.requests):
                    memory.append(found.memory)
        wrong = sum(count for name, count in outcomes.items() if ":" in name)
        left = _left(server)
        print(json.dumps({"outcomes": dict(outcomes), "wrong": wrong, "left": left}, indent=1))
        print(
            f"resident MiB at half: {memory[0]:.1f}, at the end: {memory[-1]:.1f}; waits {server.waits}"
        )
        if model["max_model_len"] > given.long:
            print(f"rounds to the first token: {first_token_rounds(server, given.long)}")
    return int(bool(wrong or left))


def _left(server: Endpoint) -> float:
    """Requests that still run or wait a while after all clients have gone."""
    for _ in range(100):
        with urlopen(f"{server.url}/metrics") as response:
            text = response.read().decode()
        counts = re.findall(r"num_requests_(?:running|waiting) ([\d.]+)\n", text)
        if not any(map(float, counts)):
            return 0.0
        sleep(0.05)
    return sum(map(float, counts))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
