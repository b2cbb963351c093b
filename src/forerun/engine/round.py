"""One round: plan, draft, run the target once, verify, keep the accepted tokens, learn.

A round is all or nothing: until a request's outcome is committed, an exception or an interruption
leaves the request and its rows in the caches unchanged, and the next round continues from there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from forerun.contracts import Cache, Drafter, Verifier
from forerun.core import (
    NO_DRAFT,
    Batch,
    Draft,
    Drawing,
    ForwardOutput,
    PlainReason,
    Plan,
    Request,
    RoundTimes,
    Verdict,
)
from forerun.engine.guarded import trim
from forerun.engine.parts import Parts, TimedRound
from forerun.engine.requests import Running, TokenLogprob, token_logprobs
from forerun.errors import ConfigError
from forerun.randomness import Randomness
from forerun.trees.plans import plan_tree
from forerun.verification import TargetRows, drawing_for, resolve
from forerun.verification.explain import explain

logger = logging.getLogger(__name__)

_ASKED, _SHORT = Plan(0, reason=PlainReason.ASKED), Plan(0, reason=PlainReason.SHORT)
_EVICTS, _FAILED = Plan(0, reason=PlainReason.EVICTS), Plan(0, reason=PlainReason.FAILED)


def run_round(parts: Parts, batch: Sequence[Running]) -> None:
    """Run one round over a batch: every request gains at least one token, or fails alone.

    Args:
        parts: the parts to work with.
        batch: requests that have all their tokens but the newest in the cache.
    """
    requests = [running.request for running in batch]
    started = perf_counter()
    if parts.evicts is not None:
        for request in requests:
            parts.evicts.evict(request.row)
    plans = _plan(parts, batch)
    drafts = _propose(parts, batch, plans)
    drafted = perf_counter()
    output = _run_target(parts, requests, drafts)
    ran = perf_counter()
    rows, verdicts = _verify(parts, drafts, output, requests)
    outcomes = [running.outcome(v) for running, v in zip(batch, verdicts, strict=True)]
    verdicts = [outcome.verdict for outcome in outcomes]
    logprobs = [_logprobs(rows, index, verdict) for index, verdict in enumerate(verdicts)]
    _show(parts, rows, verdicts)
    for running, outcome, values, draft in zip(batch, outcomes, logprobs, drafts, strict=True):
        request = running.request
        parts.cache.keep(request.row, len(request), outcome.verdict.path)
        running.commit(outcome, values, draft)
    try:
        if parts.guarded is not None:
            parts.guarded.observe(batch, drafts, verdicts, output)
    finally:
        times = RoundTimes(drafted - started, ran - drafted, perf_counter() - ran)
        done = TimedRound(requests, plans, drafts, verdicts, times)
        _count(batch, done)
    if parts.policy is not None:
        parts.policy.observe(requests, drafts, verdicts, times)
    if parts.on_timed is not None:
        parts.on_timed(done)


def settle(cache: Cache, running: Running) -> None:
    """Restore a request and its row to the committed state after a round was interrupted."""
    running.settle()
    trim(cache, running.request)


def _plan(parts: Parts, batch: Sequence[Running]) -> list[Plan]:
    """The policy's plans, cut to the tokens that can still be emitted, with the tree and the way to draw."""
    if parts.policy is None or parts.guarded is None:
        return [_ASKED] * len(batch)
    guarded, drafter = parts.guarded, parts.guarded.drafter
    plans = []
    planned = parts.policy.plan([running.request for running in batch])
    if len(planned) != len(batch):
        raise ConfigError(
            f"policy {parts.policy.name!r} made {len(planned)} plans for {len(batch)} requests; "
            "make one for each."
        )
    for running, plan in zip(batch, planned, strict=True):
        if not running.request.speculative or not plan.num_tokens:
            plans.append(plan if running.request.speculative else _ASKED)
            continue
        # Every round emits one token beyond the draft; tokens beyond the limit would be discarded.
        most = min(plan.num_tokens, running.room - 1)
        left = None if parts.evicts is None else parts.evicts.until_eviction(running.request.row)
        if most < 1 or left == 1 or guarded.leaves_out(running):
            plans.append(_SHORT if most < 1 else _EVICTS if left == 1 else _FAILED)
            continue
        most = most if left is None else min(most, left - 1)
        drawing = _drawing(parts, drafter, running.request)
        nodes, acceptance = parts.config.num_tree_nodes, drafter.acceptance
        made = plan_tree(parts.tree, nodes, most, drawing, acceptance)
        if plan.member is not None or plan.whole:
            made = replace(made, member=plan.member, whole=plan.whole)
        plans.append(made)
    return plans


def _drawing(parts: Parts, drafter: Drafter, request: Request) -> Drawing:
    wanted = drawing_for(parts.config.rejection_sample_method, request)
    drawn = parts.config.draft_sample_method != "greedy" and wanted in drafter.drawings
    return wanted if drawn else Drawing.GREEDY


