"""Chains drafted in one call of the kernels are those that the drafter steps through."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from forerun.core import Draft, Drawing, Plan, Request
from forerun.drafters.draft_cache import LARGEST_SHARED_CATCH_UP
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.models.cpu import CpuModel
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from tests.helpers.kernel_models import CONTEXT, model, needs_kernels

pytestmark = needs_kernels

PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=0.7, min_p=0.1),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.8, min_p=0.02),
    SamplingParams(seed=3),
]
MODELS = [("llama", "fp32"), ("mistral", "int8"), ("qwen3", "int4"), ("gpt2", "bf16")]


class Twins:
    """A drafter that leaves chains to the kernels and one that steps, each with its own cache."""

    def __init__(self, draft: CpuModel, rows: int, capacity: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        # Where steps pad logits before they are warped, one call pads probabilities: the same sum
        # over other lanes.
        self.rounding = 1e-6 if vocab_size > draft.vocab_size else 0.0
        self.both = [DraftModelDrafter(draft, rows, capacity, vocab_size) for _ in range(2)]
        assert self.both[0]._drafts_chains
        self.both[1]._drafts_chains = False

    def propose(self, requests: Sequence[Request], plans: Sequence[Plan]) -> list[Draft]:
        """What both propose, once it is known to be the same and to leave the same behind."""
        ours, stepped = (one.propose(requests, plans, Randomness()) for one in self.both)
        for draft, other in zip(ours, stepped, strict=True):
            assert (draft.token_ids, draft.tree) == (other.token_ids, other.tree)
            assert draft.tree.is_chain
            same_rows(draft, other, self.rounding)
        self.check_rows()
        for draft, plan in zip(ours, plans, strict=True):
            assert all(0 <= token < self.vocab_size for token in draft.token_ids)
            drawn = plan.drawing is Drawing.SAMPLED and len(draft) > 0
            assert (draft.probs is not None) == drawn
        return ours

    def check_rows(self) -> None:
        caches = [one.cache for one in self.both]
        for row, (held, other) in enumerate(zip(*(one._rows for one in caches), strict=True)):
            assert held == other
            lengths = [one.cache.length(row) for one in caches]
            assert lengths == [len(held.token_ids) + len(held.draft)] * 2

    def release(self, request: Request) -> None:
        for one in self.both:
            one.release(request)


def same_rows(draft: Draft, other: Draft, rounding: float = 0.0) -> None:
    if draft.probs is None or other.probs is None:
        assert draft.probs is other.probs
        return
    assert isinstance(draft.probs, torch.Tensor)
    assert isinstance(other.probs, torch.Tensor)
    assert len(draft.probs) == len(draft)
    assert torch.equal(draft.probs > 0, other.probs > 0)
    torch.testing.assert_close(draft.probs, other.probs, rtol=0, atol=rounding)


def texts(source: random.Random, batch: int, vocab_size: int, **options: Any) -> list[Request]:
    """Prompts of different lengths, shorter and longer than what is caught up with others."""
    return [text(source, row, row, vocab_size, **options) for row in range(batch)]


def text(
    source: random.Random,
    request_id: int,
    row: int,
    vocab_size: int,
    params: SamplingParams | None = None,
    stops: Sequence[int] = (),
) -> Request:
    length = source.randint(1, 2 * LARGEST_SHARED_CATCH_UP)
    ids = [source.randrange(vocab_size) for _ in range(length)]
    chosen = params or source.choice(PARAMS)
    seed = chosen.seed if chosen.seed is not None else source.randrange(-(2**63), 2**63)
    return Request(
        request_id, ids, length, chosen, seed=seed, row=row, stop_token_ids=frozenset(stops)
    )


def commit(source: random.Random, request: Request, draft: Draft, vocab_size: int) -> int:
    """Accept a part of a draft and emit some more, now and then many; how much was accepted."""
    taken = source.randint(0, len(draft))
    more = LARGEST_SHARED_CATCH_UP + 3 if source.random() < 0.1 else source.randint(1, 2)
    request.extend(draft.token_ids[:taken])
    request.extend(source.randrange(vocab_size) for _ in range(more))
    return taken


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of chains of every call of the kernels."""
    found: list[int] = []
    draft_chains = CpuModel.draft_chains

    def counted(self: CpuModel, cache: Any, chains: Any, vocab_size: int) -> list[Draft]:
        found.append(len(chains))
        return draft_chains(self, cache, chains, vocab_size)

    monkeypatch.setattr(CpuModel, "draft_chains", counted)
    return found


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("drawing", Drawing)
@pytest.mark.parametrize(("name", "precision"), MODELS)
def test_one_call_drafts_what_steps_do(
    name: str, precision: str, drawing: Drawing, batch: int, calls: list[int]
) -> None:
    """Over rounds whose drafts are accepted in part, for every kind of row."""
    draft = model(name, precision)
    vocab_size, rounds, accepted = draft.vocab_size, 5, set()
    for index, params in enumerate(PARAMS):
        source = random.Random(100 * index + batch)
        twins = Twins(draft, batch, 200, vocab_size)
        requests = texts(source, batch, vocab_size, params=params)
        for _ in range(rounds):
            plans = [Plan(source.randint(1, 5), drawing) for _ in requests]
            drafts = twins.propose(requests, plans)
            assert [len(one) for one in drafts] == [plan.num_tokens for plan in plans]
            for request, one in zip(requests, drafts, strict=True):
                accepted.add(commit(source, request, one, vocab_size) / len(one))
    assert calls == [batch] * rounds * len(PARAMS)
    assert {0.0, 1.0} < accepted


