"""Results of `forerun tune` in words."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.bench.settings import tokens_text
from forerun.bench.tune.prediction import Prediction, costs_of
from forerun.bench.tune.records import RecordedOutput, Records
from forerun.bench.tune.run import Tuning
from forerun.theory.advice import Advice, advise

SUPPOSED = (
    "Contexts are predicted from what drafts read of the cache, supposing that as much is accepted, and that "
    "the rest of a round takes as many plain rounds, as on these prompts"
)
# Tests of a position, below which its share says nothing.
FEW = 5
# The formulas are about drafts in every round; lookups that find something less often than that are none.
NEARLY_ALWAYS = 0.9
# The share of predictions that should be within this error.
CLOSE = 0.1


def verdict(tuning: Tuning, batch_sizes: Sequence[int]) -> list[str]:
    """The verdicts, how good the predictions were, and what was not tried, as sentences."""
    lines = [_verdict(tuning, size, len(batch_sizes) > 1) for size in batch_sizes]
    run = tuning.confirmed
    if run:
        close = sum(abs(one.error or 0.0) <= CLOSE for one in run)
        lines.append(
            f"{close} of {len(run)} predictions that were run are within {CLOSE:.0%} of what was measured."
        )
    lines += [f"Not tried: {name} ({reason})" for name, reason in tuning.refused.items()]
    return lines


def _verdict(tuning: Tuning, batch_size: int, several: bool) -> str:
    found = tuning.verdict(batch_size)
    said = "; ".join([found.advice, *found.details])
    run = any(one.batch_size == batch_size for one in tuning.confirmed)
    predicted = "" if run else "predicted, not run: "
    return f"{predicted}{found.where}: {said}." if several else f"{predicted}{said}."


def _named(one: Prediction) -> str:
    return f"{one.candidate.name} with {tokens_text(one.num_tokens)} a round"


def contexts_in_words(tuning: Tuning, batch_sizes: Sequence[int]) -> list[str]:
    """Sentences on the shortest contexts at which drafts pay that read less of the cache."""
    found = tuning.from_contexts
    lines = [_pays_from(one, len(batch_sizes) > 1) for one in found]
    if not found:
        return []
    traffic = [one.break_even.traffic_context for one in found if one.break_even is not None]
    lines.append(f"{SUPPOSED}, of {sum(traffic) / len(traffic):.0f} tokens on average.")
    untested = [one.candidate.name for one in found if one.break_even and one.break_even.untested]
    if untested:
        lines.append(
            f"These prompts are so short that drafts of {_list(untested)} leave out nothing of the cache; at "
            "longer contexts fewer may be accepted: give longer prompts to know."
        )
    return lines


def _pays_from(one: Prediction, several: bool) -> str:
    where, found = f"Batch {one.batch_size}: " if several else "", one.break_even
    assert found is not None
    if found.context is None:
        most = f"{found.model_context:,} tokens"
        return f"{where}{one.candidate.name} pays at no context up to the model's {most}."
    if found.context <= 1:
        return f"{where}{_named(one)} pays at every context."
    # The keys of all requests count, the weights once: with more of them it pays sooner.
    about = "about" if one.batch_size == 1 else "at most about"
    return f"{where}{_named(one)} pays from a context of {about} {found.context:,} tokens."


def _list(names: Sequence[str]) -> str:
    *others, last = dict.fromkeys(names)
    return f"{', '.join(others)} and {last}" if others else last


def advice_on(records: Records, setting: Prediction) -> Advice | None:
    """Advice on why a setting gains or loses; None where it drafts only now and then."""
    outputs = records.of(setting.candidate.name)
    acceptance = acceptance_by_position(outputs)
    drafting = [depth > 0 for output in outputs for depth in output.depths]
    if not acceptance or sum(drafting) < NEARLY_ALWAYS * len(drafting):
        return None
    costs, batch_size = costs_of(records, setting.candidate.name), setting.batch_size
    context = sum(len(o.prompt_ids) + len(o) / 2 for o in outputs) / len(outputs)
    plain = costs.plain.seconds(1, batch_size, context)
    seconds = costs.drafting(setting.num_tokens, batch_size, context)
    one = costs.verifying(0, batch_size, context).total
    longest = max(len(acceptance), setting.num_tokens)
    checking = {
        nodes + 1: costs.verifying(nodes, batch_size, context).total / one
        for nodes in range(longest + 1)
    }
    return advise(
        acceptance,
        seconds / setting.num_tokens / plain,
        verification_cost=checking,
        batch=batch_size,
    )


def acceptance_by_position(outputs: Sequence[RecordedOutput]) -> tuple[float, ...]:
    """Share of tested tokens that is accepted, by position in the draft, as far as it was seen a few times.

    A token is tested where all before it are accepted.
    """
    tested: dict[int, int] = {}
    passed: dict[int, int] = {}
    for output in outputs:
        for depth, accepted in zip(output.depths, output.accepted, strict=True):
            for position in range(min(accepted + 1, depth)):
                tested[position] = tested.get(position, 0) + 1
                passed[position] = passed.get(position, 0) + (position < accepted)
    shares = []
    for position in range(len(tested)):
        if tested[position] < FEW:
            break
        shares.append(passed[position] / tested[position])
    return tuple(shares)
