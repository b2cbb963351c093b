"""Exact speculative decoding: a cheap drafter runs ahead, the model checks its tokens in one pass.

import forerun

engine = forerun.load("zoo")
for event in engine.stream("def fibonacci(n):", temperature=0):
    print(event.text, end="")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.core import Exactness, FinishReason, Hints, Origin, Stats
    from forerun.engine.config import SpeculativeConfig
    from forerun.engine.engine import Engine
    from forerun.engine.load import load
    from forerun.engine.requests import Completion, TokenEvent
    from forerun.engine.stream import Stream
    from forerun.errors import ForerunError
    from forerun.monitor import Monitor
    from forerun.params import SamplingParams
    from forerun.report.result import Result

__version__ = "0.1.0"

# Names are looked up when they are first used: `import forerun` loads neither torch nor transformers.
_HOMES = {
    "Completion": "forerun.engine.requests",
    "Engine": "forerun.engine.engine",
    "Exactness": "forerun.core",
    "FinishReason": "forerun.core",
    "ForerunError": "forerun.errors",
    "Hints": "forerun.core",
    "Monitor": "forerun.monitor",
    "Origin": "forerun.core",
    "SamplingParams": "forerun.params",
    "SpeculativeConfig": "forerun.engine.config",
    "Stats": "forerun.core",
    "Stream": "forerun.engine.stream",
    "TokenEvent": "forerun.engine.requests",
    "load": "forerun.engine.load",
}

__all__ = [
    "Completion",
    "Engine",
    "Exactness",
    "FinishReason",
    "ForerunError",
    "Hints",
    "Monitor",
    "Origin",
    "SamplingParams",
    "SpeculativeConfig",
    "Stats",
    "Stream",
    "TokenEvent",
    "__version__",
    "load",
    "run",
]


def run(command: str, **options: Any) -> Result:
    """The result of a command, such as `run("bench", model="smollm2")`; its options are those of the flags.

    Raises:
        UnknownNameError: for a command that does not exist or gives no result, or an unknown option.
        ForerunError: as the command does.
    """
    result: Result = importlib.import_module("forerun.cli.commands").call(command, options)
    return result


def __getattr__(name: str) -> Any:
    if name == "hf":
        return importlib.import_module("forerun.hf")
    if name not in _HOMES:
        raise AttributeError(f"module 'forerun' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