def _propose(parts: Parts, batch: Sequence[Running], plans: list[Plan]) -> list[Draft]:
    if parts.guarded is None or not any(plan.num_tokens for plan in plans):
        return [NO_DRAFT] * len(batch)
    return parts.guarded.propose(batch, plans, parts.randomness)


def _run_target(parts: Parts, requests: list[Request], drafts: list[Draft]) -> ForwardOutput:
    """Run one forward pass over the newest token and the draft of every request.

    It runs only the layers that the drafter has not already run.
    """
    layers, hidden_in = _after_shared_layers(parts, drafts)
    batch = Batch.after(
        parts.cache,
        [request.row for request in requests],
        [[r.token_ids[-1], *draft.token_ids] for r, draft in zip(requests, drafts, strict=True)],
        trees=[draft.tree.rooted for draft in drafts],
        layers=layers,
        hidden_in=hidden_in,
        hidden_layers=parts.drafter.hidden_layers if parts.drafter is not None else (),
    )
    return parts.target.forward(batch, parts.cache)


def _after_shared_layers(parts: Parts, drafts: list[Draft]) -> tuple[range | None, Tensor | None]:
    """The layers left to run, and their input, if the drafter has run the target's first layers itself."""
    states = [draft.hidden for draft in drafts if draft.hidden is not None]
    if not states or parts.drafter is None:
        return None, None
    assert len(states) == len(drafts), "the first layers were run for all requests or for none"
    layers = range(parts.drafter.shared_layers, parts.target.num_layers)
    return layers, pad_sequence(states, batch_first=True)


def _verify(
    parts: Parts, drafts: list[Draft], output: ForwardOutput, requests: list[Request]
) -> tuple[TargetRows, list[Verdict]]:
    """Verify all drafts, those under the same rule together."""
    assert output.logits is not None
    rows = TargetRows(output.logits, drafts, requests)
    groups: dict[str, list[int]] = {}
    for index, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
        groups.setdefault(resolve(parts.config.rejection_sample_method, request, draft), []).append(
            index
        )
    verdicts: dict[int, Verdict] = {}
    for name, indices in groups.items():
        made = _verify_by(parts.rule_named(name), rows, indices, parts.randomness)
        verdicts |= zip(indices, made, strict=True)
    return rows, [verdicts[index] for index in range(len(drafts))]


def _verify_by(
    rule: Verifier, rows: TargetRows, indices: list[int], randomness: Randomness
) -> list[Verdict]:
    """Verdicts of a rule on some of the drafts; an error in one of them concerns that request alone."""
    part = rows.of(indices)
    try:
        return rule.verify(part.drafts, part, part.requests, randomness)
    except Exception as error:
        if len(indices) == 1:
            return [Verdict.up_to(part.drafts[0], -1, error)]
        logger.warning("%s failed for a batch, now draft by draft: %r", rule.name, error)
        return [_verify_by(rule, rows, [index], randomness)[0] for index in indices]
    finally:
        rows.adopt(part, indices)


def _show(parts: Parts, rows: TargetRows, verdicts: list[Verdict]) -> None:
    """Call the hooks with the round; explanations are computed only for their hook."""
    if parts.on_round is None and parts.on_explained is None:
        return
    for index, (request, draft) in enumerate(zip(rows.requests, rows.drafts, strict=True)):
        if parts.on_round is not None:
            parts.on_round(request, draft, verdicts[index])
        if parts.on_explained is not None:
            rule = resolve(parts.config.rejection_sample_method, request, draft)
            explanation = explain(parts.rule_named(rule), rows, index, parts.randomness)
            parts.on_explained(request, draft, verdicts[index], explanation)


def _logprobs(rows: TargetRows, index: int, verdict: Verdict) -> list[TokenLogprob]:
    """Log probabilities of the tokens of a verdict, if its request wants them."""
    params = rows.requests[index].params
    if params.logprobs is None or not verdict.token_ids:
        return []
    nodes = [-1, *verdict.path][: len(verdict.token_ids)]
    values = torch.cat([rows.log_probs(index, node, params.logprobs_mode) for node in nodes])
    return token_logprobs(values, verdict.token_ids, params.logprobs)


def _count(batch: Sequence[Running], done: TimedRound) -> None:
    """Count the round; each request carries its share of the seconds by stage."""
    share = 1.0 / len(batch)
    for index, (running, reason) in enumerate(zip(batch, done.reasons, strict=True)):
        stats = running.stats
        if done.verdicts[index].token_ids:
            stats.count(done.drafts[index], done.verdicts[index], reason)
        stats.draft_seconds += share * done.times.draft
        stats.target_seconds += share * done.times.target
        stats.verify_seconds += share * done.times.verify
        stats.seconds += share * done.times.total
