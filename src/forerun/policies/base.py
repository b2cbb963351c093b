"""What most policies have in common: they need to know nothing of an engine and remember nothing."""

from __future__ import annotations

from typing import Any

from forerun.contracts import Policy
from forerun.options import NoOptions

USUAL_LENGTH = 4
"""Tokens that are drafted a round where nobody says and nothing is measured."""


class BasePolicy(Policy):
    """A policy is its `plan`; the rest is that of `forerun.contracts.Policy`."""

    options: type[Any] = NoOptions