@pytest.mark.parametrize("seed", range(12))
def test_batches_of_all_kinds(seed: int, calls: list[int]) -> None:
    """Rows with drawings, parameters and limits of their own, plain rounds, rows used again."""
    source = random.Random(seed)
    draft = model(*MODELS[seed % len(MODELS)])
    twins = Twins(draft, 3, CONTEXT, draft.vocab_size)
    requests = texts(source, 3, draft.vocab_size)
    for number in range(8):
        plans = [Plan(source.randint(0, 5), source.choice(list(Drawing))) for _ in requests]
        chosen = source.sample(range(3), source.randint(1, 3))
        drafts = twins.propose([requests[row] for row in chosen], [plans[row] for row in chosen])
        for row, one in zip(chosen, drafts, strict=True):
            assert len(one) == plans[row].num_tokens
            commit(source, requests[row], one, draft.vocab_size)
        if source.random() < 0.3:
            twins.release(requests[1])
            twins.check_rows()
            requests[1] = text(source, 10 + number, 1, draft.vocab_size)
    assert len(calls) > 3


@pytest.mark.parametrize("capacity", [40, 1000])
@pytest.mark.parametrize("drawing", Drawing)
def test_chains_end_with_the_room(drawing: Drawing, capacity: int, calls: list[int]) -> None:
    """The drafter's or the model's context: shorter and shorter chains, then none."""
    draft = model("llama")
    room = min(capacity, CONTEXT)
    source = random.Random(capacity)
    twins = Twins(draft, 3, capacity, draft.vocab_size)
    requests = texts(source, 3, draft.vocab_size)
    for before, request in zip((7, 4, 5), requests, strict=True):
        start = room - before
        request.token_ids[:] = [source.randrange(draft.vocab_size) for _ in range(start)]
    lengths = []
    for _ in range(10):
        drafts = twins.propose(requests, [Plan(4, drawing)] * 3)
        for request, one in zip(requests, drafts, strict=True):
            assert len(one) == max(min(4, room - len(request)), 0)
            lengths.append(len(one))
            request.extend([*one.token_ids[:1], 0])
    assert set(lengths) == {0, 1, 2, 3, 4}
    assert len(calls) > 1


