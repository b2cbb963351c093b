"""Exactness by enumeration, of the shipped rules and the sampler on small vocabularies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from time import perf_counter

from forerun.contracts import Verifier
from forerun.core import Exactness, Request, Tree
from forerun.params import SamplingParams
from forerun.progress import report
from forerun.testing.enumeration import WarpedRows, drawn_drafts
from forerun.testing.toy import ToyModel
from forerun.testing.verifier_check import BOUND, Case, Enumeration, default_cases, enumerate_rule

_SHAPES = ((-1, 0), (-1, 0, 1), (-1, -1), (-1, -1, 0))
_PROMPT = [1, 2, 0]


@dataclass(frozen=True, kw_only=True)
class RuleEnumeration(Enumeration):
    """The enumeration of one rule.

    Args:
        rule: name of the rule.
        level: exactness level that the rule promises. For an approximate rule, the enumeration
            measures its deviation.
        passed: True if there were cases and no deviation is more than rounding.
    """

    rule: str
    level: Exactness
    passed: bool


@dataclass(frozen=True)
class Enumerations:
    """The enumerations of several rules.

    Args:
        rules: the result for each rule.
        passed: True if all rules passed.
        cases, largest_deviation: sum and maximum over the rules.
        bound: largest deviation of a probability that counts as rounding in float64.
        seconds: time of all enumerations.
    """

    rules: tuple[RuleEnumeration, ...]
    passed: bool
    cases: int
    largest_deviation: float
    bound: float
    seconds: float


def by_enumeration(rules: Sequence[Verifier], params: SamplingParams) -> Enumerations:
    """Enumerate rules over random rows, and over rows from the sampler under `params`.

    Args:
        rules: rules to enumerate.
        params: the user's sampling parameters; tokens outside the small vocabularies are ignored.
    """
    started, results = perf_counter(), list[RuleEnumeration]()
    for rule in rules:
        report("enumeration", len(results), len(rules))
        result = enumerate_rule(rule, chain(default_cases(), sampler_cases(params)))
        passed = result.cases > 0 and result.largest_deviation <= BOUND
        level = rule.exactness
        results.append(RuleEnumeration(**vars(result), rule=rule.name, level=level, passed=passed))
    return Enumerations(
        tuple(results),
        passed=all(result.passed for result in results),
        cases=sum(result.cases for result in results),
        largest_deviation=max(result.largest_deviation for result in results),
        bound=BOUND,
        seconds=perf_counter() - started,
    )


def sampler_cases(params: SamplingParams) -> Iterator[Case]:
    """Cases in which the shipped sampler makes the rows of both target and draft."""
    for vocab_size in (3, 4):
        own = small(params, vocab_size)
        request = Request(0, list(_PROMPT), len(_PROMPT) - 1, own, seed=0)
        target = WarpedRows(ToyModel(vocab_size, sharpness=1.0), request)
        draft = WarpedRows(ToyModel(vocab_size, sharpness=1.0, noise=0.8), request)
        for shape in _SHAPES:
            drafts = tuple(drawn_drafts(draft, shape))
            # Some sampling parameters leave too few tokens for a tree.
            if drafts:
                yield Case("sampler", target, drafts, Tree(shape).depth + 1)


def small(params: SamplingParams, vocab_size: int) -> SamplingParams:
    """Sampling parameters without their references to tokens outside a small vocabulary."""
    allowed = None
    if params.allowed_token_ids is not None:
        allowed = tuple(token for token in params.allowed_token_ids if token < vocab_size) or None
    banned = tuple(token for token in params.banned_token_ids if token < vocab_size)
    if len(set(banned)) == vocab_size or set(allowed or ()) & set(banned):
        banned = ()
    return replace(
        params,
        allowed_token_ids=allowed,
        banned_token_ids=banned,
        logit_bias={token: bias for token, bias in params.logit_bias.items() if token < vocab_size},
        mask=None,
        seed=None,
    )
