"""Translation of the compiled kernels' errors into forerun's."""

from __future__ import annotations

from dataclasses import dataclass

from forerun import _native
from forerun.errors import CacheError, ConfigError, DistributionError, MemoryLimitError


@dataclass(frozen=True)
class TypedErrors:
    """Context manager that turns errors of the kernels into errors of our own.

    It is a class because it is entered for each part of a model: a generator takes several times as
    long.

    Args:
        name: name of the model, module or cache that is used, for messages.
    """

    name: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        if isinstance(error, _native.kernels.CacheError):
            raise CacheError(str(error)) from None
        if isinstance(error, _native.kernels.RowError):
            raise DistributionError(f"{self.name}: {error}.") from None
        if isinstance(error, MemoryError):
            raise MemoryLimitError(
                f"there is not enough memory to run {self.name}; run fewer tokens at once."
            ) from None
        if isinstance(error, (ValueError, TypeError)):
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"{self.name} cannot run this: {first}") from None
