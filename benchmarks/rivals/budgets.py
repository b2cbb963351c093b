"""Policies that draft as far as they can and choose what of it to verify: vLLM's and DSpark's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, starmap
from operator import mul

import numpy as np

from benchmarks.rivals.costs import Seconds, StageCosts
from benchmarks.rivals.replay import Offer, Outcome, ReplayPolicy, View
from benchmarks.rivals.rounds import DraftChoice

# vLLM 0.33, v1/worker/gpu/spec_decode/acceptance_estimator.py.
WEIGHT, BIAS, MOST_LOGIT = 0.5, -0.2, 40.0
EVERY, DAMPING, RIDGE, FULL_ROUNDS = 100, 50.0, 1e-3, 300
# Rounds that the confidences are old which a budget is chosen by.
AGE = 2


class Estimator:
    """The probability that a token is accepted where those before it are: a logistic function of the logit
    of its row's largest probability, with a bias for each position, fitted by Newton's steps."""

    def __init__(self, longest: int) -> None:
        self.parameters = np.array([WEIGHT, *[BIAS] * longest])
        self._curvature = np.zeros((longest + 1, longest + 1))
        self._slope = np.zeros(longest + 1)
        self._rounds = 0

    def probabilities(self, offer: Offer) -> list[float]:
        """Of each drafted token."""
        return list(starmap(self._probability, enumerate(self._logits(offer))))

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            tested = min(outcome.accepted + 1, outcome.verified)
            for position, logit in enumerate(self._logits(outcome.offer)[:tested]):
                self._add(position, logit, accepted=position < outcome.accepted)
        self._rounds += 1
        if self._rounds % EVERY == 0:
            size = len(self.parameters)
            damped = self._curvature + (RIDGE + DAMPING) * np.eye(size)
            self.parameters += np.linalg.solve(damped, self._slope)
            self._curvature, self._slope = np.zeros((size, size)), np.zeros(size)

    @property
    def verifies_all(self) -> bool:
        """Whether it has to see whole drafts first."""
        return self._rounds < FULL_ROUNDS

    def _logits(self, offer: Offer) -> list[float]:
        # A point mass has no row: its position alone counts.
        probs = offer.token_probs or [0.5] * offer.drafted
        return [_logit(probability) for probability in probs[: offer.drafted]]

    def _probability(self, position: int, logit: float) -> float:
        value = self.parameters[0] * logit + self.parameters[position + 1]
        return float(1.0 / (1.0 + math.exp(-value)))

    def _add(self, position: int, logit: float, accepted: bool) -> None:
        chance = self._probability(position, logit)
        row = np.zeros(len(self.parameters))
        row[0], row[position + 1] = logit, 1.0
        self._curvature += chance * (1.0 - chance) * np.outer(row, row)
        self._slope += (accepted - chance) * row


def _logit(probability: float) -> float:
    if not 0.0 < probability < 1.0:
        return MOST_LOGIT if probability >= 1.0 else -MOST_LOGIT
    return max(-MOST_LOGIT, min(MOST_LOGIT, math.log(probability / (1.0 - probability))))


class AdaptiveVerification(ReplayPolicy):
    """vLLM: verify as many of the drafted tokens of the whole batch as give most tokens a second, by
    profiled times and the confidences of two rounds before, and of them those that are most probable to
    be reached and accepted now. The drafts are always as long as they can be."""

    how = "vLLM's adaptive verification"

    def __init__(self, candidate: str, longest: int, costs: StageCosts) -> None:
        self.candidate, self.longest, self.costs = candidate, longest, costs
        self.name = f"{candidate}, {self.how}"
        self.estimator = Estimator(longest)
        # By request: what its drafts were expected to survive in the last rounds.
        self._old: dict[int, list[list[float]]] = {}

    def choose(self, views: Sequence[View]) -> list[DraftChoice]:
        return [DraftChoice(self.candidate, self.longest)] * len(views)

    def keep(self, offers: Sequence[Offer]) -> list[int]:
        fresh = [list(accumulate(self.estimator.probabilities(o), mul)) for o in offers]
        stale = []
        for offer, own in zip(offers, fresh, strict=True):
            history = self._old.setdefault(offer.view.request, [[1.0] * self.longest] * AGE)
            stale.append(history[0][: offer.drafted])
            self._old[offer.view.request] = [*history[1:], own + [0.0] * (self.longest - len(own))]
        if self.estimator.verifies_all:
            return [offer.drafted for offer in offers]
        context = sum(offer.view.context for offer in offers) / len(offers)
        budget = self.budget(
            sorted((s for row in stale for s in row), reverse=True), len(offers), context
        )
        ranked = sorted(
            ((score, index) for index, row in enumerate(fresh) for score in row), reverse=True
        )
        budgets = [0] * len(offers)
        for _, index in ranked[:budget]:
            budgets[index] += 1
        return budgets

    def budget(self, survival: list[float], count: int, context: float) -> int:
        """Tokens to verify, given the probabilities that each is reached and accepted, best first."""
        drafting = self.costs.drafting(self.longest, count, context)
        tokens = [count + total for total in accumulate(survival, initial=0.0)]
        rates = [
            expected / (drafting + self.costs.verifying(size / count, count, context).total)
            for size, expected in enumerate(tokens)
        ]
        return max(range(len(rates)), key=rates.__getitem__)

    def observe(self, outcomes: Sequence[Outcome], seconds: Seconds) -> None:
        self.estimator.observe(outcomes)

    def release(self, view: View) -> None:
        self._old.pop(view.request, None)


class Algorithm1(AdaptiveVerification):
    """DSpark: admit tokens as long as expected tokens times steps a second of the target rise, and stop
    at the first that does not."""

    how = "DSpark's algorithm 1"

    def budget(self, survival: list[float], count: int, context: float) -> int:
        best = 0.0
        for size, expected in enumerate(accumulate(survival, initial=float(count))):
            rate = expected / self.costs.verifying(size / count, count, context).total
            if rate < best:
                return size - 1
            best = rate
        return len(survival)
