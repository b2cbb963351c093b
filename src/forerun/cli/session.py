"""`--session FILE`: read before a run, if it is there, and written after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forerun.cli.bars import waiting
from forerun.errors import ForerunError, counted
from forerun.files import check_writable, size_text
from forerun.progress import say

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.kv_cache.session_file import Session

_NONE: Mapping[str, str] = {}


def open_session(file: str | None) -> Session | None:
    """The session in a file, without keys and values; None without a file.

    Raises:
        ConfigError: for a file that could not be written.
        SessionError: for one that is no session.
    """
    from pathlib import Path

    if file is None:
        return None
    check_writable("--session", file)
    if not Path(file).exists():
        return None
    from forerun.engine.sessions import read_session

    return read_session(file)


def restore(engine: Engine, file: str | None, session: Session | None) -> None:
    """Load a session into an engine, and check that the engine can save one.

    Raises:
        ForerunError: as `Sessions.load` does.
    """
    if file is None:
        return
    engine.sessions.check()
    if session is not None:
        with waiting("reading the session"):
            engine.sessions.load(file)
        say(f"{counted(len(session.token_ids), 'token')} read from session {file}")


def keep(engine: Engine, file: str | None, notes: Mapping[str, str] = _NONE) -> None:
    """Write the text of the last request.

    Raises:
        ForerunError: as `Sessions.save` does.
    """
    if file is None:
        return
    with waiting("writing the session"):
        session = engine.sessions.save(file, notes=notes)
    what = f"{counted(len(session.token_ids), 'token')}, {size_text(session.nbytes)}"
    say(f"session written to {file}: {what}")


@contextmanager
def session_kept(engine: Engine, file: str | None) -> Iterator[None]:
    """Write the session at the end of the block, also of one that fails.

    If writing fails too, that is said, and the block's own error raised.
    """
    try:
        yield
    except BaseException:
        try:
            keep(engine, file)
        except ForerunError as error:
            say(f"no session was written: {error}")
        raise
    keep(engine, file)
