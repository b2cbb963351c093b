"""Processes of their own: what is loaded, how long it takes, signals and pipes."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.helpers.command_line import Cli

LONG = ("--temperature", "0", "--ignore-eos", "--max-tokens", "12000")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--help"], ["--version"], ["generate", "--help"], ["info", "--help"], ["gen"]),
        *(["train"], ["train", "data", "--help"], ["bench", "--help"]),
    ],
)
def test_answers_without_torch(arguments: list[str]) -> None:
    done = python(
        "import sys\n"
        "from forerun.cli.main import application\n"
        f"try: application.main({arguments!r}, prog_name='forerun')\n"
        "except SystemExit: pass\n"
        "loaded = {'torch', 'transformers', 'tokenizers', 'numpy'} & set(sys.modules)\n"
        "print(loaded or 'none', file=sys.stderr)"
    )
    assert done.stderr.splitlines()[-1] == "none"


def test_import_loads_no_torch() -> None:
    done = python(
        "import sys, forerun; forerun.SamplingParams; forerun.SpeculativeConfig\n"
        "print({'torch', 'transformers', 'click'} & set(sys.modules) or 'none')"
    )
    assert done.stdout.strip() == "none", done.stderr


def test_generate_module_is_not_loaded_for_the_help() -> None:
    done = python(
        "import sys\nfrom forerun.cli.main import application\n"
        "try: application.main(['--help'])\nexcept SystemExit: pass\n"
        "assert 'forerun.cli.generate' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr
    assert "generate" in done.stdout


@pytest.fixture
def process(cli: Cli) -> Any:
    """A long run in a process of its own, with a pipe for its output."""
    pair = ("--model", cli.target, "--draft-model", cli.draft, "--raw", "--prompt", "def add")
    program = [sys.executable, "-m", "forerun.cli.main", "generate", *pair, *LONG]
    # The pipe holds less than the text, so that the run cannot have ended before it is interrupted.
    # A suite that runs in the background is started with interrupts ignored, and hands that on.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    # Without a buffer: `communicate` reads past it, and what it held would be missing.
    try:
        running = subprocess.Popen(
            program,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pipesize=4096,
        )
    finally:
        signal.signal(signal.SIGINT, ignored)
    yield running
    running.kill()
    running.wait()
    for stream in (running.stdout, running.stderr):
        assert stream is not None
        stream.close()


def test_interrupt_ends_with_partial_text(process: Any, cli: Cli) -> None:
    first = process.stdout.read(1)
    assert first, process.stderr.read()
    process.send_signal(signal.SIGINT)
    rest, talk = process.communicate()
    assert process.returncode == 130
    text = (first + rest).decode()
    assert text.endswith("\n")
    assert b"Traceback" not in talk
    assert b"cancelled" in talk
    # What is there by then is the beginning of what would have come.
    whole = cli.json(*LONG[:-1], "200")["text"]
    common = min(len(whole), len(text) - 1)
    assert whole[:common] == text[:common]


def test_a_closed_pipe_ends_silently(process: Any) -> None:
    assert process.stdout.read(1)
    process.stdout.close()
    talk = process.stderr.read()
    assert process.wait() == 141
    assert talk == b""
