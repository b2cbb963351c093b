"""What policy `auto` measures and learns, kept on disk between runs.

A file belongs to a target, a drafter, a device, a precision, a number of threads and a version of forerun.
What is missing, broken or of another kind is measured anew; a disk that takes nothing is named once in the
log. FORERUN_CACHE names the folder.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import weakref
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from forerun import __version__
from forerun.contracts import CausalLM, Drafter
from forerun.core import CostTable
from forerun.errors import ConfigError, ForerunError
from forerun.files import CACHE_VARIABLE, MOST_BYTES, parse_json, write_text
from forerun.policies.calibration import calibrate
from forerun.processor import cpu_name

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

# Of the files' form.
FORM = 1
# What was learned is written no more often than this, and when the program ends.
SAVE_SECONDS = 60.0


class Learner(Protocol):
    """A policy whose `learned` is ready for JSON and is what `restore` takes."""

    @property
    def learned(self) -> dict[str, Any]: ...

    def restore(self, learned: Any) -> None: ...


class Memory:
    """The costs of a target, and what was learned with a drafter.

    Args:
        path: of the file; None keeps nothing.
        table: of forwards of the target.
        learned: what the file holds of the rest.
    """

    def __init__(
        self, path: Path | None, table: CostTable, learned: Mapping[str, Any] | None = None
    ) -> None:
        self._path, self.table, self._learned = path, table, learned
        self._saved, self._changed = monotonic(), False
        self._learner: weakref.ref[Learner] | None = None

    def hand_over(self, learner: Learner) -> None:
        """Hand a policy what earlier ones have learned, and keep from now on what it learns."""
        if self._learned is not None:
            try:
                learner.restore(self._learned)
            except (AttributeError, KeyError, TypeError, ValueError):
                logger.warning("%s holds something else; it is learned anew", self._path)
        self._learner = weakref.ref(learner)
        atexit.register(_save, weakref.ref(self))

    def note(self) -> None:
        """Note that there is something new to keep."""
        self._changed = True
        if monotonic() - self._saved > SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write what is known, if anything is new."""
        learner = None if self._learner is None else self._learner()
        if self._path is None or not self._changed or learner is None:
            return
        self._saved, self._changed = monotonic(), False
        content = {"form": FORM, "rows": self.table.rows, "learned": learner.learned}
        try:
            write_text(self._path, json.dumps(content))
        except OSError as problem:
            logger.warning("what was measured cannot be kept in %s (%s)", self._path, problem)
            self._path = None


def recall(target: CausalLM, drafter: Drafter, rows: int) -> Memory:
    """What is known of a target and a drafter; forwards are timed where it is nothing."""
    path = _folder() / f"{_key(target, drafter, rows)}.json"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError("too long")
        content = parse_json(path.read_text(encoding="utf-8"), str(path), ConfigError)
        table = CostTable.from_rows(tuple(row) for row in content["rows"])
        return Memory(path, table, content["learned"])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, ForerunError) as problem:
        logger.warning("%s cannot be used (%s); costs are measured anew", path, problem)
    memory = Memory(path, calibrate(target, rows))
    memory._changed = True
    return memory


def _save(memory: weakref.ref[Memory]) -> None:
    known = memory()
    if known is not None:
        known.save()


def _folder() -> Path:
    asked = os.environ.get(CACHE_VARIABLE)
    if asked:
        return Path(asked) / "costs"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forerun" / "costs"


def _key(target: CausalLM, drafter: Drafter, rows: int) -> str:
    """A name for all that costs depend on."""
    import torch

    from forerun.models.cpu.threads import threads_in_use

    gpu = target.device.type == "cuda"
    processor = torch.cuda.get_device_name(target.device) if gpu else cpu_name()

    parts = (
        *(__version__, FORM, target.name, target.precision, str(target.dtype), target.num_layers),
        getattr(target, "kv_dtype", "auto"),
        *(target.hidden_size, target.vocab_size, rows),
        *(drafter.name, repr(drafter), drafter.origin, *map(repr, drafter.members)),
        *(processor, threads_in_use(), str(target.device)),
    )
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
    return f"{''.join(c if c.isalnum() else '-' for c in target.name)[-40:]}-{digest}"
