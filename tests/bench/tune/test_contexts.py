"""From which context on drafts pay, and what moves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import ArrayLike

from forerun.bench.engines import Prepared, Workshop
from forerun.bench.runs import EncodedPrompt
from forerun.bench.tune.candidates import Candidate
from forerun.bench.tune.prediction import BreakEven, Prediction, Shares
from forerun.bench.tune.prediction import predicted as prediction_of
from forerun.bench.tune.records import RecordedOutput, Records
from forerun.bench.tune.report import contexts_in_words
from forerun.bench.tune.run import Tuner, Tuning
from forerun.contracts import Drafter
from forerun.costs.rounds import RoundCosts
from forerun.costs.table import CostTable
from forerun.models import Checkpoint
from forerun.params import SamplingParams
from forerun.simulation.hardware import WindowedCosts
from forerun.simulation.planning import break_even_context
from forerun.theory.formulas import expected_tokens
from forerun.theory.inputs import Floats

WEIGHTS, WINDOW, LONGEST = 4000.0, 300, 1 << 16


@dataclass(frozen=True)
class LinearCosts:
    """Forwards that read weights and cache once, and take a little more for each token beyond the first."""

    per_token: float = 0.0

    def seconds(self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        read = WEIGHTS + np.asarray(context) + 0.0 * np.asarray(batch_size)
        return np.asarray(read * (1.0 + self.per_token * (np.asarray(num_tokens) - 1)))


def windowed(context: int) -> float:
    return (WEIGHTS + min(context, WINDOW)) / (WEIGHTS + context)


def shares(share: Callable[[int], float | None] = windowed, longest: int = LONGEST) -> Shares:
    found = Shares.of(drafter(share), longest)
    assert found is not None
    return found


def drafter(share: Callable[[int], float | None]) -> Drafter:
    return cast(Drafter, SimpleNamespace(cost_share=lambda request: share(len(request))))


@pytest.mark.parametrize("bound", [0.999, 0.9, 0.5, 0.2, 0.07])
def test_the_first_context_below_a_share(bound: float) -> None:
    exact = next(context for context in range(1, LONGEST + 1) if windowed(context) < bound)
    found = shares().first_below(bound)
    assert found == exact
    assert shares().first_below(windowed(LONGEST)) is None
    assert shares().first_below(1.1) == 1


ACCEPTANCES = (0.3, 0.7, 0.85, 0.95)
# Shortest contexts at which a round of LinearCosts(per_token) that drafts `length` tokens from the window is
# faster than plain decoding, by (per_token, length) and acceptance: frozen results of a search over contexts.
FIRST_CONTEXTS: dict[tuple[float, int], tuple[int | None, ...]] = {
    (0.0, 1): (10334, 2143, 1059, 527),
    (0.0, 2): (18052, 3227, 1469, 643),
    (0.0, 5): (46289, 7076, 2821, 1003),
    (0.05, 1): (13201, 2616, 1376, 778),
    (0.05, 2): (25656, 3890, 1841, 908),
    (0.05, 5): (None, 8714, 3408, 1312),
}


@pytest.mark.parametrize("traffic", [40, 700, 9000])
@pytest.mark.parametrize("per_token", [0.0, 0.05])
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("acceptance", ACCEPTANCES)
def test_the_first_context_at_which_windowed_drafts_pay(
    acceptance: float, length: int, per_token: float, traffic: int
) -> None:
    """It does not depend on the context that costs were measured at; `simulate` finds the same."""
    target = LinearCosts(per_token)
    windowed_rounds = RoundCosts.of_models(target, WindowedCosts(target, WINDOW))
    simulated = break_even_context(windowed_rounds, acceptance, lengths=[length], most=LONGEST)
    tokens = float(expected_tokens(acceptance, length))
    plain = float(target.seconds(1, 1, traffic))
    drafting = length * windowed(traffic) / tokens
    rest = float(target.seconds(length + 1, 1, traffic)) / plain / tokens
    found = shares().break_even(drafting, rest, [traffic]).context
    expected = FIRST_CONTEXTS[per_token, length][ACCEPTANCES.index(acceptance)]
    assert simulated == expected
    assert found == (expected if expected is None else pytest.approx(expected, abs=2))


def test_what_drafts_take_beside_reading_moves_it() -> None:
    found = [shares().break_even(0.8 * more, 0.5, [40]).context for more in (1.0, 1.2, 2.0)]
    assert found == sorted(found, key=lambda context: context or LONGEST)
    assert len(set(found)) == len(found)
    assert shares().break_even(0.1, 1.0, [40]).context is None
    assert shares().break_even(0.3, 0.6, [40]).context == 1


def output(accepted: int, length: int = 60) -> RecordedOutput:
    depths = tuple(min(6, length - at - 1) for at in range(length))
    return RecordedOutput(
        candidate="made",
        prompt_id="0",
        category="made",
        prompt_ids=tuple(range(30)),
        token_ids=(1,) * length,
        max_tokens=length,
        nodes=depths,
        depths=depths,
        accepted=tuple(min(accepted, depth) for depth in depths),
        confidences=(1.0,) * length,
    )


def costs(draft: float = 1.0) -> RoundCosts:
    """A drafted token takes `draft` plain rounds, and checking nothing."""

    def table(*points: tuple[int, float]) -> CostTable:
        return CostTable.from_rows((n, 1, 0, seconds) for n, seconds in points)

    return RoundCosts(
        draft=table((1, 1e-9), (11, 10 * draft)),
        target=table((1, 1.0)),
        verify=table((1, 0.02)),
        plain=table((1, 1.0)),
        host=table((1, 0.01)),
        first_draft=0.0,
        prefill=(1.0, 0.0),
        plain_prefill=1.0,
    )


def predicted(accepted: int, length: int, known: Shares | None, **of_costs: float) -> Prediction:
    setting = Candidate("made"), length, 1
    return prediction_of(setting, [output(accepted)], costs(**of_costs), known)


@pytest.mark.parametrize("length", [1, 2, 4, 6])
def test_the_more_is_accepted_the_earlier_it_pays(length: int) -> None:
    contexts = []
    for accepted in range(7):
        found = predicted(accepted, length, shares()).break_even
        assert found is not None
        contexts.append(found.context or LONGEST + 1)
    assert contexts == sorted(contexts, reverse=True)
    assert contexts[0] > LONGEST >= contexts[-1]


def test_at_the_traffic_itself_it_pays_where_the_prediction_says_so() -> None:
    """Prompts cost both sides the same, and the traffic's context is among those that pay or not."""
    for accepted in range(7):
        for draft in (0.2, 0.6, 1.0):
            one = predicted(accepted, 4, shares(lambda c: 100 / (100 + c)), draft=draft)
            assert one.break_even is not None
            pays = (one.break_even.context or LONGEST + 1) <= one.break_even.traffic_context
            assert pays == (one.speedup > 1.0)


