"""`check`: the tests marked gpu on this machine's device, a row each."""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.output import Output
from benchmarks.gpu.report_plugin import DESCRIPTOR

ROOT = Path(__file__).parents[2]
TESTS = "tests/engine/test_gpu.py"
DEVICE = "FORERUN_TEST_DEVICE"
"""The variable that names the device of the tests."""
_MOST_LOG = 1_000_000


def check(options: argparse.Namespace, output: Output) -> int:
    """Run the tests; 1 where one fails or none runs, else 0."""
    device = options.device or ("cpu" if options.tiny else "cuda")
    command = [sys.executable, "-m", "pytest", TESTS, "-m", "gpu"]
    command += ["-p", "benchmarks.gpu.report_plugin", "-p", "no:cacheprovider"]
    # Other versions of libraries may warn of what the tree's own do not.
    command += ["-W", "default"]
    command += ["-k", options.select] if options.select else []
    read, write = os.pipe()
    environment = {**os.environ, DEVICE: device, DESCRIPTOR: str(write)}
    log = output.folder / "check.log"
    waiting: list[str] = []
    counts: dict[str, int] = {"passed": 0, "failed": 0, "skipped": 0}
    with log.open("wb") as said:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            pass_fds=(write,),
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(write)
        try:
            for line in _lines(read, output):
                if "collected" in line:
                    waiting = line["collected"]
                    continue
                if line["test"] in waiting:
                    waiting.remove(line["test"])
                counts[line["outcome"]] += 1
                output.row("test", device=device, **line)
            ended = _end(process, output)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            os.close(read)
    _shorten(log)
    output.row("summary", device=device, **counts, not_run=waiting, ended=ended)
    passed = counts["passed"] > 0 and not counts["failed"] and ended in ("time", "0")
    return 0 if passed and output.fits() else 1


def _lines(read: int, output: Output) -> Iterator[dict[str, Any]]:
    """Lines of the plugin, until it ends or the time does."""
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(read, selectors.EVENT_READ)
        # A second remains for the end.
        while output.left > 1:
            if not selector.select(min(output.left - 1, 1.0)):
                continue
            block = os.read(read, 65536)
            if not block:
                break
            *whole, pending = (pending + block).split(b"\n")
            yield from map(json.loads, whole)


def _end(process: subprocess.Popen[bytes], output: Output) -> str:
    """The exit status of the tests, or `time` where they had to be stopped."""
    if output.left > 1:
        try:
            return str(process.wait(output.left - 0.5))
        except subprocess.TimeoutExpired:
            pass
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return "time"


def _shorten(log: Path) -> None:
    content = log.read_bytes()
    if len(content) > _MOST_LOG:
        log.write_bytes(content[-_MOST_LOG:])
