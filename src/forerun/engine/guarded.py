"""A guarded drafter: its errors cost a request its draft and affect nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from forerun.contracts import Cache, CausalLM, Drafter
from forerun.core import NO_DRAFT, Draft, ForwardOutput, PlainReason, Plan, Request, Verdict
from forerun.errors import ConfigError
from forerun.randomness import Randomness

if TYPE_CHECKING:
    from forerun.engine.requests import Running

logger = logging.getLogger(__name__)

# Errors of the drafter after which a request is decoded plainly, and errors in a row after which all are.
MOST_FAILURES_OF_REQUEST, MOST_FAILURES = 3, 16

_FAILED = replace(NO_DRAFT, reason=PlainReason.FAILED)


def trim(cache: Cache, request: Request) -> None:
    """Cut a request's row to its committed tokens."""
    cache.trim(request.row, min(cache.length(request.row), len(request) - 1))


class GuardedDrafter:
    """Calls a drafter, logs its name when it fails, and leaves it out after repeated failures.

    Args:
        drafter: the drafter.
        target: the target that it drafts for.
        cache: the target's cache, which is cut to the committed tokens if the drafter fails.
    """

    def __init__(self, drafter: Drafter, target: CausalLM, cache: Cache) -> None:
        self.drafter = drafter
        self._target, self._cache = target, cache
        # Failures since the last round that drafted without one; failure in this round; failure logged.
        self._failures, self._has_failed, self._is_named = 0, False, False

    def leaves_out(self, running: Running) -> bool:
        """True if the drafter has failed too often to draft for a request."""
        return running.drafter_failures >= MOST_FAILURES_OF_REQUEST or self._is_out

    def propose(
        self, batch: Sequence[Running], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        """The drafts of a batch; after an error the drafter is called for each request alone.

        Raises:
            ConfigError: for drafts that were not planned.
        """
        self._has_failed = False
        if not any(plan.num_tokens for plan in plans):
            return [NO_DRAFT] * len(batch)
        return self._propose(batch, plans, randomness)

    def _propose(
        self, batch: Sequence[Running], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        requests = [running.request for running in batch]
        try:
            drafts = self.drafter.propose(requests, plans, randomness)
        except Exception as error:
            for request in requests:
                # A drafter that runs the target's first layers may have left tokens there.
                trim(self._cache, request)
            pairs = list(zip(batch, plans, strict=True))
            if len(batch) > 1 and not self.drafter.shared_layers:
                return [self._propose([running], [plan], randomness)[0] for running, plan in pairs]
            for running, plan in pairs:
                if plan.num_tokens:
                    self._note(error, running)
            return [_FAILED] * len(batch)
        self._check(drafts, plans)
        return drafts

    def observe(
        self,
        batch: Sequence[Running],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        output: ForwardOutput,
    ) -> None:
        """Let the drafter observe the outcome of a round."""
        if self._is_out:
            return
        try:
            self.drafter.observe([running.request for running in batch], drafts, verdicts, output)
        except Exception as error:
            for running in batch:
                self._note(error, running)
        if not self._has_failed and any(len(draft) and not draft.forced for draft in drafts):
            self._failures = 0

    def observe_prefill(self, running: Running, start: int, output: ForwardOutput) -> None:
        """Let the drafter observe the tokens of a prompt from `start` on."""
        try:
            self.drafter.observe_prefill(running.request, start, output)
        except Exception as error:
            self._note(error, running)

    def release(self, running: Running) -> None:
        """Let the drafter forget a request that has ended."""
        try:
            self.drafter.release(running.request)
        except Exception as error:
            self._note(error, running)

    @property
    def _is_out(self) -> bool:
        return self._failures >= MOST_FAILURES

    def _note(self, error: Exception, running: Running) -> None:
        running.drafter_failures += 1
        self._failures += 1
        name = self.drafter.name
        if not self._is_named:
            logger.warning("%s failed (%r); the request goes on without its draft.", name, error)
        self._is_named = self._has_failed = True
        if self._failures == MOST_FAILURES:
            logger.warning("%s failed %d times in a row and is left out.", name, MOST_FAILURES)

    def _check(self, drafts: list[Draft], plans: Sequence[Plan]) -> None:
        """Refuse drafts that were not planned.

        Raises:
            ConfigError: naming the drafter.
        """
        name, vocab_size = self.drafter.name, self._target.vocab_size
        if not isinstance(drafts, list) or len(drafts) != len(plans):
            raise ConfigError(f"{name} must propose a list of {len(plans)} drafts, one a request.")
        for draft, plan in zip(drafts, plans, strict=True):
            if draft.tree.depth > plan.num_tokens:
                raise ConfigError(
                    f"{name} proposed {draft.tree.depth} tokens along a path where {plan.num_tokens} "
                    "were planned; propose no more than that."
                )
            ids = draft.token_ids
            if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
                raise ConfigError(
                    f"{name} proposed tokens outside the vocabulary; the ids of {self._target.name} "
                    f"are 0 to {vocab_size - 1}."
                )
