"""Atomic writes, checks before them, and bounded reads: used wherever a file is read or saved."""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from forerun.errors import ConfigError, ForerunError
from forerun.progress import say

# No text that forerun reads is longer; a device such as /dev/zero never ends.
MOST_BYTES = 64 * 2**20
CACHE_VARIABLE = "FORERUN_CACHE"
"""Environment variable that names the folder of results kept between runs."""


def cache_folder(name: str) -> Path:
    """Path of the folder for one kind of results kept between runs; the folder is not created."""
    asked = os.environ.get(CACHE_VARIABLE)
    if asked:
        return Path(asked) / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forerun" / name


def package_folder(name: str) -> Path | None:
    """Folder of an installed package, found without importing it; None if it is not installed."""
    spec = find_spec(name)
    folders = (spec and spec.submodule_search_locations) or ()
    return next(map(Path, folders), None)


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path` that replaces it when the block succeeds.

    A reader sees the old file or the new one, never half of it. When the block raises, the old
    file stays and the temporary one is removed.
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=final.parent, prefix=f".{final.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files that only their owner reads; a saved file follows the umask instead.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_writable(option: str, file: str) -> None:
    """Check that `atomic_path` will be able to create or replace a file.

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


def read_text(
    path: str | os.PathLike[str],
    what: str,
    error: type[ForerunError],
    *,
    most_bytes: int = MOST_BYTES,
) -> str:
    """Text of a UTF-8 input file, character for character; a file named `.gz` is unpacked.

    Args:
        path: the file; a pipe or a device is read up to `most_bytes`.
        what: name of the file in messages, before its path: `prompt file`.
        error: raised if the file cannot be read, is too long or not UTF-8.
        most_bytes: greatest length allowed.
    """
    where = f"{what} {printable(path)}"
    try:
        with gzip.open(path) if os.fspath(path).endswith(".gz") else Path(path).open("rb") as file:
            content = file.read(most_bytes + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise error(f"{where} is not a whole gzip file.") from problem
    except OSError as problem:
        raise error(f"{where} cannot be read: {reason(problem)}.") from problem
    except ValueError as problem:  # A null byte in the name.
        raise error(f"{where} cannot be read: {problem}.") from problem
    if len(content) > most_bytes:
        raise error(f"{where} is longer than {size_text(most_bytes)}; give a shorter one.")
    return decode(content, where, error)


def read_stdin(error: type[ForerunError]) -> str:
    """Text of standard input; `error` is raised unless it is UTF-8 and at most `MOST_BYTES` long."""
    try:
        content = sys.stdin.buffer.read(MOST_BYTES + 1)
    except OSError as problem:
        raise error(f"standard input cannot be read: {reason(problem)}.") from problem
    if len(content) > MOST_BYTES:
        raise error(f"standard input is longer than {size_text(MOST_BYTES)}; give less.")
    return decode(content, "standard input", error)


def decode(content: bytes, where: str, error: type[ForerunError]) -> str:
    """Bytes decoded as UTF-8; for other bytes `error` is raised, with `where` as their name."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise error(f"{where} is not UTF-8 text (byte {problem.start}).") from problem


def parse_json(text: str, where: str, error: type[ForerunError]) -> Any:
    """Value of a JSON text; `error`, which names `where`, for other text and a key that is given twice."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise error(f"{where} is not JSON (nested too deep).") from None
    except ValueError as problem:  # Also for an integer of thousands of digits.
        detail = str(problem).partition(";")[0]
        raise error(f"{where} is not JSON ({detail}).") from problem


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in content if names.count(name) > 1)
        raise ValueError(f"key {twice!r} is given twice")
    return content


def is_regular(path: str | os.PathLike[str]) -> bool:
    """True if a path names a regular file, which has an end, or a link to one; never raises."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # A name that is too long or holds a null byte.
        return False


def lock(file: IO[Any]) -> bool:
    """Lock an open file for this process until it is closed; False if another one holds it. Nothing is
    locked on Windows, and where the file system has no locks."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # Some network file systems have no locks.
        return True
    return True


def reason(problem: OSError) -> str:
    """The system's description of an error, for the middle of a sentence."""
    return (problem.strerror or "unknown reason").lower()


def printable(path: str | os.PathLike[str]) -> str:
    """A path as text for a message; names that are not UTF-8 or hold control characters are escaped."""
    text = os.fspath(path)
    return text if text.isprintable() else repr(text)[1:-1]


def size_text(count: float) -> str:
    """A number of bytes as text for a message."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
