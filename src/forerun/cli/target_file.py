"""Files that a command writes when all is computed: whether they can be written is known before."""

from __future__ import annotations

import tempfile
from pathlib import Path

from forerun.errors import ConfigError


def check_writable(option: str, file: str) -> None:
    """See that `files.atomic_path` will be able to make or replace a file.

    Args:
        option: what names the file, as the user writes it: `--plot`.

    Raises:
        ConfigError: for what is there and no file, a directory that is missing, or one that takes
            no file of this name.
    """
    path = Path(file)
    if "\0" in file:
        raise ConfigError(f"{option} is {file!r}, which no file can be called; give another name.")
    try:
        if path.is_dir():
            raise ConfigError(f"{option} is {file}, a directory; give a file's name.")
        if path.exists() and not path.is_file():
            raise ConfigError(f"{option} is {file}, a device or pipe; give a file's name.")
        if not path.parent.exists():
            raise ConfigError(
                f"{option} is {file}, but there is no directory {path.parent}; make it first."
            )
        # Permissions alone do not tell: a file system may be read-only, a name too long.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".part"):
            pass
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise ConfigError(f"{option} is {file}, which cannot be written: {reason}.") from error
