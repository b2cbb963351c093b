"""Measurements and knowledge of policy `auto`, kept on disk between runs.

A file belongs to a target, a drafter, a device, a precision, a number of threads and a version of
forerun. Missing, broken or foreign values are measured again; a disk that cannot be written to is
logged once. FORERUN_CACHE names the folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from forerun import __version__
from forerun.contracts import FILLER, CausalLM, Drafter, Rehearse
from forerun.costs.table import CostTable
from forerun.errors import ConfigError, ForerunError
from forerun.files import MOST_BYTES, cache_folder, parse_json, reason, write_text
from forerun.policies.beliefs import Beliefs
from forerun.policies.calibration import Calibrated, calibrate, typical
from forerun.processor import cpu_name

logger = logging.getLogger(__name__)

# Version of the files' format.
FORM = 4
# Least seconds between writes; the file is also written when the policy or the program ends.
SAVE_SECONDS = 30.0
# Lengths of rehearsed drafts, by round: to warm up, to time drafts, and to time rounds with arbitrary tokens.
WARM_UP, DRAFTS = (0, 4, 4), (4, 1) * 4
ROUNDS = (0, 1, 3, 7, 1, 7, 0, 3, 7, 3, 1, 0, 3, 0, 7, 1, 0, 7, 3, 1)
# If rounds take more seconds than this, only the warm-up is rehearsed.
SLOW = 0.1
# If the speed differs from that of the file by this factor, drafts are timed anew.
OTHER_LOAD = 1.5
MOST_SPEED = 1e3


class Memory:
    """Costs of a target, and what was learned with a drafter.

    Args:
        path: the file; None saves nothing.
        measured: times of the target's forwards.
        learned: learned values from the file; None without a file.
        speed: speed of plain rounds relative to the measured ones.
        is_new: the forwards were timed just now.
    """

    def __init__(
        self,
        path: Path | None,
        measured: Calibrated,
        learned: Any = None,
        speed: float = 1.0,
        is_new: bool = False,
    ) -> None:
        self._path, self._measured, self._learned = path, measured, learned
        self._saved, self._changed, self._is_new = monotonic(), is_new, is_new
        self._beliefs: Beliefs | None = None
        # Seconds of plain rounds at their last rehearsal, relative to the table.
        self._speed = speed

    @property
    def table(self) -> CostTable:
        """Times of the target's forwards."""
        return self._measured.table

    def hand_over(self, beliefs: Beliefs) -> None:
        """Give earlier engines' knowledge to `beliefs`, and save from now on what they learn."""
        self._beliefs = beliefs
        if self._learned is not None:
            try:
                beliefs.restore(self._learned)
            except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
                logger.warning("%s holds something else; it is learned anew", self._path)
                self._learned = None
                beliefs.costs.forget_drafts()
                for member in beliefs.all_members:
                    member.forget()

    def check(self, beliefs: Beliefs, rehearse: Rehearse) -> None:
        """Rehearse rounds, to warm up drafts, to time unknown ones, and to measure the machine's speed."""
        # Members for greedy requests stand for all, because a drafter's costs are the same for sampled ones.
        costs, members = beliefs.costs, beliefs.members[True]
        places = [None] if len(members) == 1 else range(len(members))
        slow, before = costs.plain_seconds(1) > SLOW, costs.plain_seconds(1) * self._speed
        makers = [
            (member, place)
            for member, place in zip(members, places, strict=True)
            if _makes_tokens(member.drafter)
        ]
        for _, place in makers:
            rehearse(WARM_UP[:2] if slow else WARM_UP, place)
        if slow:
            return
        times = rehearse(ROUNDS, FILLER)
        rounds = _by_length(ROUNDS, [one.target + one.verify for one in times])
        if len(rounds) == len(set(ROUNDS)) and rounds[0] > 0.0:
            costs.found(rounds)
            ratio = rounds[0] / before
            if max(ratio, 1.0 / ratio) > OTHER_LOAD and not self._is_new:
                # The load or the machine has changed; these rounds correct the target's times.
                self._changed = True
                costs.forget_drafts()
            self._speed = costs.speed
        for member, place in makers:
            if not costs.knows(member.name):
                drafts = _by_length(DRAFTS, [one.draft for one in rehearse(DRAFTS, place)])
                if len(drafts) == len(set(DRAFTS)):
                    token = max(drafts[4] - drafts[1], 0.0) / 3
                    costs.measured(member.name, token, max(drafts[1] - token, 0.0))

    def note(self) -> None:
        """Note that there is something new to save; save it if the last time was long ago."""
        self._changed = True
        if monotonic() - self._saved > SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the file if anything is new."""
        if self._path is None or not self._changed or self._beliefs is None:
            return
        self._saved, self._changed = monotonic(), False
        content = {
            "form": FORM,
            "rows": self.table.rows,
            "noisy": self._measured.is_noisy,
            "speed": self._speed,
            "learned": self._beliefs.learned,
        }
        try:
            write_text(self._path, json.dumps(content))
        except OSError as problem:
            logger.warning(
                "what was measured cannot be kept in %s (%s)", self._path, reason(problem)
            )
            self._path = None


def recall(target: CausalLM, drafter: Drafter, rows: int) -> Memory:
    """Stored knowledge about a target and a drafter.

    Forwards are timed if nothing is stored, and once more if something else ran on the machine
    meanwhile: on a machine that is always busy, rehearsals correct the times.
    """
    path, learned = cache_folder("costs") / f"{_key(target, drafter, rows)}.json", None
    is_second = False
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError("too long")
        content = parse_json(path.read_text(encoding="utf-8"), "it", ConfigError)
        if content["form"] != FORM:
            raise ValueError(f"form {content['form']}")
        table = CostTable.from_rows(tuple(row) for row in content["rows"])
        learned = content["learned"]
        speed = float(content["speed"])
        is_second = bool(content["noisy"])
        if not is_second and 0.0 < speed < MOST_SPEED:
            return Memory(path, Calibrated(table), learned, speed)
    except FileNotFoundError:
        pass
    except (OSError, ArithmeticError, ValueError, KeyError, TypeError, ForerunError) as problem:
        detail = reason(problem) if isinstance(problem, OSError) else str(problem).rstrip(".")
        logger.warning("%s cannot be used (%s); costs are measured anew", path, detail)
    measured = calibrate(target, rows)
    measured.is_noisy = measured.is_noisy and not is_second
    return Memory(path, measured, learned, is_new=True)


def _by_length(lengths: Sequence[int], values: Sequence[float]) -> dict[int, float]:
    """Typical values by length, measured in turns; fewer lengths if the measurement broke off."""
    size = len(set(lengths))
    timed = list(zip(lengths, values, strict=False))
    return typical(dict(timed[start : start + size]) for start in range(0, len(timed), size))


def _makes_tokens(drafter: Drafter) -> bool:
    """True if the drafts are computed by a model or head, which has to warm up."""
    return bool(drafter.needs_draft_model or drafter.head or drafter.shared_layers)


def _key(target: CausalLM, drafter: Drafter, rows: int) -> str:
    """A name for everything that costs depend on."""
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
