"""Verification rules: they turn drafts and the target's rows into verdicts, exactly and enumerably."""

from __future__ import annotations

from torch import Tensor

from forerun.contracts import Verifier
from forerun.core import Draft, Drawing, Request, Verdict
from forerun.randomness import Randomness
from forerun.registry import Registry
from forerun.verification.block import BlockRule
from forerun.verification.coupled import CoupledRule
from forerun.verification.rows import TargetRows
from forerun.verification.token import TokenRule
from forerun.verification.traversal import TraversalRule
from forerun.verification.typical import TypicalRule

__all__ = [
    "AUTO",
    "FOR_DRAWN",
    "RULES",
    "TargetRows",
    "drawing_for",
    "make_rule",
    "resolve",
    "rule_names",
    "verify_one",
]

AUTO = "auto"

RULES = Registry(
    "rejection_sample_method",
    "forerun.verifiers",
    {
        "token": TokenRule,
        "standard": TokenRule,
        "block": BlockRule,
        "traversal": TraversalRule,
        "coupled": CoupledRule,
        "typical": TypicalRule,
    },
)
FOR_DRAWN = ("block", "traversal")
"""Rules that accept only drawn drafts."""


def rule_names() -> list[str]:
    """All names that `make_rule` knows, and `auto`."""
    return [AUTO, *RULES.names()]


def make_rule(name: str) -> Verifier:
    """The rule called `name`.

    Raises:
        UnknownNameError: listing the rules.
    """
    rule: Verifier = RULES.find(name)()
    return rule


def verify_one(
    rule: Verifier, draft: Draft, target_probs: Tensor, request: Request, randomness: Randomness
) -> Verdict:
    """Verify one draft against rows that are probabilities already, [n + 1, V]."""
    rows = TargetRows.of_probs([target_probs], [draft], [request])
    return rule.verify([draft], rows, [request], randomness)[0]


def resolve(name: str, request: Request, draft: Draft) -> str:
    """Name of the rule that verifies this draft if `name` was asked for.

    `auto` is coupled for requests with a seed, token for point masses, block for drawn chains,
    traversal for drawn trees. A rule for drawn drafts leaves point masses (greedy requests) to the
    token rule.
    """
    if name == AUTO:
        if request.params.seed is not None:
            return "coupled"
        name = "block" if draft.tree.is_chain else "traversal"
    point_mass = draft.probs is None and len(draft) > 0
    return "token" if name in FOR_DRAWN and point_mass else name


def drawing_for(name: str, request: Request) -> Drawing:
    """The way to draw drafts for the rule `name`, if the drafter can choose."""
    if request.params.greedy:
        return Drawing.GREEDY
    coupled = name == "coupled" or (name == AUTO and request.params.seed is not None)
    return Drawing.COUPLED if coupled else Drawing.SAMPLED
