"""Verification of a whole batch: as each draft alone, and with one transfer from a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from forerun import _native
from forerun.core import NO_DRAFT, Draft, Request, Tree
from forerun.errors import DistributionError
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.verification import TargetRows, make_rule

VOCAB = 40
SHAPES = {
    "token": [(-1, 0, 1), (), (-1, -1, 0, 2), (-1,)],
    "block": [(-1, 0, 1), (), (-1, 0), (-1,)],
    "traversal": [(-1, 0, 1), (), (-1, -1, 0, 2), (-1,)],
    "coupled": [(-1, 0, 1), (), (-1, -1, 0, 2), (-1,)],
}
SAMPLERS = {
    "temperature": SamplingParams(temperature=0.8),
    "top_p": SamplingParams(top_p=0.8, top_k=20),
    "penalties": SamplingParams(repetition_penalty=1.4, presence_penalty=0.3),
    "greedy": SamplingParams(temperature=0.0),
}


def batch(rule: str, params: SamplingParams) -> TargetRows:
    source = torch.Generator().manual_seed(len(rule))
    drafts, requests = [], []
    for index, parents in enumerate(SHAPES[rule]):
        count = len(parents)
        rows = torch.randn(count, VOCAB, generator=source).softmax(-1)
        ids = torch.multinomial(rows, 1, generator=source).flatten().tolist() if count else []
        drawn = rows if rule != "coupled" else None
        drafts.append(Draft(Tree(parents), tuple(ids), drawn) if count else NO_DRAFT)
        requests.append(Request(index, [1, 2, 3], 2, params, seed=index))
    logits = 2 * torch.randn(len(drafts), 5, VOCAB, generator=source)
    return TargetRows(logits, drafts, requests)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("rule", SHAPES)
def test_a_batch_is_verified_as_its_drafts_alone(form: str, rule: str, sampler: str) -> None:
    rows = batch(rule, SAMPLERS[sampler])
    together = make_rule(rule).verify(rows.drafts, rows, rows.requests, Randomness())
    for index, verdict in enumerate(together):
        alone = rows.of([index])
        assert make_rule(rule).verify(alone.drafts, alone, alone.requests, Randomness()) == [
            verdict
        ]


@pytest.mark.parametrize("rule", SHAPES)
def test_a_broken_row_is_its_own_requests(form: str, rule: str) -> None:
    rows = batch(rule, SAMPLERS["temperature"])
    before = make_rule(rule).verify(rows.drafts, rows, rows.requests, Randomness())
    rows = batch(rule, SAMPLERS["temperature"])
    rows._logits[1, 0, 7] = torch.nan
    after = make_rule(rule).verify(rows.drafts, rows, rows.requests, Randomness())
    assert isinstance(after[1].error, DistributionError)
    assert after[1].token_ids == ()
    assert [after[index] for index in (0, 2, 3)] == [before[index] for index in (0, 2, 3)]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("rule", SHAPES)
def test_a_device_is_waited_for_once(
    rule: str, sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tensors that say that they lie elsewhere; the verdicts are the same."""
    rows = batch(rule, SAMPLERS[sampler])
    monkeypatch.setattr(_native, "AVAILABLE", False)
    expected = make_rule(rule).verify(rows.drafts, rows, rows.requests, Randomness())
    waits: list[str] = []

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            waits.append(name)
            return method(*args, **options)

        return call

    for name in ("tolist", "item", "__bool__", "__int__", "__float__", "cpu", "numpy", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda _: False))
    rows = batch(rule, SAMPLERS[sampler])
    waits.clear()
    verdicts = make_rule(rule).verify(rows.drafts, rows, rows.requests, Randomness())
    assert waits == ["tolist"]
    assert verdicts == expected
