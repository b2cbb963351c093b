"""Regret of policies on recorded workloads.

python -m benchmarks.rivals.record -m smollm2 --prompts chat.jsonl --output chat-rounds.jsonl
python -m benchmarks.rivals chat-rounds.jsonl code-rounds.jsonl summaries-rounds.jsonl

Every policy decodes the same recorded outputs, one request after the other, and learns as it goes. Printed
are the seconds that it takes longer than the best choices of drafter and length that hindsight makes at
every position, in percent of those: the mean over the drafters, and over all workloads; --by-drafter prints
each drafter's own. The time of the policies themselves is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rivals.records import Records
from benchmarks.rivals.regret import ALL, NO_DRAFTER, Workload, regrets
from forerun.report.markdown import as_markdown
from forerun.report.table import Table

Lost = dict[str, dict[str, float]]
"""By a drafter or a workload, and policy."""


def over_drafters(lost: Lost) -> dict[str, float]:
    """By policy, the mean over the drafters of a workload."""
    alone = {name: own for name, own in lost.items() if name not in (ALL, NO_DRAFTER)}
    policies = {policy: 0 for own in alone.values() for policy in own}
    means = {
        policy: statistics.mean(own[policy] for own in alone.values())
        for policy in policies
        if all(policy in own for own in alone.values())
    }
    whole = {f"{policy}, {ALL}": share for policy, share in lost.get(ALL, {}).items()}
    return {**lost[NO_DRAFTER], **means, **whole}


def table(lost: Lost) -> str:
    """By policy and workload, the least mean first; what a workload lacks is a dash, and comes last."""
    policies = {name for by_policy in lost.values() for name in by_policy}
    rows = []
    for name in policies:
        values = [by_policy.get(name) for by_policy in lost.values()]
        known = [value for value in values if value is not None]
        cells = ["–" if value is None else f"{value:.1%}" for value in values]
        missing = len(values) - len(known)
        shown = f"fixed, {name}" if name.isdecimal() else name
        rows.append(
            (missing, statistics.mean(known), [shown, *cells, f"{statistics.mean(known):.1%}"])
        )
    lines = [cells for *_, cells in sorted(rows)]
    return as_markdown(Table.of("", ["policy", *lost, "mean"], lines))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("records", nargs="+", type=Path, help="files of `benchmarks.rivals.record`")
    parser.add_argument("--orders", type=int, default=4, help="orders of the texts; default 4")
    parser.add_argument("--by-drafter", action="store_true", help="a table for each drafter")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.orders < 1:
        parser.error("--orders must be at least 1")
    lost = {
        path.stem: regrets(Workload.of(path.stem, Records.read(path)), options.orders)
        for path in options.records
    }
    if options.json:
        print(json.dumps(lost))
        return
    print(table({name: over_drafters(own) for name, own in lost.items()}))
    if options.by_drafter:
        for drafter in dict.fromkeys(name for own in lost.values() for name in own):
            print(f"\n{drafter}\n")
            print(table({name: own[drafter] for name, own in lost.items() if drafter in own}))


if __name__ == "__main__":
    main()
