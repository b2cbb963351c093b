"""An interruption finds a piece of text written and counted, or neither, and never waits."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from rich.console import Console

from forerun.cli.terminal import PlainOutput, TerminalOutput
from forerun.core import Origin
from forerun.interrupts import held_back, never_lost
from tests.helpers.command_line import Cli


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A suite that runs in the background may have been started with interruptions ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Interrupted(io.StringIO):
    """A file whose reader presses Ctrl-C in the middle of a write, and again before its end."""

    def write(self, text: str) -> int:
        super().write(text[:1])
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return 1 + super().write(text[1:])


@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_being_written_is_written_and_counted(terminal: bool) -> None:
    out = Interrupted()
    console = Console(file=out, force_terminal=True, no_color=True, width=500)
    output = TerminalOutput(console) if terminal else PlainOutput(out)
    text = "0123456789" * 50
    while output._written < len(text):
        with pytest.raises(KeyboardInterrupt):
            output.write(text[output._written :], Origin.PLAIN)
    assert out.getvalue() == text


def interrupted_soon(output: PlainOutput) -> None:
    threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
    output.write("more than fits", Origin.PLAIN)


@pytest.mark.parametrize("times", [1, 2])
def test_a_reader_that_has_stopped_delays_no_interruption(times: int) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, b"x" * 1024):
            pass
    os.set_blocking(writer, True)
    with open(writer, "w", encoding="utf-8") as stdout:
        output = PlainOutput(stdout)
        for _ in range(times):
            with pytest.raises(KeyboardInterrupt):
                interrupted_soon(output)
        assert output._written == 0
    os.close(reader)


@pytest.mark.parametrize("usual", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_no_handler_of_python_catches_is_left_alone(usual: Any) -> None:
    signal.signal(signal.SIGINT, usual)
    with held_back():
        assert signal.getsignal(signal.SIGINT) == usual
    assert signal.getsignal(signal.SIGINT) == usual


def test_other_threads_write_as_usual() -> None:
    out = io.StringIO()
    thread = threading.Thread(target=PlainOutput(out).write, args=("text", Origin.PLAIN))
    thread.start()
    thread.join()
    assert out.getvalue() == "text"


def lossy() -> None:
    """What a library does that takes an interruption for an error of its own."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ValueError("unknown dtype") from None


def test_an_interruption_is_never_taken_for_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), never_lost():
        lossy()
    with pytest.raises(KeyboardInterrupt), never_lost(), suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(ValueError, match="wrong"), never_lost():
        raise ValueError("wrong")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_loading_is_interrupted_as_such(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """safetensors takes an interruption for a tensor of an unknown type."""
    from forerun.models.sources import SafetensorsSource

    monkeypatch.setattr(SafetensorsSource, "slice", lambda *_: lossy())
    monkeypatch.setattr(SafetensorsSource, "read", lambda *_: lossy())
    for backend in ("auto", "torch"):
        result = cli.generate("--prompt", "a", "--backend", backend)
        assert (result.exit_code, result.stdout) == (130, "")
