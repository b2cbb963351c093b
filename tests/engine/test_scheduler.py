"""Rows, prefix reuse, prompts in chunks, and one round's worth of calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.contracts import CausalLM
from forerun.core import Batch, ForwardOutput, Request
from forerun.drafters.cascade import CascadeDrafter
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.engine import scheduler as scheduler_module
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.requests import Running
from forerun.models.cpu import CpuModel
from forerun.params import SamplingParams
from forerun.testing import ToyModel
from tests.helpers.counting import Counting
from tests.helpers.examples import examples
from tests.helpers.kernel_models import model, needs_kernels
from tests.matrix import TARGET

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
LONG = SamplingParams(temperature=0.0, max_tokens=100)


def record(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Every chunk of a prompt that a model runs from now on."""
    batches: list[Batch] = []

    def watch(kind: Any) -> None:
        forward = kind.forward

        def seen(target: CausalLM, batch: Batch, cache: Any) -> ForwardOutput:
            if batch.logits_for == "none":
                batches.append(batch)
            output: ForwardOutput = forward(target, batch, cache)
            return output

        monkeypatch.setattr(kind, "forward", seen)

    for kind in (ToyModel, CpuModel):
        watch(kind)
    return batches


def test_a_second_turn_runs_its_own_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Engine(ToyModel(11), max_batch_size=2)
    first = one.generate([[1, 2, 3, 4]], GREEDY)[0]
    batches = record(monkeypatch)
    turn = [1, 2, 3, 4, *first.token_ids, 5, 6, 7]
    second = one.generate([turn], GREEDY)[0]
    # The newest token of a text has not been run yet, and the last of a prompt runs with the draft.
    assert [list(batch.token_ids[0]) for batch in batches] == [[first.token_ids[-1], 5, 6]]
    assert second.stats.num_cached_tokens == len(turn) - 4
    assert second.token_ids == Engine(ToyModel(11)).generate([turn], GREEDY)[0].token_ids
    assert one.stats.num_cached_tokens == second.stats.num_cached_tokens


def test_prefix_reuse_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Engine(ToyModel(11), prefix_reuse=False)
    for _ in range(2):
        completion = one.generate([[1, 2, 3, 4]], GREEDY)[0]
        assert completion.stats.num_cached_tokens == 0


@pytest.mark.parametrize("cascade", [False, True], ids=["alone", "cascade"])
@pytest.mark.parametrize("reuse", [True, False], ids=["reuse", "none"])
def test_a_second_turn_runs_its_own_tokens_alone_in_the_draft_model(
    reuse: bool, cascade: bool
) -> None:
    """Counted with both models in agreement, so that every draft is accepted whole."""
    target, draft = ToyModel(11), Counting(11)
    model = DraftModelDrafter(draft, 1, draft.max_context)
    drafter = CascadeDrafter([NgramDrafter(), model], 1.0) if cascade else model
    config = SpeculativeConfig(num_speculative_tokens=3, policy="fixed")
    one = Engine(target, drafter, config, prefix_reuse=reuse)
    first = one.generate([[1, 2, 3, 4]], GREEDY)[0]
    assert draft.ran == 4 + len(first.token_ids) - 2
    draft.ran = 0
    turn = [1, 2, 3, 4, *first.token_ids, 5, 6, 7]
    second = one.generate([turn], GREEDY)[0]
    assert second.token_ids == Engine(target).generate([turn], GREEDY)[0].token_ids
    assert draft.ran == len(turn) + len(second.token_ids) - 2 - (len(turn) - 5 if reuse else 0)


def test_admission_takes_the_row_that_shares_most() -> None:
    one = Engine(ToyModel(11), max_batch_size=3)
    prompts = [[1, 2, 3, 4, 5], [1, 2, 9, 9, 9], [7, 7, 7, 7, 7]]
    one.generate(prompts, GREEDY)
    cached = [
        one.generate([prompt], SamplingParams(max_tokens=1))[0].stats.num_cached_tokens
        for prompt in ([7, 7, 7, 7, 1], [1, 2, 9, 9, 1], [1, 2, 3, 4, 1], [5, 5])
    ]
    assert cached == [4, 4, 4, 0]


def test_a_drafter_sees_the_hidden_states_of_prompts_that_the_plain_loop_has_run() -> None:
    seen: list[tuple[int, int]] = []

    class Head(NgramDrafter):
        hidden_layers: tuple[int, ...] = (1,)

        def observe_prefill(self, request: Request, start: int, output: ForwardOutput) -> None:
            seen.append((start, output.hidden[1].shape[1]))

    one = Engine(TARGET, Head(1, 3))
    seen.clear()
    for _ in one.stream_plain([1, 2, 3, 4], GREEDY):
        pass
    one.generate([[1, 2, 3, 4, 5, 6]], GREEDY)
    assert seen == [(0, 5)]


