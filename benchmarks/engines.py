"""Engines in processes of their own, of which only the timed one runs; the others are stopped.

Idle threads of some engines spin for a while after each call; a stopped process takes no core from
the timed one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from forerun.errors import ConfigError

ROOT = Path(__file__).parents[1]


class RemoteEngine:
    """An engine behind two pipes.

    Args:
        kind, options: as `worker.load` takes them.
        python: the interpreter to run it with; None: this one.

    Raises:
        ConfigError: for an engine that cannot be loaded, with its own reason.
    """

    def __init__(self, kind: str, *, python: str | None = None, **options: Any) -> None:
        self.kind = kind
        # Another interpreter has not installed the worker.
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}
        self._process = subprocess.Popen(
            [python or sys.executable, "-m", "benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if "FORERUN_PEER_LOG" not in os.environ else None,
            text=True,
            env=environment,
        )
        try:
            self.call("load", kind=kind, options=options)
        except BaseException:
            self.close()
            raise

    def call(self, name: str, **arguments: Any) -> Any:
        """The engine's answer; it runs only during the call.

        Raises:
            ConfigError: if the engine refuses, or has died.
        """
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        self._signal(signal.SIGCONT)
        line = ""
        try:
            requests.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
            requests.flush()
            line = answers.readline()
        except BrokenPipeError:
            pass  # Reported below.
        if not line:
            raise ConfigError(
                f"{self.kind} ended in {name!r} with code {self._process.wait()}; "
                "set FORERUN_PEER_LOG=1 to see its output."
            )
        self._signal(signal.SIGSTOP)
        answer = json.loads(line)
        if "error" in answer:
            raise ConfigError(f"{self.kind}: {answer['error']}")
        return answer["value"]

    def peak_bytes(self) -> int:
        """The most memory that the process has had at once, as Linux counts it."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return 1024 * int(peak.split()[1])

    def close(self) -> None:
        """End the process."""
        self._signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> RemoteEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
