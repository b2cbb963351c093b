"""Programs in processes of their own that need not load torch: they are forked from one that has."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import tempfile
import termios
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing import get_context, reduction
from multiprocessing.context import ForkServerProcess
from subprocess import CompletedProcess
from types import MappingProxyType
from typing import Any

FORERUN = "forerun.cli.main:main"
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "forerun.cli.chat",
        "forerun.cli.generate",
        "forerun.engine.load",
        "transformers.models.auto.tokenization_auto",
    ]
)
_NOTHING: Mapping[str, str] = MappingProxyType({})


class _Stream:
    """A file descriptor that the child gets a duplicate of."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, (reduction.DupFd(self.descriptor),)


def _detached(duplicate: Any) -> int:
    return int(duplicate.detach())


def start(
    arguments: Sequence[str],
    streams: tuple[int, int, int],
    settings: Mapping[str, str] = _NOTHING,
    program: str = FORERUN,
) -> ForkServerProcess:
    """A running program, the first process of a session; a terminal as its input controls it.

    Args:
        arguments: of its command line.
        streams: file descriptors of its input, output and errors.
        settings: variables beside those of this process.
        program: its main function, as `module:function`.
    """
    environment = {**os.environ, **settings}
    child = (*map(_Stream, streams), environment, os.getcwd(), program, tuple(arguments))
    process = _CONTEXT.Process(target=_run, args=child, daemon=True)
    process.start()
    return process


def run(
    arguments: Sequence[str], read: int | None = None, program: str = FORERUN
) -> CompletedProcess[str]:
    """What a program prints that ends by itself; without an input it reads nothing."""
    with (
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
    ):
        given = nothing.fileno() if read is None else read
        process = start(arguments, (given, output.fileno(), errors.fileno()), program=program)
        process.join()
        assert process.exitcode is not None
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read())
    return CompletedProcess(arguments, process.exitcode, *texts)


def _run(
    read: int,
    write: int,
    errors: int,
    environment: dict[str, str],
    folder: str,
    program: str,
    words: Sequence[str],
) -> None:
    os.setsid()
    for number, descriptor in enumerate((read, write, errors)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # A suite that runs in the background hands on that interruptions are ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", 1 if os.isatty(1) else -1, "utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    module, _, function = program.partition(":")
    sys.argv = [module, *words]
    sys.exit(getattr(import_module(module), function)())
