"""What policy `auto` measures and learns, kept on disk between runs.

A file belongs to a target, a drafter, a device, a precision, a number of threads and a version of forerun.
What is missing, broken or of another kind is measured anew; a disk that takes nothing is named once in the
log. FORERUN_CACHE names the folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from forerun import __version__
from forerun.contracts import CausalLM, Drafter, Rehearse
from forerun.core import CostTable, RoundTimes
from forerun.errors import ConfigError, ForerunError
from forerun.files import CACHE_VARIABLE, MOST_BYTES, parse_json, write_text
from forerun.policies.beliefs import Beliefs
from forerun.policies.calibration import Calibrated, calibrate
from forerun.policies.costs import LiveCosts
from forerun.policies.texts import Member
from forerun.processor import cpu_name

logger = logging.getLogger(__name__)

# Of the files' form.
FORM = 2
# What was learned is written no more often than this, and when the policy or the program ends.
SAVE_SECONDS = 30.0
# Tokens of rehearsed drafts, by round: the first ones warm up. Of a known target fewer are enough.
WARM_UP, TIMED, CHECKED = (0, 4, 4), (0, 4, 1, 0, 4, 1, 0, 4, 1), (0, 0, 0)
# Rounds of more seconds than this are rehearsed no more than it takes to warm up.
SLOW = 0.25
# A target that is faster or slower than its file says by this factor is measured anew.
OTHER_LOAD = 1.5


class Memory:
    """The costs of a target, and what was learned with a drafter.

    Args:
        path: of the file; None keeps nothing.
        measured: forwards of the target.
        learned: what the file holds of the rest; None where there is no file.
        is_new: whether the forwards were timed just now.
    """

    def __init__(
        self, path: Path | None, measured: Calibrated, learned: Any = None, is_new: bool = False
    ) -> None:
        self._path, self._measured, self._learned = path, measured, learned
        self._saved, self._changed = monotonic(), is_new
        self._beliefs: Beliefs | None = None

    @property
    def table(self) -> CostTable:
        """Forwards of the target."""
        return self._measured.table

    def hand_over(self, beliefs: Beliefs) -> None:
        """Hand over what earlier engines have learned, and keep from now on what is learned."""
        self._beliefs = beliefs
        if self._learned is not None:
            try:
                beliefs.restore(self._learned)
            except (AttributeError, KeyError, TypeError, ValueError):
                logger.warning("%s holds something else; it is learned anew", self._path)
                self._learned = None

    def check(self, beliefs: Beliefs, run: Rehearse) -> None:
        """Rehearse rounds: drafts are warm then and, where no file knows them, timed; plain rounds say how
        fast the machine is now."""
        costs, times = beliefs.costs, list[RoundTimes]()
        making = [member for member in beliefs.members if _makes_tokens(member.drafter)]
        place = None if len(beliefs.members) == 1 else 0
        for member in making:
            own = None if place is None else member.place
            known = costs.knows(member.name)
            run(WARM_UP if costs.plain_seconds(1) < SLOW else WARM_UP[:1], own)
            if not known and costs.plain_seconds(1) < SLOW:
                times += self._time_drafts(costs, member, run(TIMED, own))
        if not times and costs.plain_seconds(1) < SLOW:
            times = run(CHECKED, place)
        plain = [one.target + one.verify for one in times]
        if plain:
            ratio = median(plain) / costs.plain_seconds(1)
            if max(ratio, 1.0 / ratio) > OTHER_LOAD and self._learned is not None:
                # The load or the machine is another: what is on disk is no more than a beginning.
                self._measured.is_noisy = self._changed = True
            costs.found_slower(ratio)

    @staticmethod
    def _time_drafts(costs: LiveCosts, member: Member, times: list[RoundTimes]) -> list[RoundTimes]:
        """Note what drafts of one and of four tokens take; the plain rounds among them."""
        by_length: dict[int, list[float]] = {}
        for length, one in zip(TIMED, times, strict=False):
            by_length.setdefault(length, []).append(one.draft)
        if by_length.get(1) and by_length.get(4):
            first, four = median(by_length[1]), median(by_length[4])
            token = max(four - first, 0.0) / 3
            costs.measured(member.name, token, max(first - token, 0.0))
        return [one for length, one in zip(TIMED, times, strict=False) if not length]

    def note(self) -> None:
        """Note that there is something new to keep."""
        self._changed = True
        if monotonic() - self._saved > SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write what is known, if anything is new."""
        if self._path is None or not self._changed or self._beliefs is None:
            return
        self._saved, self._changed = monotonic(), False
        content = {
            "form": FORM,
            "rows": self.table.rows,
            "noisy": self._measured.is_noisy,
            "learned": self._beliefs.learned,
        }
        try:
            write_text(self._path, json.dumps(content))
        except OSError as problem:
            logger.warning("what was measured cannot be kept in %s (%s)", self._path, problem)
            self._path = None


def recall(target: CausalLM, drafter: Drafter, rows: int) -> Memory:
    """What is known of a target and a drafter; forwards are timed where it is nothing, or was measured while
    the machine did something else."""
    path, learned = _folder() / f"{_key(target, drafter, rows)}.json", None
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError("too long")
        content = parse_json(path.read_text(encoding="utf-8"), str(path), ConfigError)
        if content["form"] != FORM:
            raise ValueError(f"form {content['form']}")
        table = CostTable.from_rows(tuple(row) for row in content["rows"])
        learned = content["learned"]
        if not content["noisy"]:
            return Memory(path, Calibrated(table), learned)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, ForerunError) as problem:
        logger.warning("%s cannot be used (%s); costs are measured anew", path, problem)
    return Memory(path, calibrate(target, rows), learned, is_new=True)


def _makes_tokens(drafter: Drafter) -> bool:
    """Whether its drafts are computed by a model or head, which has to warm up."""
    return bool(drafter.needs_draft_model or drafter.head or drafter.shared_layers)


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
