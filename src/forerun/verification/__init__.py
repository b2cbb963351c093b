"""The rules that turn a draft and the target's rows into a verdict: exact, and enumerable."""

from __future__ import annotations

from torch import Tensor

from forerun import registry
from forerun.contracts import Verifier
from forerun.core import Draft, Drawing, Sequence, Verdict
from forerun.randomness import Randomness
from forerun.sampling import warp_draft
from forerun.verification import compiled
from forerun.verification.block import BlockRule
from forerun.verification.coupled import CoupledRule
from forerun.verification.token import TokenRule
from forerun.verification.traversal import TraversalRule
from forerun.verification.typical import TypicalRule

GROUP = "forerun.verifiers"
AUTO = "auto"

RULES: dict[str, type[Verifier]] = {
    "token": TokenRule,
    "standard": TokenRule,
    "block": BlockRule,
    "traversal": TraversalRule,
    "coupled": CoupledRule,
    "typical": TypicalRule,
}
FOR_DRAWN = ("block", "traversal")
"""Rules that take nothing but drawn drafts."""


def rule_names() -> list[str]:
    """All names that `make_rule` knows, and `auto`."""
    return [AUTO, *registry.names(RULES, GROUP)]


def make_rule(name: str) -> Verifier:
    """The rule called `name`.

    Raises:
        UnknownNameError: listing the rules.
    """
    rule: Verifier = registry.find("rejection_sample_method", name, {**RULES}, GROUP)()
    return rule


def judge(
    rule: Verifier, draft: Draft, logits: Tensor, sequence: Sequence, randomness: Randomness
) -> Verdict:
    """Warp the target's logits [n + 1, V] as the request asks and verify the draft against them: in
    one call of the kernels where they know the rule and all that is asked, else step by step.

    Raises:
        DistributionError: for a row that is NaN or infinite, or that leaves no token possible.
    """
    verdict, name = None, compiled.name_of(rule)
    if name is not None:
        verdict = compiled.judge(name, draft, logits, sequence, randomness)
    if verdict is None:
        target_probs = warp_draft(logits, sequence, draft)
        verdict = rule.verify(draft, target_probs, sequence, randomness)
    return verdict


def resolve(name: str, sequence: Sequence, draft: Draft) -> str:
    """The rule that `name` means for this draft: `auto` is coupled for requests with a seed, token
    for point masses, block for drawn chains, traversal for drawn trees. A rule for drawn drafts
    leaves point masses (greedy requests, plain rounds) to the token rule."""
    if name == AUTO:
        if sequence.params.seed is not None:
            return "coupled"
        name = "block" if draft.is_chain else "traversal"
    return "token" if name in FOR_DRAWN and draft.probs is None else name


def drawing_for(name: str, sequence: Sequence) -> Drawing:
    """How drafts must be drawn for the rule `name`, where the drafter can choose."""
    if sequence.params.greedy:
        return Drawing.TOP
    coupled = name == "coupled" or (name == AUTO and sequence.params.seed is not None)
    return Drawing.COUPLE if coupled else Drawing.DRAW
