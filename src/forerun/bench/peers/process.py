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
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

import forerun
from forerun.errors import ConfigError

PEERS_MAKER = "forerun.bench.peers:load_peer"
CALL_SECONDS = 600.0
"""Seconds that a call may take, loading and converting a model included, before the engine is ended."""
_LOG = "FORERUN_PEER_LOG"


class RemoteEngine:
    """An engine behind two pipes.

    Args:
        name: how messages call it.
        maker: what makes it there, as `module:function`.
        python: the interpreter to run it with; None: this one. Another one has forerun too, unless
            this forerun runs from its sources.
        paths: further folders of modules.
        limit: seconds that a call may take.
        options: as the maker takes them.

    Raises:
        ConfigError: for an engine that cannot be loaded, with its own reason.
    """

    def __init__(
        self,
        name: str,
        /,
        *,
        maker: str = PEERS_MAKER,
        python: str | None = None,
        paths: tuple[str, ...] = (),
        limit: float = CALL_SECONDS,
        **options: Any,
    ) -> None:
        self.name, self.limit = name, limit
        self._late = ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [python or sys.executable, "-m", "forerun.bench.peers.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if _LOG in os.environ else self._errors,
                text=True,
                env=_environment(paths),
                # What it starts ends with it.
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise ConfigError(f"{python} cannot be run: {error.strerror or error}.") from error
        try:
            self.call("load", maker=maker, options=options)
        except BaseException:
            self.close()
            raise

    def call(self, name: str, **arguments: Any) -> Any:
        """Answer of the engine, whose process runs only during the call.

        Raises:
            ConfigError: if the engine refuses, has died, or did not answer in time.
        """
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        self._signal(signal.SIGCONT)
        line = ""
        timer = Timer(self.limit, self._end_late, [name])
        timer.start()
        try:
            requests.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
            requests.flush()
            line = answers.readline()
        except BrokenPipeError:
            pass  # Reported below.
        finally:
            timer.cancel()
        if self._late:
            raise ConfigError(self._late)
        if not line:
            raise ConfigError(
                f"{self.name} ended in {name!r} with {_ending(self._process.wait())}{self._last_words()}; "
                f"set {_LOG}=1 to see all of its output."
            )
        self._signal(signal.SIGSTOP)
        answer = json.loads(line)
        if "error" in answer:
            raise ConfigError(f"{self.name}: {answer['error']}")
        return answer["value"]

    def peak_bytes(self) -> int:
        """The most memory that the process has had at once, as Linux counts it."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return 1024 * int(peak.split()[1])

    def close(self) -> None:
        """End the process."""
        self._kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # What a process that has died did not read is lost.
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        self._errors.close()

    def __enter__(self) -> RemoteEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last_words(self) -> str:
        """The last line that it has written to standard error."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f" ({lines[-1].strip()})" if lines else ""

    def _end_late(self, name: str) -> None:
        self._late = f"{self.name} did not answer {name!r} within {self.limit:g} s and was ended"
        self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)


def _ending(code: int) -> str:
    return f"code {code}" if code >= 0 else signal.Signals(-code).name


def _environment(paths: tuple[str, ...]) -> dict[str, str]:
    source = Path(forerun.__file__).parents[1]
    # Installed packages of this interpreter are not those of another.
    own = () if source.name in ("site-packages", "dist-packages") else (str(source),)
    path = os.pathsep.join(filter(None, [*own, *paths, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}