def test_what_a_row_has_lost_is_run_again() -> None:
    """A row that holds less than was written down when its request ended."""
    one = Engine(ToyModel(11))
    one.generate([[1, 2, 3, 4, 5, 6]], GREEDY)
    one._parts.cache.trim(0, 2)
    completion = one.generate([[1, 2, 3, 4, 5, 6]], GREEDY)[0]
    assert completion.stats.num_cached_tokens == 2
    expected = Engine(ToyModel(11)).generate([[1, 2, 3, 4, 5, 6]], GREEDY)[0]
    assert completion.token_ids == expected.token_ids


@needs_kernels
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_reuse_is_a_fresh_prefill_bit_for_bit(precision: str) -> None:
    """Turns of a conversation on the kernels, target and draft: log probabilities and all."""
    target, draft = model("llama", precision), model("llama", precision, seed=3)
    params = SamplingParams(temperature=0.0, max_tokens=9, logprobs=2)

    def engine(reuse: bool) -> Engine:
        drafter = DraftModelDrafter(draft, 2, draft.max_context)
        config = SpeculativeConfig(num_speculative_tokens=3, policy="fixed")
        return Engine(target, drafter, config, max_batch_size=2, prefix_reuse=reuse)

    one, text, reused = engine(True), [1, 2, 3, 4, 5], 0
    for turn in range(4):
        kept = one.generate([text, [9, 8, turn]], params)
        fresh = engine(False).generate([text, [9, 8, turn]], params)
        for ours, theirs in zip(kept, fresh, strict=True):
            assert ours.token_ids == theirs.token_ids
            assert ours.logprobs == theirs.logprobs
        reused += kept[0].stats.num_cached_tokens
        text = [*text, *kept[0].token_ids, 6, 7]
    assert reused > 40


@examples(40)
@given(st.data())
def test_any_order_of_requests_gives_plain_texts(data: st.DataObject) -> None:
    """Prompts that share beginnings, cancelled and finished in any order, over few rows."""
    prompts = data.draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=12))
    one = Engine(ToyModel(3), NgramDrafter(1, 2), max_batch_size=2)
    ids = {}
    for prompt in prompts:
        ids[one.add(prompt, GREEDY)] = prompt
        for _ in range(data.draw(st.integers(0, 3))):
            one.step()
        if data.draw(st.booleans()):
            one.cancel(data.draw(st.sampled_from(sorted(ids))))
    while one.has_work:
        one.step()
    for number, prompt in ids.items():
        completion = one.completion(number)
        expected = Engine(ToyModel(3)).generate([prompt], GREEDY)[0].token_ids
        assert completion.token_ids == expected[: len(completion.token_ids)]
        assert completion.finish_reason != "error"


class Clock:
    """Time that passes by tokens run."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def timed_engine(
    monkeypatch: pytest.MonkeyPatch, rows: int, streams: int, context: int = 512
) -> tuple[Engine, Clock]:
    """An engine with running streams, on a clock that its passes move: each costs 20 and a token 1."""
    clock, target = Clock(), ToyModel(11, max_context=context)
    forward = target.forward

    def run(batch: Batch, cache: Any) -> ForwardOutput:
        output = forward(batch, cache)
        clock.now += 20 + sum(batch.counts)
        return output

    monkeypatch.setattr(target, "forward", run)
    monkeypatch.setattr(scheduler_module, "perf_counter", clock)
    one = Engine(target, max_batch_size=rows)
    waits_until_all_began(one, clock, [one.add([start, 1], LONG) for start in range(streams)])
    return one, clock


def waits_until_all_began(one: Engine, clock: Clock, ids: list[int]) -> list[float]:
    """Time of each step until all of some requests have a token."""
    waits, missing = list[float](), set(ids)
    while missing:
        before = clock.now
        missing -= {event.request_id for event in one.step()}
        waits.append(clock.now - before)
    return waits


def test_streams_wait_for_a_long_prompt_no_longer_than_two_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, clock = timed_engine(monkeypatch, rows=9, streams=8)
    started = clock.now
    one.step()
    round_time = clock.now - started
    waits = waits_until_all_began(one, clock, [one.add([5, 6] * 200, LONG)])
    assert max(waits) <= 2 * round_time + 10
    # And the prompt gets on: a chunk takes about as long as a round.
    assert len(waits) < 60


def test_streams_wait_for_many_short_prompts_no_longer_than_for_one_pass_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each prompt is a pass of its own: what bounds them is their time, and not the number of tokens."""
    one, clock = timed_engine(monkeypatch, rows=16, streams=4)
    # Prompts that need one more pass than the allowed time has room for; then the round itself.
    most = (
        scheduler_module.CHUNK_SHARE * scheduler_module.CROWDED * (20 + 15) + (20 + 5) + (20 + 15)
    )
    waits = waits_until_all_began(one, clock, [one.add([5] * 6, LONG) for _ in range(11)])
    assert max(waits) <= most
    assert len(waits) < 12


