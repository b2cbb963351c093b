"""Ways to propose tokens: one file a method, one line here."""

from __future__ import annotations

from typing import Any

from forerun import registry
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.ngram import NgramDrafter

GROUP = "forerun.drafters"

DRAFTERS: dict[str, Any] = {
    "draft_model": DraftModelDrafter,
    "ngram": NgramDrafter,
}


def drafter_names() -> list[str]:
    """All methods that `find_drafter` knows."""
    return registry.names(DRAFTERS, GROUP)


def find_drafter(name: str) -> Any:
    """The class of the method `name`.

    Raises:
        UnknownNameError: listing the methods.
    """
    return registry.find("method", name, DRAFTERS, GROUP)
