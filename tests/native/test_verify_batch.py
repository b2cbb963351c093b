"""A batch verified in one call: each request has the result that it has alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

from forerun import _native
from forerun._native import rows as native
from forerun.randomness import Purpose

pytestmark = pytest.mark.skipif(not _native.AVAILABLE, reason="built without kernels")

BATCH = 9
LARGEST = 6
RULES = ("token", "traversal", "coupled")
WARPS = [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.8, 0, 0.9, 0.0), (1.2, 40, 0.7, 0.05)]
# The last is large enough that threads share the batch.
VOCAB_SIZES = (2, 65, 500, 1300)


class Case:
    """A draft of `size` nodes, drawn from rows near the target's."""

    def __init__(self, index: int, logits: Tensor, source: random.Random) -> None:
        self.rule, self.warp = RULES[index % 3], source.choice(WARPS)
        size = index % (LARGEST + 1)
        branches = [source.randint(-1, node - 1) for node in range(size)]
        self.parents = branches if source.random() < 0.6 else list(range(-1, size - 1))
        near = logits[[parent + 1 for parent in self.parents]]
        noise = torch.Generator().manual_seed(index)
        near = near + torch.randn(near.shape, generator=noise, dtype=near.dtype)
        probs, _, _ = native.warp(near, 1.0, 0, 1.0, 0.0)
        self.tokens = native.draw(probs, [source.random() for _ in range(size)])
        self.probs = probs if self.rule == "traversal" or source.random() < 0.5 else None
        self.seed, self.committed = source.randrange(-(2**63), 2**63), source.randint(1, 99)

    def ready(self) -> Any:
        return native.draft_to_verify(
            self.rule,
            self.tokens,
            self.parents,
            self.probs,
            self.warp,
            (self.seed, self.committed),
        )

    def step_by_step(self, logits: Tensor) -> tuple[int, int]:
        """Warp all rows, then follow the decision or the coupled tokens."""
        probs, dead, broken = native.warp(logits[: len(self.tokens) + 1], *self.warp)
        assert not dead + broken
        if self.rule == "coupled" or self.warp[0] == 0:
            return self._follow(probs)
        accept, on_accept, on_reject, at, emit = native.decide(
            self.rule, self.tokens, self.parents, probs, self.probs
        )
        while at >= 0:
            number = native.uniform(self.seed, self.committed, Purpose.ACCEPT, at)
            at = on_accept[at] if number < accept[at] else on_reject[at]
        end = ~at - 1
        number = native.uniform(self.seed, self.committed, Purpose.EMIT, 0)
        return end, native.draw(emit[end + 1 : end + 2], [number])[0]

    def _follow(self, probs: Tensor) -> tuple[int, int]:
        end, depth = -1, 0
        while True:
            row = probs[end + 1 : end + 2]
            [token] = (
                native.top(row)
                if self.warp[0] == 0
                else native.couple_keys(row, [(self.seed, self.committed + depth)])
            )
            children = [node for node, parent in enumerate(self.parents) if parent == end]
            end, last = next((node for node in children if self.tokens[node] == token), -2), end
            if end == -2:
                return last, token
            depth += 1


def target_logits(vocab_size: int, dtype: torch.dtype, seed: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    shape = (BATCH, LARGEST + 1, vocab_size)
    logits = 4 * torch.randn(shape, generator=source, dtype=dtype)
    logits[torch.rand(shape, generator=source) < 0.1] = -torch.inf
    logits[..., 0] = 0.0
    return logits


def batches(vocab_size: int, dtype: torch.dtype) -> Iterator[tuple[list[Case], Tensor]]:
    source = random.Random(vocab_size)
    for seed in range(12):
        logits = target_logits(vocab_size, dtype, seed)
        order = source.sample(range(21), BATCH)
        yield [Case(i, row, source) for i, row in zip(order, logits, strict=True)], logits


def verify(cases: list[Case], logits: Tensor) -> list[tuple[int, int] | Exception]:
    return native.verify_batch([case.ready() for case in cases], logits)


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=[None, 1, 3], ids=["no pool", "1 thread", "3 threads"], autouse=True)
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = request.param and _native.kernels.ThreadPool(request.param)
    monkeypatch.setattr(native, "_threads", pool)


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_a_batch_is_verified_as_each_request_alone(vocab_size: int, dtype: torch.dtype) -> None:
    depths = set()
    for cases, logits in batches(vocab_size, dtype):
        results = verify(cases, logits)
        for case, row, result in zip(cases, logits, results, strict=True):
            expected = case.step_by_step(row)
            assert result == expected
            assert verify([case], row[None]) == [expected]
            depths.add(expected[0])
    assert {-1, 0, 1} <= depths


