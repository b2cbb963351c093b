"""One engine in a process of its own, called line by line by `engines.py`.

Each line of standard input is {"call": NAME, "arguments": {...}}, each line of standard output
{"value": ...} or {"error": TEXT}. The first call is `load`. What the engine itself prints goes to
standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any, TextIO

from forerun.errors import ForerunError

_PR_SET_PDEATHSIG = 1

CALLS = (
    "describe",
    "draft_alone",
    "forward_seconds",
    "generate",
    "matrix_product",
    "prefill_rate",
    "rounds",
    "share_of_bandwidth",
)


def load(kind: str, options: dict[str, Any]) -> Any:
    """The engine: `forerun`, `matrices`, or a peer by its name."""
    if kind == "forerun":
        from benchmarks.ours import Ours

        return Ours(**options)
    if kind == "matrices":
        from benchmarks.matrices import Matrices

        return Matrices(**options)
    from benchmarks.peers import load_peer

    return load_peer(kind, **options)


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer until the input ends."""
    engine: Any = None
    for line in requests:
        request = json.loads(line)
        name, arguments = request["call"], request["arguments"]
        try:
            if name == "load":
                engine = load(**arguments)
                value = None
            else:
                assert name in CALLS, name
                value = _call(engine, name, arguments)
            answer = {"value": value}
        except ForerunError as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _call(engine: Any, name: str, arguments: dict[str, Any]) -> Any:
    if name == "describe" and not hasattr(engine, "describe"):
        return {"name": engine.name, "version": engine.version, **engine.settings}
    return getattr(engine, name)(**arguments)


def _end_with_parent() -> None:
    """Have Linux end this process with its parent: a stopped process would not see its input end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    _end_with_parent()
    # Engines may print anything: the protocol keeps the real standard output for itself.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
