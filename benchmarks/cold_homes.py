"""Empty home folders, and `forerun generate --compare` as a new user types it there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from forerun.files import CACHE_VARIABLE


@contextmanager
def empty_home() -> Iterator[Path]:
    """A new home folder, this process's and its children's within the block: nothing was learned there.

    Engines that are built in it are to be closed in it.
    """
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home, cache = Path(folder), Path(folder) / ".cache"
        values = {"HOME": home, "XDG_CACHE_HOME": cache, CACHE_VARIABLE: cache / "forerun"}
        before = {name: os.environ.get(name) for name in values}
        os.environ.update({name: str(value) for name, value in values.items()})
        try:
            yield home
        finally:
            for name, value in before.items():
                del os.environ[name]
                if value is not None:
                    os.environ[name] = value


def compare_by_command(prompt: str, options: Mapping[str, object], rounds: int = 1) -> float:
    """Plain seconds over speculative ones of one `forerun generate --compare`, in the present home.

    Args:
        prompt: text.
        options: of the command by flag, without the dashes.
        rounds: pairs, whose median counts; what the first has taught is known to the next.

    Raises:
        RuntimeError: where the command fails, with what it says.
    """
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    command = ["generate", prompt, *flags, "--ignore-eos", "--compare", "--json"]
    run = _forerun([*command, "--compare-rounds", str(rounds)])
    if run.returncode:
        raise RuntimeError(f"forerun {command} failed: {run.stderr}")
    return float(json.loads(run.stdout)["speedup"])


def _forerun(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forerun", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