def test_threads_share_the_rows_of_a_single_request(dtype: torch.dtype) -> None:
    """What is wrong with one is its error, as without them."""
    cases, logits = next(batches(9500, dtype))
    for case, row in zip(cases, logits, strict=True):
        assert verify([case], row[None]) == [case.step_by_step(row)]
        if case.rule == "traversal" and case.tokens and case.warp[0] > 0:
            row[case.parents[-1] + 1, 0] = torch.nan
            assert isinstance(verify([case], row[None])[0], _native.kernels.RowError)


def test_what_threads_work_in_does_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that finds the lock taken makes its own, which must not be kept for ever."""
    monkeypatch.setattr(native, "_threads", _native.kernels.ThreadPool(2))
    logits = torch.randn(16, 1, 50_000, generator=torch.Generator().manual_seed(0))
    warp = (1.0, 0, 1.0, 0.0)
    drafts = [native.draft_to_verify("token", [], [], None, warp, (row, 0)) for row in range(16)]
    for calls in (50, 1000):
        before = psutil.Process().memory_info().rss
        for _ in range(calls):
            native.verify_batch(drafts, logits)
        grown = psutil.Process().memory_info().rss - before
    assert grown < 8 * 2**20


def test_rows_behind_a_draft_do_not_count(dtype: torch.dtype) -> None:
    for cases, logits in batches(65, dtype):
        expected = verify(cases, logits)
        for case, row in zip(cases, logits, strict=True):
            row[len(case.tokens) + 1 :] = torch.nan
        assert verify(cases, logits) == expected


@pytest.mark.parametrize("flaw", [-torch.inf, torch.nan, torch.inf])
@pytest.mark.parametrize("vocab_size", [65, 1300])
def test_a_flawed_row_is_the_error_of_its_request_alone(
    vocab_size: int, flaw: float, dtype: torch.dtype
) -> None:
    for cases, logits in batches(vocab_size, dtype):
        expected = verify(cases, logits)
        for flawed in (0, 4, BATCH - 1):
            logits[flawed, 0] = flaw
        for index, result in enumerate(verify(cases, logits)):
            if index not in (0, 4, BATCH - 1):
                assert result == expected[index]
                continue
            assert isinstance(result, _native.kernels.RowError)
            reason = "all -inf" if flaw == -torch.inf else "NaN or inf"
            assert reason in str(result)


def test_an_invalid_draft_is_the_error_of_its_request_alone() -> None:
    logits = target_logits(65, torch.float32, 0)[:4, :2]
    rows = torch.full((1, 65), 1 / 65)
    warp = WARPS[1]
    drafts = [
        native.draft_to_verify("token", [65], [-1], rows, warp, (1, 5)),
        native.draft_to_verify("token", [64], [-1], rows, warp, (1, 5)),
        native.draft_to_verify("coupled", [3], [0], None, warp, (1, 5)),
        native.draft_to_verify("traversal", [3], [-1], None, warp, (1, 5)),
    ]
    outside, valid, orphan, point_mass = native.verify_batch(drafts, logits)
    assert isinstance(valid, tuple)
    for result, reason in [
        (outside, "token id 65"),
        (orphan, "no parent before it"),
        (point_mass, "drawn trees"),
    ]:
        assert isinstance(result, ValueError)
        assert reason in str(result)


def test_what_does_not_fit_is_refused() -> None:
    logits = torch.zeros(1, 2, 8)
    rows = torch.full((1, 8), 1 / 8)
    warp = WARPS[1]
    with pytest.raises(ValueError, match="no rule typical"):
        native.draft_to_verify("typical", [1], [-1], rows, warp, (1, 5))
    with pytest.raises(ValueError, match="one parent"):
        native.draft_to_verify("token", [1], [], rows, warp, (1, 5))
    with pytest.raises(ValueError, match="draft rows"):
        native.draft_to_verify("token", [1, 2], [-1, 0], rows, warp, (1, 5))
    draft = native.draft_to_verify("token", [1], [-1], rows, warp, (1, 5))
    with pytest.raises(ValueError, match="a row for each draft"):
        native.verify_batch([draft, draft], logits)
    with pytest.raises(ValueError, match="one more"):
        native.verify_batch([draft], logits[:, :1])
    with pytest.raises(ValueError, match="type and the vocabulary"):
        native.verify_batch([draft], logits.double())
    with pytest.raises(ValueError, match="type and the vocabulary"):
        native.verify_batch([draft], torch.zeros(1, 2, 9))
    assert native.verify_batch([], torch.zeros(0, 2, 8)) == []
