"""Where outputs differ, near-ties are distinguished from defects."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from forerun.engine.engine import Engine
from forerun.measure import attribution
from forerun.measure.attribution import DEFECT, NUMERICS, first_difference
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.testing.toy import ToyModel

PROMPT = [1, 2, 3]
TOKENIZER = types.SimpleNamespace(decode=lambda ids: f"<{ids[0]}>")


def plain_ids(model: Any, params: SamplingParams) -> list[int]:
    stream = Engine(model).stream_plain(PROMPT, params)
    return [event.token_id for event in stream]


def deciding_scores(
    logits: torch.Tensor, output_ids: Sequence[int], params: SamplingParams
) -> torch.Tensor:
    """The scores [V] whose largest plain decoding takes; -inf outside top-k, top-p and min-p."""
    row = attribution._Row.of(logits, PROMPT, output_ids, params)
    return row.scores.masked_fill(~row.candidates(row.adjusted), -torch.inf)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, max_tokens=12),
        SamplingParams(temperature=0, max_tokens=12, frequency_penalty=1.0, logit_bias={4: 3.0}),
        SamplingParams(seed=5, max_tokens=12),
        SamplingParams(seed=5, max_tokens=12, temperature=2.0, top_k=6, repetition_penalty=1.3),
    ],
)
def test_scores_decide_as_plain_decoding_does(params: SamplingParams) -> None:
    model = ToyModel()
    ids = plain_ids(model, params)
    for index, token in enumerate(ids):
        logits = attribution._logits_after(model, [*PROMPT, *ids[:index]])
        scores = deciding_scores(logits, ids[:index], params)
        assert scores.argmax() == token


def test_equal_outputs_have_no_difference() -> None:
    params = SamplingParams(temperature=0)
    assert first_difference(ToyModel(), TOKENIZER, PROMPT, [4, 5], [4, 5], params) is None


def test_another_token_is_a_defect() -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    model = ToyModel()
    ids = plain_ids(model, params)
    wrong = [*ids[:5], (ids[5] + 1) % model.vocab_size, *ids[6:]]
    difference = first_difference(model, TOKENIZER, PROMPT, wrong, ids, params)
    assert difference is not None
    assert (difference.index, difference.token_id, difference.plain_token_id) == (
        5,
        wrong[5],
        ids[5],
    )
    assert (difference.text, difference.plain_text) == (f"<{wrong[5]}>", f"<{ids[5]}>")
    assert difference.gap is not None
    assert difference.gap > difference.tolerance > 0
    assert difference.explanation == DEFECT
    logits = attribution._logits_after(model, [*PROMPT, *ids[:5]]).sort().values
    assert difference.margin == pytest.approx((logits[-1] - logits[-2]).item())


@pytest.mark.parametrize(("nudge", "explanation"), [(0.5, NUMERICS), (2.0, DEFECT)])
def test_a_near_tie_is_numerics(
    nudge: float, explanation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0)
    logits = torch.tensor([1.0, 8.0, 3.0])
    logits[2] = 8.0 - nudge * attribution.tolerance(logits, torch.float32, params)
    monkeypatch.setattr(attribution, "_logits_after", lambda *_: logits)
    target: Any = types.SimpleNamespace(dtype=torch.float32)
    difference = first_difference(target, TOKENIZER, PROMPT, [2], [1], params)
    assert difference is not None
    assert difference.explanation == explanation
    # Two tokens that tie explain nothing about a third.
    third = first_difference(target, TOKENIZER, PROMPT, [0], [1], params)
    assert third is not None
    assert third.explanation == DEFECT


# The last token wins by its noise wherever it may be drawn; the second one wins elsewhere.
EDGES = {
    "top_k": ({"top_k": 2}, [5.0, 4.0, 4.0]),
    "top_p": ({"top_p": 0.75}, [20.0, 20 + math.log(0.5), 20 + math.log(0.5)]),
    "min_p": ({"min_p": math.exp(-2.0)}, [5.0, 4.0, 3.0]),
}


@pytest.mark.parametrize("kind", EDGES)
@pytest.mark.parametrize("side", [-1, 1], ids=["left out", "let in"])
@pytest.mark.parametrize("nudge", [0.5, 8.0], ids=["rounding", "far"])
def test_a_token_at_an_edge_is_numerics(
    kind: str, side: int, nudge: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's logits leave the last token out, or let it in; one of the outputs had it."""
    options, values = EDGES[kind]
    params = SamplingParams(seed=1, **options)  # type: ignore[arg-type]
    logits = torch.tensor(values, dtype=torch.float64)
    logits[2] += side * nudge * attribution.tolerance(logits, torch.float32, params)
    noise = torch.tensor([-9.0, 0.0, 9.0], dtype=torch.float64)
    monkeypatch.setattr(Randomness, "gumbel", lambda *_: noise)
    monkeypatch.setattr(attribution, "_logits_after", lambda *_: logits)
    best = int(deciding_scores(logits, [], params).argmax())
    assert best == (2 if side > 0 else 1)
    target: Any = types.SimpleNamespace(dtype=torch.float32)
    difference = first_difference(target, TOKENIZER, PROMPT, [3 - best], [best], params)
    assert difference is not None
    assert difference.explanation == (NUMERICS if nudge < 1 else DEFECT)


@pytest.mark.parametrize(("nudge", "explanation"), [(0.7, NUMERICS), (1.4, DEFECT)])
def test_edges_do_not_widen_the_tolerance_of_scores(
    nudge: float, explanation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(seed=1, top_k=2, temperature=0.5)
    logits = torch.tensor([1.0, 8.0, 8.0], dtype=torch.float64)
    logits[2] -= nudge * 0.5 * attribution.tolerance(logits, torch.float32, params)
    monkeypatch.setattr(Randomness, "gumbel", lambda *_: torch.zeros(3))
    monkeypatch.setattr(attribution, "_logits_after", lambda *_: logits)
    target: Any = types.SimpleNamespace(dtype=torch.float32)
    difference = first_difference(target, TOKENIZER, PROMPT, [2], [1], params)
    assert difference is not None
    assert difference.explanation == explanation


def test_a_banned_token_is_a_defect_whatever_the_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = torch.tensor([1.0, 8.0, 8.0])
    monkeypatch.setattr(attribution, "_logits_after", lambda *_: logits)
    target: Any = types.SimpleNamespace(dtype=torch.bfloat16)
    for options in ({"temperature": 0}, {"seed": 1, "top_p": 0.9}):
        params = SamplingParams(banned_token_ids=(2,), **options)
        difference = first_difference(target, TOKENIZER, PROMPT, [2], [1], params)
        assert difference is not None
        assert (difference.gap, difference.explanation) == (None, DEFECT)


def test_an_output_that_ends_early_is_a_defect() -> None:
    params = SamplingParams(temperature=0)
    ids = plain_ids(ToyModel(), dataclasses.replace(params, max_tokens=6))
    difference = first_difference(ToyModel(), TOKENIZER, PROMPT, ids[:4], ids, params)
    assert difference is not None
    assert (difference.index, difference.token_id, difference.explanation) == (4, None, DEFECT)
