"""Outcome of `forerun generate`: its JSON object, and its closing panel in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.panel import Panel
from rich.table import Table

from forerun.cli.prompt import SentPrompt
from forerun.core import Draft, FinishReason, PlainReason, Stats, Verdict
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.parts import TimedRound
from forerun.engine.requests import TokenLogprob
from forerun.files import printable
from forerun.measure.paired import Comparison, Run
from forerun.options import changes
from forerun.params import MODELS_OWN, SamplingParams, in_words
from forerun.policies.decisions import in_words as decided_in_words


@dataclass(frozen=True)
class Round:
    """One round of a run: its draft and the verdict.

    Args:
        draft: the draft without its rows of probability, which are large.
        drawn: its tokens were drawn, not determined by the text.
        verdict: the verdict, cut at the end of the output.
    """

    draft: Draft
    drawn: bool
    verdict: Verdict

    @classmethod
    def of(cls, done: TimedRound) -> Round:
        """A round of a single request."""
        [draft], [verdict] = done.drafts, done.verdicts
        return cls(replace(draft, probs=None, hidden=None), draft.probs is not None, verdict)

    @property
    def accepted(self) -> tuple[int, ...]:
        """The nodes whose tokens were emitted, from the root down."""
        return self.verdict.path[: self.verdict.num_accepted]


@dataclass(frozen=True)
class SingleRequest:
    """A request of the command, ready to run.

    Args:
        model: as the user named it.
        engine: with room for this request and no more.
        prompt: as it is sent.
        params: sampling parameters.
        origins: origin of those that were not given, by name.
    """

    model: str
    engine: Engine
    prompt: SentPrompt
    params: SamplingParams
    origins: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """The outcome of the command, complete or interrupted.

    Args:
        request: the request.
        run: the run whose text is shown.
        comparison: comparison with plain decoding; None if not asked for, or interrupted.
        rounds: rounds of the run; None if not asked for.
    """

    request: SingleRequest
    run: Run
    comparison: Comparison | None = None
    rounds: list[Round] | None = None

    @property
    def finish_reason(self) -> str:
        return self.run.completion.finish_reason or FinishReason.CANCELLED


def report(outcome: Outcome) -> dict[str, Any]:
    """The JSON object; a comparison adds `plain`, `speedup` and their details."""
    request, completion = outcome.request, outcome.run.completion
    engine = request.engine
    content = {
        "model": request.model,
        "draft_model": engine.config.model,
        "method": engine.config.method,
        "exactness": engine.exactness,
        "dtype": engine.target.precision,
        "kv_dtype": getattr(engine.target, "kv_dtype", "auto"),
        "draft_dtype": _draft_dtype(engine),
        "template": request.prompt.template,
        "prompt": request.prompt.text,
        "prompt_tokens": len(completion.prompt_ids),
        **_of_sampling(request.params, request.origins),
        **_of_run(outcome.run),
        "origins": list(completion.origins),
        "finish_reason": outcome.finish_reason,
    }
    if engine.compression.is_on:
        content["compression"] = changes(engine.compression)
    if engine.policy is not None:
        content |= {
            "policy": engine.policy.name,
            "decisions": outcome.run.decisions,
            "given_up": engine.policy.given_up(),
        }
    if completion.logprobs is not None:
        content["logprobs"] = [_of_logprob(entry) for entry in completion.logprobs]
    if outcome.rounds is not None:
        content["rounds"] = [_of_round(entry) for entry in outcome.rounds]
    if outcome.comparison is not None:
        content |= _of_comparison(outcome.comparison)
    return content


def _of_sampling(params: SamplingParams, origins: Mapping[str, str]) -> dict[str, Any]:
    values = params.warp._asdict() | changes(params)
    values.pop("mask", None)
    from_model = [name for name, origin in origins.items() if origin == MODELS_OWN]
    return {"sampling": values, "sampling_from_model": from_model}


def _draft_dtype(engine: Engine) -> str | None:
    model = getattr(engine.drafter, "model", None)
    return None if model is None else str(model.precision)


def _of_run(run: Run) -> dict[str, Any]:
    completion = run.completion
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "seconds": run.seconds,
        "tokens_per_second": run.tokens_per_second,
        "stats": completion.stats.as_dict(),
    }


def _of_round(entry: Round) -> dict[str, Any]:
    draft = entry.draft
    return {
        "token_ids": list(draft.token_ids),
        "parents": list(draft.tree.parents),
        "drawn": entry.drawn,
        "accepted": list(entry.accepted),
        "emitted": list(entry.verdict.token_ids),
    }


def _of_comparison(comparison: Comparison) -> dict[str, Any]:
    content: dict[str, Any] = {
        "plain": _of_run(comparison.shown.plain),
        "compare_rounds": len(comparison.pairs),
        "speedup": comparison.speedup,
        "speedup_range": list(comparison.spread),
        "decode_speedup": comparison.decode_speedup,
        "identical": comparison.identical,
    }
    if comparison.difference is not None:
        content["first_difference"] = asdict(comparison.difference)
    return content


def _of_logprob(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token_id": entry.token_id,
        "logprob": _finite(entry.logprob),
        "top": [{"token_id": token, "logprob": _finite(value)} for token, value in entry.top],
    }


def _finite(value: float) -> float | None:
    # JSON has no infinity; a token that could not be drawn has no log probability.
    return value if math.isfinite(value) else None


_BAR_WIDTH = 20
# Why all of a run, or so many of its rounds, drafted nothing.
_REASONS = {
    PlainReason.ASKED: ("plain decoding was asked for", "as was asked for"),
    PlainReason.SHORT: ("too short: one token was left to emit", "for the last token"),
    PlainReason.NOTHING_FOUND: (
        "{method} found nothing to propose",
        "where {method} found nothing",
    ),
    PlainReason.TIMED: ("the policy timed plain rounds", "to time such rounds"),
    PlainReason.PAUSED: ("no draft was expected to pay", "where no draft was expected to pay"),
    PlainReason.CONTEXT: ("the context of {method} was full", "where {method}'s context was full"),
    PlainReason.FAILED: ("{method} failed", "where {method} failed"),
    PlainReason.EVICTS: ("the cache evicted tokens", "where the cache evicts tokens"),
    PlainReason.POLICY: ("the policy planned none", "as the policy planned"),
}
_ENDS = {
    FinishReason.STOP: "the end of the text, or a stop string",
    FinishReason.LENGTH: "the limit was reached",
    FinishReason.CANCELLED: "an interruption",
    FinishReason.ERROR: "an error",
}


def summary(outcome: Outcome) -> Panel:
    """The panel; it fits 80 columns."""
    stats, run, request = outcome.run.completion.stats, outcome.run, outcome.request
    engine = request.engine
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("model", request.model)
    table.add_row("drafter", _drafter(engine.config))
    table.add_row("prompt", "by the chat template" if request.prompt.template else "as it is: raw")
    table.add_row("sampling", in_words(request.params, request.origins))
    reason = outcome.finish_reason
    table.add_row("ended by", f"{reason}: {_ENDS[FinishReason(reason)]}")
    table.add_row("tokens", f"{stats.num_emitted_tokens} after {stats.prompt_tokens} of prompt")
    table.add_row(
        "speed",
        f"{_number(run.tokens_per_second, 1)} tokens/s "
        f"(decoding alone {_number(stats.tokens_per_second, 1)})",
    )
    table.add_row("drafted", drafting(stats, engine))
    policy = engine.policy
    if policy is not None:
        if run.decisions is not None:
            table.add_row(f"policy {policy.name}", decided_in_words(run.decisions))
        if given_up := policy.given_up():
            table.add_row("given up", "\n".join(given_up))
    table.add_row("tokens per target forward", _number(stats.tokens_per_target_forward))
    if stats.num_drafts:
        _add_acceptance(table, stats, trees=_drafts_trees(engine))
    table.add_row("time", _stages(stats))
    if outcome.comparison is not None:
        _add_comparison(table, outcome.comparison)
    table.add_row("exactness", str(engine.exactness))
    return Panel(table, expand=False)


def drafting(stats: Stats, engine: Engine) -> str:
    """The number of rounds that drafted, and the reasons of the others."""
    reasons = {PlainReason(key): n for key, n in stats.num_plain_rounds_by_reason.items()}
    rounds = stats.num_target_forwards
    if not stats.num_drafts:
        # The last token of many is no reason for the others.
        telling = [reason for reason in reasons if reason is not PlainReason.SHORT]
        words = [_REASONS[reason][0] for reason in telling or reasons]
        text = "nothing: " + "; ".join(words)
    elif not reasons:
        text = f"in all {rounds} rounds" if rounds > 1 else "in the only round"
    else:
        words = [f"{count} {_REASONS[reason][1]}" for reason, count in reasons.items()]
        text = f"in {stats.num_drafts} of {rounds} rounds; plain: {', '.join(words)}"
    return text.format(method=engine.config.method)


def _drafter(config: SpeculativeConfig) -> str:
    if config.method is None:
        return "none: plain decoding"
    named = f"{config.method} {config.model}" if config.model else config.method
    quoted = ", ".join(map(printable, config.options.get("corpus", ())))
    return f"{named}, quoting {quoted}" if quoted else named


def _drafts_trees(engine: Engine) -> bool:
    draws = engine.drafter is not None and engine.drafter.draws_trees
    return draws or engine.config.tree is not None


def _add_acceptance(table: Table, stats: Stats, *, trees: bool) -> None:
    table.add_row("mean acceptance length", _number(stats.mean_acceptance_length))
    accepted, drafted = stats.num_accepted_tokens, stats.num_draft_tokens
    positions = stats.num_accepted_tokens_per_pos
    if trees:
        # Accepted over drafted says little of a tree: a round takes one path of it.
        first = positions[0] if positions else 0
        table.add_row(
            "first token taken",
            f"in {first} of {stats.num_drafts} rounds ({first / stats.num_drafts:.0%})",
        )
        table.add_row("nodes of trees taken", f"{accepted} of {drafted}, a path each round at most")
    else:
        rate = stats.acceptance_rate or 0
        table.add_row("acceptance rate", f"{rate:.0%} ({accepted} of {drafted} drafted)")
    for position, count in enumerate(positions, start=1):
        share = count / stats.num_drafts
        bar = "█" * round(share * _BAR_WIDTH)
        table.add_row(
            "  by position" if position == 1 else "", f"{position} {bar:<{_BAR_WIDTH}} {share:.0%}"
        )


def _stages(stats: Stats) -> str:
    stages = {"prefill": stats.prefill_seconds}
    if stats.num_drafts:
        stages["draft"] = stats.draft_seconds
        stages["target"] = stats.target_seconds
        stages["verify"] = stats.verify_seconds
    else:
        stages["decode"] = stats.seconds
    total = sum(stages.values()) or 1.0
    return ", ".join(
        f"{name} {value:.2f} s ({value / total:.0%})" for name, value in stages.items()
    )


def _add_comparison(table: Table, comparison: Comparison) -> None:
    low, high = comparison.spread
    table.add_row("plain", f"{_number(comparison.shown.plain.tokens_per_second, 1)} tokens/s")
    table.add_row(
        "speed-up",
        f"{comparison.speedup:.2f}x ({low:.2f}x to {high:.2f}x in {len(comparison.pairs)} rounds; "
        f"decoding alone {comparison.decode_speedup:.2f}x)",
    )
    answers = {True: "yes", False: "no", None: "not comparable: drawn without a shared seed"}
    table.add_row("same tokens as plain", answers[comparison.identical])
    difference = comparison.difference
    if difference is not None:
        table.add_row(
            "first difference",
            f"token {difference.index}: {difference.text!r} against {difference.plain_text!r}; "
            f"logit margin {difference.margin:.2g}: {difference.explanation}",
        )


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
