"""One round: plan, draft, run the target once, verify, keep what was accepted."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from forerun.contracts import Cache, CausalLM, Drafter, Policy, Verifier
from forerun.core import NO_DRAFT, Draft, ForwardOutput, Plan, Sequence, Verdict
from forerun.engine.requests import Running, token_logprobs
from forerun.models.running import run_rows
from forerun.randomness import Randomness
from forerun.sampling import log_probs, warp_draft
from forerun.verification import judge, make_rule, resolve

NOTHING = Verdict((), (), ())

OnRound = Callable[[Sequence, Draft, Verdict], None]
"""Told what was drafted for a sequence in a round and what became of it, before it is extended."""


@dataclass
class Parts:
    """What a round works with."""

    target: CausalLM
    cache: Cache
    randomness: Randomness
    rule: str
    drafter: Drafter | None = None
    policy: Policy | None = None
    rules: dict[str, Verifier] = field(default_factory=dict)
    on_round: OnRound | None = None

    def rule_for(self, sequence: Sequence, draft: Draft) -> Verifier:
        return self.rule_named(resolve(self.rule, sequence, draft))

    def rule_named(self, name: str) -> Verifier:
        if name not in self.rules:
            self.rules[name] = make_rule(name)
        return self.rules[name]


def run_round(parts: Parts, running: Several[Running], plans: Several[Plan]) -> list[Verdict]:
    """Run one round over a batch; every sequence gains at least one token, or fails by itself.

    Returns:
        One verdict a sequence; one that has failed emits nothing.
    """
    sequences = [one.sequence for one in running]
    for sequence in sequences:
        assert parts.cache.length(sequence.row) == len(sequence) - 1
    started = perf_counter()
    drafts = _propose(parts, sequences, plans)
    drafted = perf_counter()
    output = _run_target(parts, sequences, drafts)
    assert output.logits is not None
    ran = perf_counter()
    verdicts = []
    for row, (one, draft) in enumerate(zip(running, drafts, strict=True)):
        verdict = _verify(parts, one, draft, output.logits[row, : len(draft) + 1])
        verdicts.append(verdict)
        if parts.on_round is not None:
            parts.on_round(one.sequence, draft, verdict)
        if verdict.token_ids:
            parts.cache.keep(one.sequence.row, len(one.sequence), verdict.path)
            one.sequence.extend(verdict.token_ids)
            one.origins.extend(verdict.origins)
            one.stats.count(draft, verdict)
            assert parts.cache.length(one.sequence.row) == len(one.sequence) - 1
    if parts.drafter is not None:
        parts.drafter.observe(sequences, drafts, verdicts, output)
    ended = perf_counter()
    if parts.policy is not None:
        parts.policy.observe(sequences, drafts, verdicts, ended - started)
    _share_time(running, drafted - started, ran - drafted, ended - ran)
    return verdicts


def _propose(parts: Parts, sequences: list[Sequence], plans: Several[Plan]) -> list[Draft]:
    if parts.drafter is None or not any(plan.num_tokens for plan in plans):
        return [NO_DRAFT] * len(sequences)
    return parts.drafter.propose(sequences, plans, parts.randomness)


def _run_target(parts: Parts, sequences: list[Sequence], drafts: list[Draft]) -> ForwardOutput:
    """One forward pass over the newest token and the draft of every sequence, through the layers
    that the drafter has not run already."""
    positions = []
    for sequence, draft in zip(sequences, drafts, strict=True):
        length = len(sequence)
        positions.append([length - 1, *(length + depth for depth in draft.depths)])
    return run_rows(
        parts.target,
        parts.cache,
        [sequence.row for sequence in sequences],
        [[s.token_ids[-1], *draft.token_ids] for s, draft in zip(sequences, drafts, strict=True)],
        positions=positions,
        tree_mask=_tree_mask(drafts, parts.target.device),
        hidden_layers=parts.drafter.hidden_layers if parts.drafter is not None else (),
        **_after_shared_layers(parts, drafts),
    )


def _after_shared_layers(parts: Parts, drafts: list[Draft]) -> dict[str, Any]:
    """What is left to run where the drafter has run the first layers of the target itself."""
    states = [draft.hidden for draft in drafts if draft.hidden is not None]
    if not states or parts.drafter is None:
        return {}
    assert len(states) == len(drafts), "the first layers were run for all sequences or for none"
    return {
        "layers": range(parts.drafter.shared_layers, parts.target.num_layers),
        "hidden_in": pad_sequence(states, batch_first=True),
    }


def _tree_mask(drafts: list[Draft], device: torch.device) -> Tensor | None:
    """Who sees whom among [last, *nodes], bool [B, n, n]; None where all drafts are chains."""
    if all(draft.is_chain for draft in drafts):
        return None
    width = max(len(draft) for draft in drafts) + 1
    mask = torch.zeros(len(drafts), width, width, dtype=torch.bool)
    for row, draft in zip(mask, drafts, strict=True):
        row[: len(draft) + 1, : len(draft) + 1] = draft.attention_mask()
    return mask.to(device)


def _verify(parts: Parts, one: Running, draft: Draft, logits: Tensor) -> Verdict:
    """Verify one draft against its rows of logits [n + 1, V] and end it where the request ends.

    An error here (a mask that allows nothing, a hook that fails) is the request's own: it ends
    this one and leaves the rest of the batch alone.
    """
    sequence, count = one.sequence, one.sequence.params.logprobs
    probs = None
    try:
        rule = parts.rule_for(sequence, draft)
        if count is None:
            verdict = judge(rule, draft, logits, sequence, parts.randomness)
        else:
            probs = warp_draft(logits, sequence, draft)
            verdict = rule.verify(draft, probs, sequence, parts.randomness)
    except Exception as error:
        one.fail(error)
        return NOTHING
    verdict = one.cut(verdict)
    if count is not None and probs is not None:
        rows = [0, *(node + 1 for node in verdict.path)][: len(verdict.token_ids)]
        log_rows = log_probs(logits[rows], probs[rows], sequence.params.logprobs_mode)
        one.logprobs += token_logprobs(log_rows, verdict.token_ids, count)
    return verdict


def _share_time(running: Several[Running], draft: float, target: float, verify: float) -> None:
    share = 1.0 / len(running)
    for one in running:
        stats = one.stats
        stats.draft_seconds += draft * share
        stats.target_seconds += target * share
        stats.verify_seconds += verify * share
        stats.seconds += (draft + target + verify) * share
