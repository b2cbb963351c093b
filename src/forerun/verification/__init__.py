"""Verification rules: they turn drafts and the target's rows into verdicts, exactly and enumerably."""

from __future__ import annotations

from torch import Tensor

from forerun.contracts import Verifier
from forerun.core import Draft, Drawing, Request, Verdict
from forerun.randomness import Randomness
from forerun.registry import Registry
from forerun.verification.coupled import CoupledRule
from forerun.verification.target_rows import TargetRows
from forerun.verification.token import TokenRule
from forerun.verification.traversal import BlockRule, TraversalRule
from forerun.verification.typical import TypicalRule

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


def rule_for(name: str, request: Request) -> str:
    """The rule to plan for if `name` was asked for: `auto` is coupled for requests with a seed."""
    return "coupled" if name == AUTO and request.params.seed is not None else name


def drawing_for(rule: str, request: Request) -> Drawing:
    """The way to draw drafts for a planned rule, if the drafter can choose."""
    if request.params.greedy:
        return Drawing.GREEDY
    return Drawing.COUPLED if rule == "coupled" else Drawing.SAMPLED


def rule_of(rule: str, draft: Draft) -> str:
    """The rule that verifies a draft, from the planned one.

    `auto` is token for point masses, block for drawn chains, traversal for drawn trees. A rule for
    drawn drafts leaves point masses (greedy requests) to the token rule.
    """
    if rule == AUTO:
        rule = "block" if draft.tree.is_chain else "traversal"
    point_mass = draft.probs is None and len(draft) > 0
    return "token" if rule in FOR_DRAWN and point_mass else rule
