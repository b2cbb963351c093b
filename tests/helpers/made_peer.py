"""An engine of another package, in its process; it loads no torch."""

from __future__ import annotations

import os
import signal
import time
from typing import Any


class Made:
    """A peer that takes less time the nearer its drafts are to four tokens."""

    name, version, settings = "made", "1.0", {"draft": False, "precision": "none"}

    def generate(
        self, prompt_ids: list[int], num_tokens: int, num_speculative_tokens: int = 0
    ) -> tuple[list[int], float]:
        if num_tokens > 100:
            raise SystemExit("no memory")
        if num_tokens > 95:
            os.kill(os.getpid(), signal.SIGSEGV)
        if num_tokens > 90:
            time.sleep(3600)
        return [7] * num_tokens, num_tokens * (1.0 + abs(num_speculative_tokens - 4))


def made(**options: Any) -> Made:
    assert options["name"] == "made"
    return Made()
