"""Verification rules of an engine, watched while they verify."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from forerun.contracts import Verifier
from forerun.core import Draft, Request, Verdict
from forerun.engine.engine import Engine
from forerun.randomness import Randomness
from forerun.verification import AUTO, RULES, TargetRows, make_rule


@dataclass(frozen=True)
class VerifiedDraft:
    """A draft with its verdict.

    Args:
        rule: the rule that verified it.
        draft, request, verdict: of the round.
        rows: the target's rows of the whole batch.
        index: of the draft in the batch.
    """

    rule: Verifier
    draft: Draft
    request: Request
    verdict: Verdict
    rows: TargetRows
    index: int

    @property
    def target_probs(self) -> Tensor:
        """The target's rows of this draft, [n + 1, V]."""
        return self.rows.probs(self.index)


Observe = Callable[[VerifiedDraft], Verdict]
"""Function from a verified draft to the verdict to use."""


class WatchedRule:
    """A rule that wraps another one: an observer sees each verdict, and may shorten it."""

    def __init__(self, rule: Verifier, observe: Observe) -> None:
        self.rule, self.observe = rule, observe
        self.name, self.exactness = rule.name, rule.exactness

    def verify(
        self,
        drafts: Sequence[Draft],
        rows: TargetRows,
        requests: Sequence[Request],
        randomness: Randomness,
    ) -> list[Verdict]:
        verdicts = self.rule.verify(drafts, rows, requests, randomness)
        parts = enumerate(zip(drafts, requests, verdicts, strict=True))
        return [self.observe(VerifiedDraft(self.rule, *part, rows, index)) for index, part in parts]


@contextmanager
def watched_rules(engine: Engine, observe: Observe) -> Iterator[None]:
    """Wrap every rule that an engine may use while the block runs."""
    own = dict(engine.rules)
    named = engine.config.rejection_sample_method
    for name in {*RULES, *own, *([named] if named != AUTO else [])}:
        engine.rules[name] = WatchedRule(own.get(name) or make_rule(name), observe)
    try:
        yield
    finally:
        engine.rules.clear()
        engine.rules.update(own)
