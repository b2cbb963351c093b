"""Base of most policies, which need no engine and remember nothing."""

from __future__ import annotations

from typing import Any

from forerun.contracts import Policy
from forerun.options import NoOptions

USUAL_LENGTH = 4
"""Tokens drafted per round if none are asked for and nothing is measured."""


class BasePolicy(Policy):
    """A policy that only defines `plan`; the rest is inherited from `forerun.contracts.Policy`."""

    options: type[Any] = NoOptions
