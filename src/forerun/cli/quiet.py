"""Settings of other libraries that must be made before they are imported."""

from __future__ import annotations

import os


def quiet_libraries() -> None:
    """Silence other libraries: an error is one line of forerun's, without their advice in between.

    Must run before transformers is imported. Settings of the user stay.
    """
    # transformers also raises what it logs as an error, and the user sees that as one line.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not os.isatty(2):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
