"""Settings of other libraries that must be made before they are imported."""

from __future__ import annotations

import os


def quiet_libraries() -> None:
    """Leave talking to us: one line an error, no advice of other libraries in between.

    Must run before transformers is imported. What the user has set stays.
    """
    # What transformers logs as an error it raises too, and that comes to the user as one line.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not os.isatty(2):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
