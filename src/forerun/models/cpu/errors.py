"""What errors of the compiled kernels mean."""

from __future__ import annotations

from forerun import _native
from forerun.errors import CacheError, ConfigError, MemoryLimitError


def typed(name: str, error: Exception) -> Exception:
    """The error to raise where running the model or module called `name` has failed."""
    if isinstance(error, _native.kernels.CacheError):
        return CacheError(str(error))
    if isinstance(error, MemoryError):
        return MemoryLimitError(
            f"there is not enough memory to run {name}; run fewer tokens at once."
        )
    if isinstance(error, (ValueError, TypeError)):
        return ConfigError(f"{name} cannot run this: {_first_line(error)}")
    return error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
