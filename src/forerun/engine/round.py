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

from forerun.contracts import Cache, Verifier
from forerun.core import (
    MOST_NODES,
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
from forerun.engine.parts import ASKED, Parts, TimedRound
from forerun.engine.requests import Running, TokenLogprob, token_logprobs
from forerun.errors import ConfigError
from forerun.randomness import Randomness
from forerun.trees.search import plan_tree
from forerun.verification import TargetRows, drawing_for, rule_for, rule_of

logger = logging.getLogger(__name__)

_SHORT, _EVICTS = Plan(0, reason=PlainReason.SHORT), Plan(0, reason=PlainReason.EVICTS)
_FAILED = Plan(0, reason=PlainReason.FAILED)


def run_round(parts: Parts, batch: Sequence[Running]) -> None:
    """Run one round over a batch: every request gains at least one token, or fails alone.

    Args:
        parts: the parts to work with.
        batch: requests that have all their tokens but the newest in the cache.
    """
    requests = [running.request for running in batch]
    started = perf_counter()
    for request in requests:
        parts.eviction.evict(request.row)
    plans = _plan(parts, batch)
    drafts = parts.propose(batch, plans)
    drafts = [_forced(parts, *pair) for pair in zip(batch, plans, drafts, strict=True)]
    drafted = perf_counter()
    output = _run_target(parts, requests, drafts)
    ran = perf_counter()
    rules = [rule_of(plan.rule, draft) for plan, draft in zip(plans, drafts, strict=True)]
    rows, verdicts = _verify(parts, rules, drafts, output, requests)
    outcomes = [running.outcome(v) for running, v in zip(batch, verdicts, strict=True)]
    verdicts = [outcome.verdict for outcome in outcomes]
    logprobs = [_logprobs(rows, index, verdict) for index, verdict in enumerate(verdicts)]
    for running, outcome, values in zip(batch, outcomes, logprobs, strict=True):
        request = running.request
        parts.cache.keep(request.row, len(request), outcome.verdict.path)
        running.commit(outcome, values)
    try:
        parts.guarded.observe(batch, drafts, verdicts, output)
    finally:
        times = RoundTimes(drafted - started, ran - drafted, perf_counter() - ran)
        done = TimedRound(requests, plans, drafts, verdicts, times)
        _count(batch, done)
    parts.policy.observe(requests, drafts, verdicts, times)
    if parts.on_round is not None:
        parts.on_round(done)


def settle(cache: Cache, running: Running) -> None:
    """Restore a request and its row to the committed state after a round was interrupted."""
    running.settle()
    trim(cache, running.request)


def _plan(parts: Parts, batch: Sequence[Running]) -> list[Plan]:
    """The policy's plans, each with its rule and, if it drafts, with its drawing and tree."""
    planned = parts.policy.plan([running.request for running in batch])
    if len(planned) != len(batch):
        raise ConfigError(
            f"policy {parts.policy.name!r} made {len(planned)} plans for {len(batch)} requests; "
            "make one for each."
        )
    return [_complete(parts, *pair) for pair in zip(batch, planned, strict=True)]


def _complete(parts: Parts, running: Running, plan: Plan) -> Plan:
    """A plan cut to the tokens that can still be emitted, with its rule, drawing and tree."""
    request, config, drafter = running.request, parts.config, parts.drafter
    rule = rule_for(config.rejection_sample_method, request)
    most, left = min(plan.num_tokens, _limit(running)), parts.eviction.until_eviction(request.row)
    if not request.speculative:
        plan = ASKED
    elif plan.num_tokens and (most < 1 or left == 1 or parts.guarded.leaves_out(running)):
        plan = _SHORT if most < 1 else _EVICTS if left == 1 else _FAILED
    if not plan.num_tokens:
        return plan if plan.rule == rule else replace(plan, rule=rule)
    most = most if left is None else min(most, left - 1)
    drawing = drawing_for(rule, request)
    if config.draft_sample_method == "greedy" or drawing not in drafter.drawings:
        drawing = Drawing.GREEDY
    tree = plan_tree(parts.tree, config.num_tree_nodes, most, drawing, drafter.acceptance)
    return replace(tree, member=plan.member, whole=plan.whole, rule=rule)


def _limit(running: Running) -> int:
    """Most tokens of a draft: a round emits one token beyond it, and discards those beyond the limit."""
    asked = running.request.hints.num_speculative_tokens
    return running.room - 1 if asked is None else min(running.room - 1, asked)


def _forced(parts: Parts, running: Running, plan: Plan, draft: Draft) -> Draft:
    """The draft, or the tokens that the request's mask forces if the draft does not begin with them.

    Drawn tokens are drawn under the mask, and a draft of the target's own layers is already run.
    """
    request = running.request
    forced = getattr(request.params.mask, "forced", None)
    given = draft.probs is not None or draft.hidden is not None
    if forced is None or given or plan.reason is PlainReason.ASKED:
        return draft
    most = min(MOST_NODES, _limit(running))
    left = parts.eviction.until_eviction(request.row)
    most = most if left is None else min(most, left - 1)
    try:
        tokens = tuple(forced(request.token_ids))[:most] if most > 0 else ()
    except Exception as error:
        logger.warning("a mask's forced tokens failed (%r); the request goes on without.", error)
        return draft
    return draft if draft.holds(tokens) else replace(Draft.chain(tokens), forced=True)


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
        hidden_layers=parts.drafter.hidden_layers,
    )
    return parts.forward(batch)


def _after_shared_layers(parts: Parts, drafts: list[Draft]) -> tuple[range | None, Tensor | None]:
    """The layers left to run, and their input, if the drafter has run the target's first layers itself."""
    states = [draft.hidden for draft in drafts if draft.hidden is not None]
    if not states:
        return None, None
    assert len(states) == len(drafts), "the first layers were run for all requests or for none"
    layers = range(parts.drafter.shared_layers, parts.target.num_layers)
    return layers, pad_sequence(states, batch_first=True)


def _verify(
    parts: Parts,
    rules: list[str],
    drafts: list[Draft],
    output: ForwardOutput,
    requests: list[Request],
) -> tuple[TargetRows, list[Verdict]]:
    """Verify all drafts, those under the same rule together."""
    assert output.logits is not None
    rows = TargetRows(output.logits, drafts, requests)
    groups: dict[str, list[int]] = {}
    for index, name in enumerate(rules):
        groups.setdefault(name, []).append(index)
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