@pytest.mark.parametrize("share", [lambda _: None, lambda _: 0.4, lambda _: 1.0])
def test_drafts_that_cost_the_same_at_all_contexts_have_none(
    share: Callable[[int], float | None],
) -> None:
    assert Shares.of(drafter(share), LONGEST) is None
    assert predicted(3, 4, None).break_even is None


def test_prompts_that_say_little_are_told() -> None:
    assert shares().break_even(1.0, 0.5, [40, 200]).untested
    assert not shares().break_even(1.0, 0.5, [40, 1000]).untested


@pytest.mark.parametrize(
    ("context", "batch", "words"),
    [
        (2345, 1, "made with 2 tokens a round pays from a context of about 2,345 tokens."),
        (2345, 4, "made with 2 tokens a round pays from a context of at most about 2,345 tokens."),
        (None, 1, "made pays at no context up to the model's 65,536 tokens."),
        (1, 1, "made with 2 tokens a round pays at every context."),
    ],
)
def test_the_words(context: int | None, batch: int, words: str) -> None:
    one = replace(
        predicted(3, 2, None),
        batch_size=batch,
        break_even=BreakEven(context, LONGEST, 60.0, untested=True),
    )
    never = replace(one, num_tokens=1, break_even=BreakEven(None, LONGEST, 60.0, untested=True))
    lines = contexts_in_words(Tuning([never, one]), (batch,))
    assert lines[0] == words
    assert "supposing that as much is accepted" in lines[1]
    assert "of 60 tokens on average" in lines[1]
    assert "drafts of made leave out nothing" in lines[2]
    assert contexts_in_words(Tuning([predicted(3, 2, None)]), (batch,)) == []


PROMPT = EncodedPrompt("0", "code", tuple(range(40, 140)))


def test_on_the_zoo(tmp_path: Path) -> None:
    """A short run: what a draft reads is the drafter's own word, and lookups have no such context."""
    window = (("sparse_blocks", 0), ("sparse_sinks", 2), ("sparse_window", 16))
    candidates = [Candidate("self_sparse", None, 2, options=window), Candidate("ngram", None, 2)]
    params = SamplingParams(temperature=0.0, max_tokens=24)
    checkpoint = Checkpoint.open("zoo")
    workshop, prepared = Workshop(checkpoint, {}, 256), Prepared((PROMPT,), 0, False)

    def run(records: Records) -> dict[str, Any]:
        tuner = Tuner(workshop, "zoo", prepared, params, records, seconds=0.05)
        found = tuner.tune(candidates, confirm=0)
        names = (f"{one.candidate.name} {one.num_tokens}" for one in found.predictions)
        contexts = [one.break_even for one in found.predictions]
        return dict(zip(names, contexts, strict=True)) | {"least": found.from_contexts}

    with Records.open(tmp_path / "rounds.jsonl", {}) as records:
        found = run(records)
    sparse = candidates[0].name
    assert {name for name, one in found.items() if one is None} == {"ngram 1", "ngram 2"}
    [least] = found["least"]
    assert least.candidate.name == sparse
    assert not least.break_even.untested
    assert least.break_even.traffic_context == pytest.approx(100 + 12)
    engine = workshop.engine(candidates[0].setting(2).config, prepared, params, 1)
    own = cast(Any, engine.target)
    assert least.break_even.model_context == own.max_context
    known = Shares.of(cast(Drafter, engine.drafter), own.max_context)
    assert known is not None
    for context in (18, 200, own.max_context):
        read = own.bytes_read(min(context, 18), own.num_layers)
        assert known.share_at(context) == pytest.approx(
            read / own.bytes_read(context, own.num_layers)
        )
    assert run(Records.read(tmp_path / "rounds.jsonl")) == found
