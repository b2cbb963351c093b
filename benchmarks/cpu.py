"""Six groups of measurements on the CPU, each figure beside its goal.

python -m benchmarks.cpu --groups 1,2,3,4,5,6 --json report.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.groups import drafting, flatness, memory, plain, real_model, speculation
from benchmarks.groups.report import TABLE_HEAD, Figure, Setting
from benchmarks.plot import draw
from forerun import _native
from forerun.bench.forwards import Machine, use_threads
from forerun.errors import ForerunError
from forerun.files import write_text
from forerun.report.machine import host, versions

SCHEMA_VERSION = 1
GROUPS: dict[int, tuple[str, Callable[[Setting], Iterator[Figure]]]] = {
    1: ("Plain decoding", plain.run),
    2: ("Flatness and prefill", flatness.run),
    3: ("Drafting and host time", drafting.run),
    4: ("Speculative decoding", speculation.run),
    5: ("Memory and loading", memory.run),
    6: ("A real model", real_model.run),
}


def run(setting: Setting, groups: Sequence[int]) -> Iterator[Figure]:
    """All figures of the groups, each printed as it comes."""
    for number in groups:
        title, measure = GROUPS[number]
        print(f"\n### {number}. {title}\n\n{TABLE_HEAD}", flush=True)
        for figure in measure(setting):
            print(figure.as_markdown(), flush=True)
            yield figure


def report(setting: Setting, figures: Sequence[Figure], machine: Machine) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {
        "schema_version": SCHEMA_VERSION,
        "versions": versions(),
        "hardware": {**host(), "kernels": _native.kernels.level(), "threads": setting.threads},
        "machine": {
            "last_level_cache_bytes": machine.cache,
            "bandwidth_gigabytes_per_second": median(machine.read() for _ in range(3)) / 1e9,
        },
        "quick": setting.quick,
        "figures": [figure.as_dict() for figure in figures],
        "curves": setting.curves,
        "notes": setting.notes,
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, prompts and models")
    parser.add_argument("--groups", default="1,2,3,4,5,6", help="such as 1,3")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there too")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the curves of group 2")
    parser.add_argument("--peers-python", help="the interpreter that has forerun[peers]")
    parser.add_argument(
        "--work", type=Path, default=Path("build/bench-cpu"), help="where checkpoints are kept"
    )
    options = parser.parse_args(arguments)
    try:
        options.groups = sorted({int(part) for part in options.groups.split(",")})
    except ValueError:
        parser.error(f"--groups is {options.groups!r}; give a list such as 1,3")
    if not set(options.groups) <= set(GROUPS):
        parser.error(f"--groups are {', '.join(map(str, GROUPS))}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 2 for wrong use; missed goals are figures, not errors."""
    options = parse(arguments)
    try:
        setting = Setting(
            use_threads(options.threads),
            options.quick,
            options.work.resolve(),
            options.peers_python,
            lambda what: print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr),
        )
        figures = list(run(setting, options.groups))
        content = report(setting, figures, Machine())
        _save(content, options)
    except ForerunError as error:
        print(f"forerun: error: {error}", file=sys.stderr)
        return 2
    with_goals = [figure for figure in figures if figure.goal is not None]
    reached = sum(bool(figure.reached) for figure in with_goals)
    print(f"\n{reached} of {len(with_goals)} goals reached.")
    for note in setting.notes:
        print(f"- {note}")
    return 0


def _save(content: dict[str, Any], options: argparse.Namespace) -> None:
    if options.json is not None:
        write_text(options.json, json.dumps(content, indent=1) + "\n")
    if options.plots is not None and content["curves"]:
        draw(content["curves"], options.plots)


if __name__ == "__main__":
    sys.exit(main())
