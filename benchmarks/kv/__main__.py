"""Quality and speed of each setting of the cache beside the full one.

python -m benchmarks.kv -m smollm2 --methods h2o,snapkv --ratios 0.5 --contexts 4k --plot cache.png
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from forerun.cli.main import Application, Row

NAME = "benchmarks.kv"
application = Application(
    "python -m",
    {
        NAME: Row(
            "benchmarks.kv.request",
            "What each setting of the cache costs in quality, and what it saves.",
            example="python -m benchmarks.kv -m smollm2 --methods h2o,snapkv --contexts 1k",
            assumed="all methods of eviction, with {model}",
            files=("plot",),
        )
    },
)


def main(arguments: Sequence[str] | None = None) -> None:
    given = sys.argv[1:] if arguments is None else arguments
    application.main([NAME, *given], prog_name="python -m")


if __name__ == "__main__":
    main()