@pytest.mark.parametrize("drawing", Drawing)
def test_nothing_follows_a_stop_token(drawing: Drawing, calls: list[int]) -> None:
    """A chain that has ended waits for the others of its batch."""
    draft = model("qwen3", "int8")
    ended = 0
    for seed in range(12):
        source = random.Random(seed)
        twins = Twins(draft, 3, 120, draft.vocab_size)
        stops = source.sample(range(draft.vocab_size), draft.vocab_size // 5)
        requests = texts(source, 3, draft.vocab_size, stops=stops)
        for _ in range(3):
            drafts = twins.propose(requests, [Plan(source.randint(1, 5), drawing)] * 3)
            for request, one in zip(requests, drafts, strict=True):
                assert not {*one.token_ids[:-1]} & {*stops}
                ended += one.token_ids[-1] in stops
                commit(source, request, one, draft.vocab_size)
    assert ended > 10
    assert len(calls) == 36


@pytest.mark.parametrize("difference", [-20, -1, 1, 30])
@pytest.mark.parametrize("drawing", Drawing)
def test_vocabularies_of_different_sizes(
    drawing: Drawing, difference: int, calls: list[int]
) -> None:
    """What only the draft has is never drafted; what only the target has has no probability."""
    draft = model("llama", "int4")
    vocab_size = draft.vocab_size + difference
    shared = min(vocab_size, draft.vocab_size)
    for index, params in enumerate(PARAMS):
        source = random.Random(index)
        twins = Twins(draft, 3, 200, vocab_size)
        requests = texts(source, 3, shared, params=params)
        for _ in range(3):
            drafts = twins.propose(requests, [Plan(4, drawing)] * 3)
            for request, one in zip(requests, drafts, strict=True):
                assert max(one.token_ids) < shared
                if isinstance(one.probs, torch.Tensor):
                    assert one.probs.shape == (4, vocab_size)
                    assert (one.probs[:, shared:] == 0).all()
                commit(source, request, one, shared)
    assert len(calls) == 3 * len(PARAMS)


@pytest.mark.parametrize("drawing", Drawing)
def test_batches_with_penalties_are_stepped(drawing: Drawing, calls: list[int]) -> None:
    """Rounds in one call and rounds in steps go on from each other's rows."""
    draft = model("mistral")
    source = random.Random(7)
    twins = Twins(draft, 3, 200, draft.vocab_size)
    requests = texts(source, 3, draft.vocab_size)
    penalized = SamplingParams(repetition_penalty=1.3, presence_penalty=0.5)
    requests[2] = text(source, 2, 2, draft.vocab_size, params=penalized)
    expected: list[int] = []
    for number in range(8):
        some = requests if number % 2 else requests[:2]
        # One that has no draft to make is nobody's hindrance.
        plans = [Plan(3, drawing), Plan(2, drawing), Plan(0 if number == 5 else 4, drawing)]
        drafts = twins.propose(some, plans[: len(some)])
        if number % 2 == 0 or number == 5:
            expected.append(2)
        assert calls == expected
        for request, one in zip(some, drafts, strict=True):
            commit(source, request, one, draft.vocab_size)


def test_whoever_hears_of_keys_hears_of_all(calls: list[int]) -> None:
    """With a record of keys the chains are stepped, to the same tokens."""
    draft = model("llama")
    source = random.Random(1)
    one = text(source, 0, 0, draft.vocab_size, params=SamplingParams())
    keys: list[Any] = []
    drafts = []
    for randomness in (Randomness(), Randomness(keys.append)):
        drafter = DraftModelDrafter(draft, 1, 100)
        drafts += drafter.propose([one], [Plan(4, Drawing.SAMPLED)], randomness)
    assert drafts[0].token_ids == drafts[1].token_ids
    same_rows(drafts[0], drafts[1])
    assert calls == [1]
    assert [key.node for key in keys] == [0, 1, 2, 3]
