"""Streams that are closed, full or without a reader: one line and an exit code, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import Cli

QUICK = ["--help", "--version", "generate --help", "simulate --acceptance 0.7", "simulate --json"]
FULL = "forerun: error: standard output cannot be written: no space left on device.\n"
CLOSED = "forerun: error: standard output is closed; give it a file, a pipe or a terminal.\n"

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


def shell(command: str, redirection: str) -> subprocess.CompletedProcess[str]:
    program = f"set -o pipefail; {sys.executable} -m forerun.cli.main {command} {redirection}"
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)


@needs_full
@pytest.mark.parametrize("command", QUICK)
def test_a_full_device(command: str) -> None:
    done = shell(command, ">/dev/full")
    assert (done.returncode, done.stderr) == (2, FULL)


@needs_full
def test_full_devices_for_output_and_talk() -> None:
    assert shell("simulate --json", ">/dev/full 2>/dev/full").returncode == 2


@pytest.mark.parametrize("command", ["--help", "simulate --json"])
def test_a_closed_output(command: str) -> None:
    done = shell(command, ">&-")
    assert (done.returncode, done.stderr) == (2, CLOSED)
    assert shell(command, "<&- >&- 2>&-").returncode == 2


@pytest.mark.parametrize("command", ["--help", "simulate --json"])
def test_a_reader_who_left(command: str) -> None:
    """Before anything was written."""
    read, write = os.pipe()
    os.close(read)
    program = [sys.executable, "-m", "forerun.cli.main", *command.split()]
    done = subprocess.run(program, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@needs_full
def test_lost_talk_stops_nothing() -> None:
    heard, *lost = (
        shell("simulate", f"2>{talk}").stdout for talk in ("/dev/null", "/dev/full", "&-")
    )
    assert lost == [heard] * 2
    assert heard


@needs_full
def test_a_model_that_runs_is_let_go(cli: Cli) -> None:
    """Nothing of the engine may outlive the error, or the kernels report what leaked."""
    run = f"generate --model {cli.target} --prompt a --max-tokens 4"
    done = shell(run, ">/dev/full")
    assert (done.returncode, done.stderr.splitlines()[-1] + "\n") == (2, FULL)
    assert "leaked" not in done.stderr
