"""One engine in a process of its own, called line by line by `process.py`.

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
from importlib import import_module
from typing import Any, TextIO

from forerun.errors import ForerunError

_PR_SET_PDEATHSIG = 1


def load(maker: str, options: dict[str, Any]) -> Any:
    """Result of a function, named as `module:function`, for the options."""
    module, _, name = maker.partition(":")
    return getattr(import_module(module), name)(**options)


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
