"""Files that a command writes: checked before it computes anything, whole or not written."""

from __future__ import annotations

import tempfile
from pathlib import Path

from forerun.errors import ConfigError
from forerun.files import reason, write_text
from forerun.progress import say


def check_writable(option: str, file: str) -> None:
    """Check that `files.atomic_path` will be able to create or replace a file.

    Args:
        option: the flag that names the file, such as `--plot`.

    Raises:
        ConfigError: for something that exists and is not a file, a missing directory, or one that
            accepts no file of this name.
    """
    path = Path(file)
    if "\0" in file:
        raise ConfigError(
            f"{option} is {file!r}, which cannot be the name of a file; give another."
        )
    try:
        if path.is_dir():
            raise ConfigError(f"{option} is {file}, a directory; give a file's name.")
        if path.exists() and not path.is_file():
            raise ConfigError(f"{option} is {file}, a device or pipe; give a file's name.")
        if not path.parent.exists():
            raise ConfigError(
                f"{option} is {file}, but there is no directory {path.parent}; create it first."
            )
        # Permissions alone do not tell: a file system may be read-only, a name too long.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".part"):
            pass
    except OSError as error:
        raise ConfigError(
            f"{option} is {file}, which cannot be written: {reason(error)}."
        ) from error


def write_file(what: str, file: str, text: str) -> None:
    """Write a file and say so.

    Args:
        what: the file is, such as `certificate`.

    Raises:
        ConfigError: where it cannot be written.
    """
    try:
        write_text(file, text)
    except OSError as error:
        raise ConfigError(f"{what} {file} cannot be written: {reason(error)}.") from error
    say(f"{what} written to {file}")
