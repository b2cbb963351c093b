"""The closing panel of `forerun generate`: what happened, in words and numbers."""

from __future__ import annotations

from rich.panel import Panel
from rich.table import Table

from forerun.cli.outcome import Outcome
from forerun.core import FinishReason, PlainReason, Stats
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.files import printable
from forerun.measure.paired import Comparison
from forerun.params import in_words
from forerun.policies.decisions import in_words as decided_in_words

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