@pytest.mark.parametrize("long", [400, 430, 4000])
def test_a_short_prompt_beside_a_long_one_and_a_stream_begins_within_three_rounds(
    long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it comes, be the long prompt at its beginning or nearly done."""
    for steps in range(32):
        one, clock = timed_engine(monkeypatch, rows=3, streams=1, context=4200)
        one.add([5, 6] * (long // 2), LONG)
        for _ in range(steps):
            one.step()
        waits = waits_until_all_began(one, clock, [one.add([7] * 40, LONG)])
        assert len(waits) <= 3, steps


def test_a_long_prompt_gets_on_where_no_request_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of one token end in their first round, so that no stream ever runs."""
    monkeypatch.setattr(scheduler_module, "LARGEST_CHUNK", 32)
    one, params = (
        Engine(ToyModel(11), max_batch_size=3),
        SamplingParams(max_tokens=1, temperature=0.0),
    )
    long, began = one.add([1, 2] * 200, params), set[int]()
    for round_ in range(80):
        one.add([3, round_ % 11] * 16, params)
        began |= {event.request_id for event in one.step()}
        if long in began:
            break
    assert long in began


def test_a_batch_that_starts_together_is_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = record(monkeypatch)
    one = Engine(ToyModel(11), max_batch_size=4)
    for start in range(4):
        one.add([start] * 30, GREEDY)
    one.step()
    assert [batch.counts for batch in batches] == [(29,)] * 4


def test_prompts_beside_a_stream_are_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "SMALLEST_CHUNK", 60)
    monkeypatch.setattr(scheduler_module, "CHUNK_SHARE", 5.0)
    one, _ = timed_engine(monkeypatch, rows=4, streams=1)
    for start in range(3):
        one.add([start] * 21, GREEDY)
    assert len({event.request_id for event in one.step()}) == 4


def test_the_hook_on_forward_is_called_before_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, forward = list[str](), ToyModel.forward

    def run(target: ToyModel, batch: Batch, cache: Any) -> ForwardOutput:
        calls.append("forward")
        return forward(target, batch, cache)

    monkeypatch.setattr(ToyModel, "forward", run)
    one = Engine(ToyModel(11), max_batch_size=2)
    one.watch_rounds(None, on_forward=lambda: calls.append("hook"))
    one.generate([[1, 2, 3], [4, 5]], GREEDY)
    assert calls == ["hook", "forward"] * (len(calls) // 2)


def test_the_hook_on_forward_is_called_before_a_model_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A draft model may take long: what the last round emitted need not wait for it."""
    calls, propose = list[str](), DraftModelDrafter.propose

    def run(drafter: DraftModelDrafter, *args: Any) -> Any:
        calls.append("propose")
        return propose(drafter, *args)

    target, draft = ToyModel(11), ToyModel(11)
    forward = target.forward

    def run_target(batch: Batch, cache: Any) -> ForwardOutput:
        calls.append("target")
        return forward(batch, cache)

    monkeypatch.setattr(DraftModelDrafter, "propose", run)
    monkeypatch.setattr(target, "forward", run_target)
    drafter = DraftModelDrafter(draft, 1, draft.max_context)
    one = Engine(target, drafter, SpeculativeConfig(policy="fixed"), max_batch_size=1)
    one.watch_rounds(None, on_forward=lambda: calls.append("hook"))
    one.generate([1, 2, 3], GREEDY)
    before = [earlier for earlier, later in pairwise(calls) if later != "hook"]
    assert before == ["hook"] * len(before)
    assert "propose" in calls


@needs_kernels
@pytest.mark.parametrize("sampler", [{"temperature": 0.0}, {"top_p": 0.9}, {"seed": 1}])
def test_a_round_on_the_kernels_verifies_in_one_call(
    sampler: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from forerun._native import rows as native

    calls: list[int] = []
    verify = native.verify_batch

    def counted(drafts: Sequence[Any], logits: torch.Tensor) -> Any:
        calls.append(len(drafts))
        return verify(drafts, logits)

    monkeypatch.setattr(native, "verify_batch", counted)
    for name in ("decide", "warp", "draw", "couple"):
        monkeypatch.setattr(native, name, lambda *_: pytest.fail("not in one call"))
    target, draft = model("llama", "bf16"), model("llama", "int8", seed=3)
    drafter = DraftModelDrafter(draft, 4, draft.max_context)
    one = Engine(target, drafter, SpeculativeConfig(policy="fixed"), max_batch_size=4)
    rounds: list[int] = []
    one.watch_rounds(lambda done: rounds.extend(r.request_id for r in done.requests))
    one.generate([[1, 2], [3], [4, 5, 6], [7]], SamplingParams(max_tokens=9, **sampler))
    assert sum(calls) == len(rounds)
    assert max(calls) == 4


@pytest.mark.parametrize("how", ["generate", "step"])
def test_a_round_looks_at_no_request_that_waits_or_has_ended(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    looked_at = Counter[int]()
    finished: Any = Running.__dict__["finished"]

    def watch(running: Running) -> bool:
        looked_at[running.request.request_id] += 1
        return bool(finished.fget(running))

    monkeypatch.setattr(Running, "finished", property(watch))
    one = Engine(ToyModel(11), max_batch_size=2)
    if how == "generate":
        one.generate([[1, 2]] * 80, GREEDY)
    else:
        for _ in range(80):
            one.add([1, 2], GREEDY)
        while one.has_work:
            one.step()
    # Eight rounds each; every one of them looks a few times.
    assert max(looked_at.values()) < 8 * 10
