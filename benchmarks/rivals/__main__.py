"""Regret of policies on recorded workloads.

forerun tune -m smollm2 --prompts chat.jsonl --records chat-rounds.jsonl --confirm 0
python -m benchmarks.rivals chat-rounds.jsonl code-rounds.jsonl summaries-rounds.jsonl

Every policy decodes the same recorded outputs, one request after the other, and learns as it goes. Printed
are the seconds that it takes longer than the best choices of drafter and length that hindsight makes at
every position, in percent of those; and over all workloads the mean.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rivals.regret import Workload, regrets
from forerun.tuning.records import Records


def table(lost: dict[str, dict[str, float]]) -> str:
    """By policy and workload, the least mean first; policies of drafters that a workload lacks have a
    dash there, and come last."""
    policies = {name for by_policy in lost.values() for name in by_policy}
    rows = []
    for name in policies:
        values = [by_policy.get(name) for by_policy in lost.values()]
        known = [value for value in values if value is not None]
        cells = ["–" if value is None else f"{value:.1%}" for value in values]
        missing = len(values) - len(known)
        rows.append(
            (missing, statistics.mean(known), [name, *cells, f"{statistics.mean(known):.1%}"])
        )
    lines = [["policy", *lost, "mean"], ["---"] * (len(lost) + 2)]
    lines += [cells for *_, cells in sorted(rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("records", nargs="+", type=Path, help="files that forerun tune has written")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    lost = {
        path.stem: regrets(Workload.of(path.stem, Records.read(path))) for path in options.records
    }
    print(json.dumps(lost) if options.json else table(lost))


if __name__ == "__main__":
    main()
