"""Replicas of `forerun serve` on Ray Serve: one killed in mid-stream, then all restarted under load.

python -m benchmarks.serve_replicas -m zoo

Needs `forerun[ray]`. Seeded streams go to two replicas. When half of them have begun, one replica is killed:
streams on it break, all others end as they do alone, and so do all that come afterwards. Then the application
is deployed anew while clients go on asking: every one of their streams ends as it does alone. Anything else
exits with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import psutil

from benchmarks.serve_load import TEXT, Body, events
from forerun.errors import EndpointError
from forerun.proof.outside.client import Endpoint
from forerun.server.ray_app import build

NAME, STREAMS, CLIENTS = "forerun", 16, 8


def body(number: int) -> Body:
    """A seeded request that fills its limit."""
    prompt = f"def f{number % STREAMS}(a, b):"
    made = {"prompt": prompt, "seed": number % STREAMS, "temperature": 0.8, "max_tokens": 150}
    return made | {"ignore_eos": True}


def replicas() -> dict[int, psutil.Process]:
    """Processes of the replicas on this machine, by id."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "".join(process.cmdline()[:1]).startswith(f"ray::ServeReplica:{NAME}:"):
                found[process.pid] = process
    return found


def wait_for(holds: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait until something holds.

    Raises:
        SystemExit: if it does not in this time.
    """
    end = monotonic() + seconds
    while not holds():
        if monotonic() > end:
            raise SystemExit(f"waited {seconds:g} seconds in vain.")
        sleep(0.2)


class Clients:
    """Clients of the application, which compare each stream with that of the request alone.

    Args:
        url: address of Ray's proxy.
    """

    def __init__(self, url: str) -> None:
        self.server = Endpoint(url, timeout=600.0)
        self.begun, self._counting = 0, threading.Lock()
        self._alone = [self._text(number) for number in range(STREAMS)]

    def ask(self, number: int) -> str:
        """The outcome of a stream: right, wrong or broken."""
        try:
            return "right" if self._text(number) == self._alone[number % STREAMS] else "wrong"
        except (EndpointError, OSError):
            return "broken"

    def _text(self, number: int) -> str:
        texts = list[str]()
        for chunk in events(self.server, TEXT, body(number)):
            if not texts:
                with self._counting:
                    self.begun += 1
            texts += [choice["text"] for choice in chunk["choices"]]
        return "".join(texts)


def kill_one(clients: Clients, pool: ThreadPoolExecutor) -> dict[str, Counter[str]]:
    """Outcomes of the streams that run while a replica is killed, and of those that come afterwards."""
    before = clients.begun
    running = [pool.submit(clients.ask, number) for number in range(STREAMS)]
    # Replicas run 4 streams each at once.
    wait_for(lambda: clients.begun >= before + CLIENTS)
    busiest = max(replicas().values(), key=lambda process: process.cpu_times().user)
    os.kill(busiest.pid, signal.SIGKILL)
    afterwards = pool.map(clients.ask, range(STREAMS))
    return {
        "killed": Counter(future.result() for future in running),
        "afterwards": Counter(afterwards),
    }


def restart(clients: Clients, pool: ThreadPoolExecutor, deploy: Callable[[], None]) -> Counter[str]:
    """Outcomes of the streams that come while the application is deployed anew."""
    done, old = threading.Event(), replicas()

    def go_on(number: int) -> Counter[str]:
        outcomes = Counter[str]()
        while not done.is_set():
            outcomes[clients.ask(number)] += 1
            number += CLIENTS
        return outcomes

    running = [pool.submit(go_on, number) for number in range(CLIENTS)]
    deploy()
    wait_for(lambda: not old.keys() & replicas().keys())
    done.set()
    return sum((future.result() for future in running), Counter[str]())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-m", "--model", default="zoo")
    parser.add_argument("--port", type=int, default=8123)
    given = parser.parse_args(arguments)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray import serve

    def deploy(**options: Any) -> None:
        deployment = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0.4}}
        own = {"model": given.model, "max_context": 1024, "deployment": deployment}
        serve.run(build(own | options), name=NAME, route_prefix="/")

    def both_run() -> bool:
        found = serve.status().applications[NAME].deployments[NAME]
        return dict(found.replica_states) == {"RUNNING": 2}

    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": given.port})
    try:
        deploy()
        clients = Clients(f"http://127.0.0.1:{given.port}")
        with ThreadPoolExecutor(STREAMS) as pool:
            found = kill_one(clients, pool)
            wait_for(both_run)
            # Another number of waiting requests makes another version.
            found["restart"] = restart(clients, pool, lambda: deploy(max_queue=300))
    finally:
        serve.shutdown()
        ray.shutdown()
    print(json.dumps(found | {"waits": clients.server.waits}))
    whole = all(
        outcomes.keys() == {"right"} for outcomes in (found["afterwards"], found["restart"])
    )
    return int(not whole or not found["killed"]["broken"] or bool(found["killed"]["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
