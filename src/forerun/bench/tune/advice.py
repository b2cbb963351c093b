"""What the formulas say of a setting, from what was recorded: acceptance, cost ratio, what checking costs."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.bench.tune.prediction import Prediction, costs_of
from forerun.bench.tune.records import Output, Records
from forerun.theory.advice import Advice, advise

# Tests of a position, below which its share says nothing.
FEW = 5
# The formulas are about drafts in every round; lookups that find something less often than that are none.
NEARLY_ALWAYS = 0.9


def advice_on(records: Records, setting: Prediction) -> Advice | None:
    """Why a setting gains or loses; None where it drafts only now and then."""
    outputs = records.of(setting.candidate)
    acceptance = acceptance_by_position(outputs)
    drafting = [depth > 0 for output in outputs for depth in output.depths]
    if not acceptance or sum(drafting) < NEARLY_ALWAYS * len(drafting):
        return None
    costs, batch_size = costs_of(records, setting.candidate), setting.batch_size
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


def acceptance_by_position(outputs: Sequence[Output]) -> tuple[float, ...]:
    """The share of tested tokens that is accepted, by their position in the draft, as far as that was seen
    a few times: a token is tested where all before it are accepted."""
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
