"""Results of a step: JSON lines as they come, in a folder that stays small, within given seconds."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

MOST_FILES, MOST_BYTES = 8, 16_000_000


class Output:
    """Rows of a step, printed and kept in `OUT/STEP.jsonl`, and the time that is left.

    Args:
        step: its name.
        folder: of the results.
        seconds: after which the step must have ended.
    """

    def __init__(self, step: str, folder: Path, seconds: float) -> None:
        self.step, self.folder, self.seconds = step, folder, seconds
        self.started, self.defects = monotonic(), 0
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        # What a run that was killed was writing.
        for path in folder.glob(".*.part"):
            path.unlink()
        self._path = folder / f"{step}.jsonl"

    @property
    def left(self) -> float:
        """Seconds until the step must have ended."""
        return self.started + self.seconds - monotonic()

    def row(self, kind: str, **content: Any) -> None:
        """Write a row at once."""
        with self._lock:
            self._write(kind, content)

    def _write(self, kind: str, content: dict[str, Any]) -> None:
        row = {"step": self.step, "kind": kind, **content}
        line = json.dumps({**row, "elapsed": round(monotonic() - self.started, 2)})
        print(line, flush=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def fits(self) -> bool:
        """Check the limits of the folder; a row says what exceeds them."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        large = {path.name: path.stat().st_size for path in files}
        large = {name: size for name, size in large.items() if size > MOST_BYTES}
        if large or len(files) > MOST_FILES:
            self.row("limits", files=len(files), too_large=large)
        return not large and len(files) <= MOST_FILES

    @contextmanager
    def deadline(self, unfinished: list[str]) -> Iterator[None]:
        """End the process when the seconds are over, whatever runs, with a row that says what was left.

        Args:
            unfinished: names of what is still to do, kept current by the caller.
        """

        def end() -> None:
            with self._lock:
                left = {"left_out": list(unfinished), "defects": self.defects}
                self._write("ended", {"by": "time", **left})
                # Work on the device cannot be interrupted otherwise.
                os._exit(1 if self.defects else 0)

        timer = threading.Timer(max(self.left, 0.0), end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
