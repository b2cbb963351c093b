"""Ways to propose tokens: one file a method, one line here."""

from __future__ import annotations

from typing import Any

from forerun import registry
from forerun.drafters.cascade import DEFAULT_MEMBERS, CascadeDrafter, parse_member
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.layer_skip import LayerSkipDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.prediction import PredictionDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.drafters.token_recycling import TokenRecyclingDrafter

GROUP = "forerun.drafters"

DRAFTERS: dict[str, Any] = {
    "cascade": CascadeDrafter,
    "draft_model": DraftModelDrafter,
    "layer_skip": LayerSkipDrafter,
    "ngram": NgramDrafter,
    "prediction": PredictionDrafter,
    "suffix": SuffixDrafter,
    "token_recycling": TokenRecyclingDrafter,
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


def members_of(method: str, cascade: tuple[str, ...] | None) -> tuple[str, ...]:
    """The methods that take part in a method: itself alone, but for a cascade.

    Raises:
        UnknownNameError: as `find_drafter`.
    """
    if method != "cascade":
        return (method,)
    return tuple(parse_member(entry)[0] for entry in cascade or DEFAULT_MEMBERS)


def needs_draft_model(method: str, cascade: tuple[str, ...] | None = None) -> bool:
    """Whether a method, or one of a cascade, drafts with a second model."""
    return any(find_drafter(name).needs_draft_model for name in members_of(method, cascade))


def options_read(method: str, cascade: tuple[str, ...] | None = None) -> frozenset[str]:
    """The speculative options that a method reads, of those that not all methods do."""
    names = {method, *members_of(method, cascade)}
    return frozenset().union(*(find_drafter(name).options for name in names))


def reads_predictions(method: str, cascade: tuple[str, ...] | None = None) -> bool:
    """Whether a method, or one of a cascade, drafts from the predictions of requests."""
    return any(find_drafter(name).reads_predictions for name in members_of(method, cascade))


def all_options() -> frozenset[str]:
    """The options that some of our methods read and others do not."""
    return frozenset().union(*(one.options for one in DRAFTERS.values()))
