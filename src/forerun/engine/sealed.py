"""Objects that cannot be changed or copied once they are complete, with errors that name an alternative."""

from __future__ import annotations

from typing import Any

from forerun.errors import ConfigError
from forerun.options import schema_of
from forerun.params import SamplingParams

_WAYS = {
    "drafter": "make another engine with forerun.load(..., drafter=...)",
    "policy": "make another engine with forerun.load(..., policy=...)",
    "rules": "put a rule into engine.rules by name",
    "sampling_defaults": "give sampling parameters with each call",
}


class Sealed:
    """Refuses copies, and after `_seal` assignments to public attributes, which would have no effect."""

    _sealed = False

    def _seal(self) -> None:
        self._sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse(name)
        super().__delattr__(name)

    def __reduce__(self) -> Any:
        raise ConfigError(
            "an engine cannot be copied or pickled; make one in each process with forerun.load."
        )

    def _refuse(self, name: str) -> None:
        if self._sealed and not name.startswith("_"):
            way = _WAYS.get(name, "make another engine with forerun.load or forerun.Engine")
            if name in schema_of(SamplingParams):
                way = f"give it with each call: engine.generate(prompt, {name}=...)"
            raise ConfigError(f"{name} of an engine cannot be set; {way}.")
