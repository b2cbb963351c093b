"""Admission, limits, stops, streams and statistics of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, Literal

import pytest
import torch
from tokenizers import AddedToken

from forerun.contracts import DrafterSetup
from forerun.core import Drawing, FinishReason, Origin, Stats
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.params import SamplingParams
from forerun.sampling import Prefix, warp
from forerun.testing import ToyModel
from tests.helpers.engines import GREEDY, Letters, engine, plain_ids
from tests.matrix import DRAFT, DRAFTERS, PROMPTS, ROWS, SOME_DRAFTERS, TARGET


def test_more_requests_than_rows_wait_their_turn() -> None:
    prompts = [[one, 1, 2] for one in range(9)]
    many = engine(rows=2).generate(prompts, GREEDY)
    for prompt, completion in zip(prompts, many, strict=True):
        assert completion.prompt_ids == tuple(prompt)
        assert completion.token_ids == plain_ids(prompt, GREEDY)


def test_requests_join_and_leave_between_rounds() -> None:
    """Different lengths, samplers and speculation in one batch; every output as if alone."""
    params = [
        replace(GREEDY, max_tokens=5),
        SamplingParams(seed=4, max_tokens=40),
        replace(GREEDY, presence_penalty=0.5),
        SamplingParams(seed=4, max_tokens=11, top_k=3),
    ]
    both = engine(rows=2)
    first = [both.add([1, 2], params[0]), both.add([3], params[1], speculative=False)]
    both.step()
    second = [both.add([4, 5, 6], params[2]), both.add([7], params[3])]
    ended: list[int] = []
    while both.has_work:
        both.step()
        ended += [number for number in both.ended if number not in ended]
    assert sorted(ended) == sorted(both.ended) == first + second
    assert ended[0] == first[0]
    prompts = [[1, 2], [3], [4, 5, 6], [7]]
    for request_id, prompt, one in zip(first + second, prompts, params, strict=True):
        assert both.completion(request_id).token_ids == plain_ids(prompt, one)
    assert not both.ended


def test_speculation_can_be_off_for_one_request() -> None:
    completion = engine().generate([[1, 2]], GREEDY, speculative=False)[0]
    assert set(completion.origins) == {Origin.PLAIN}
    assert completion.stats.num_drafts == 0
    assert completion.stats.tokens_per_target_forward == 1


def test_max_tokens_cuts_inside_an_accepted_path() -> None:
    whole = plain_ids([1, 2, 3], GREEDY)
    for limit in range(1, 20):
        completion = engine(length=5).generate([[1, 2, 3]], replace(GREEDY, max_tokens=limit))[0]
        assert completion.token_ids == whole[:limit]
        assert completion.finish_reason is FinishReason.LENGTH
        assert completion.stats.num_emitted_tokens == limit


def test_stop_tokens_cut_where_plain_decoding_does() -> None:
    whole = plain_ids([1, 2, 3], GREEDY)
    for stop in set(whole):
        params = replace(GREEDY, stop_token_ids=(stop,))
        completion = engine(length=5).generate([[1, 2, 3]], params)[0]
        assert completion.token_ids == whole[: whole.index(stop) + 1]
        assert completion.finish_reason is FinishReason.STOP


def test_end_of_text_ends_unless_ignored() -> None:
    whole = plain_ids([1, 2, 3], GREEDY)
    eos = whole[6]
    one = engine(eos_token_ids=[eos])
    assert one.generate([[1, 2, 3]], GREEDY)[0].token_ids == whole[: whole.index(eos) + 1]
    ignoring = replace(GREEDY, ignore_eos=True)
    assert one.generate([[1, 2, 3]], ignoring)[0].token_ids == whole


def test_stop_strings_cut_text_and_tokens() -> None:
    whole = plain_ids([1, 2, 3], GREEDY)
    text = Letters().decode(whole)
    for start in range(0, 20, 3):
        stop = text[start : start + 3]
        completion = engine(length=5).generate(
            [[1, 2, 3]], replace(GREEDY, stop=(stop, "nothing"))
        )[0]
        at = text.index(stop)
        assert completion.text == text[:at]
        assert completion.token_ids == whole[: at + 3]
        assert completion.finish_reason is FinishReason.STOP


class Marked(Letters):
    """Letters, one of which is a special token with a name, so that texts are without it."""

    def __init__(self, special: int) -> None:
        self.special = special
        self.added_tokens_decoder = {
            special: AddedToken("<|end|>", special=True),
            special + 1: AddedToken("<|kept|>", special=False),
        }

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return super().decode([token for token in token_ids if token != self.special])


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_stop_string_that_is_a_special_token_ends_at_it(ignore_eos: bool) -> None:
    whole = plain_ids([1, 2, 3], GREEDY)
    for special in set(whole):
        one = Engine(TARGET, DraftModelDrafter(DRAFT, 1, 512), tokenizer=Marked(special))
        stops = ("<|end|>", "<|kept|>")
        params = replace(GREEDY, stop=stops, ignore_eos=ignore_eos)
        completion = one.generate([1, 2, 3], params)
        assert completion.token_ids == whole[: whole.index(special) + 1]
        assert completion.finish_reason is FinishReason.STOP
        assert one.generate([1, 2, 3], replace(GREEDY, stop=stops[1:])).token_ids == whole


def test_the_context_is_never_exceeded() -> None:
    """The last round drafts no further than the context goes."""
    one = engine(length=5, max_context=24)
    completion = one.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=None))[0]
    assert len(completion.token_ids) == 21
    assert completion.finish_reason is FinishReason.LENGTH


def test_a_draft_model_with_a_shorter_context_stops_drafting() -> None:
    short = ToyModel(TARGET.vocab_size, noise=1.0, max_context=12)
    config = SpeculativeConfig(policy="fixed")
    completion = Engine(TARGET, DraftModelDrafter(short, 1, 512), config).generate(
        [1, 2, 3], GREEDY
    )
    assert completion.token_ids == plain_ids([1, 2, 3], GREEDY)
    assert completion.stats.num_drafts > 0
    assert completion.stats.num_plain_rounds_by_reason.keys() == {"context", "short"}


@pytest.mark.parametrize(("context", "said"), [(12, True), (40, False)])
def test_a_shorter_context_of_the_draft_model_is_said_when_it_is_loaded(
    caplog: pytest.LogCaptureFixture, context: int, said: bool
) -> None:
    model = ToyModel(TARGET.vocab_size, max_context=context)
    DraftModelDrafter.build(DrafterSetup(TARGET, 1, 40, {}, lambda: model))
    assert ("has a context of 12 tokens" in caplog.text) == said


def test_streams_carry_text_origins_and_the_end() -> None:
    one = engine()
    stream = one.stream("bcd", GREEDY)
    events = list(stream)
    completion = stream.completion
    assert "".join(event.text for event in events) == completion.text
    assert [event.token_id for event in events] == list(completion.token_ids)
    assert [event.origin for event in events] == list(completion.origins)
    assert {Origin.ACCEPTED, Origin.RECOVERED} <= set(completion.origins)
    assert [event.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("after", range(1, 9))
@pytest.mark.parametrize("ended", ["cancelled", "error"])
def test_texts_make_up_the_text_of_a_request_that_is_cut_off(after: int, ended: str) -> None:
    """With what was held back for a stop string that began and did not come."""
    one, whole = engine(length=5), plain_ids([1, 2, 3], GREEDY)

    def mask(committed: Sequence[int], drafted: Sequence[int]) -> None:
        if ended == "error" and len(committed) + len(drafted) == 3 + after:
            raise ValueError("broken")

    stop = Letters().decode(whole[1:7]) + "?"
    stream = one.stream([1, 2, 3], replace(GREEDY, stop=(stop,), mask=mask))
    with suppress(ValueError):
        for _ in stream:
            if ended == "cancelled" and stream.completion.token_ids[after - 1 :]:
                break
    stream.close()
    completion = stream.completion
    assert completion.finish_reason == ended
    assert len(completion.texts) == len(completion.token_ids) >= after
    assert "".join(completion.texts) == completion.text == Letters().decode(completion.token_ids)


def test_leaving_a_stream_early_frees_its_row() -> None:
    one = engine(rows=1)
    stream = one.stream([1, 2], GREEDY)
    for _ in range(4):
        next(stream)
    stream.close()
    assert stream.completion.finish_reason is FinishReason.CANCELLED
    assert len(stream.completion.token_ids) >= 4
    assert one.generate([[1, 2, 3]], GREEDY)[0].token_ids == plain_ids([1, 2, 3], GREEDY)


def test_masks_are_asked_about_reachable_prefixes_alone() -> None:
    """A grammar that ends: after the stop token, and after a token that it forbids, it has no
    next state and fails when asked. Plain decoding never asks, so speculation must not either."""
    allowed = {position: {position % 5, (position + 3) % 5, 9} for position in range(100)}

    def mask(committed: Sequence[int], drafted: Sequence[int]) -> list[bool]:
        tokens = [*committed, *drafted]
        for position, token in enumerate(tokens[2:], start=2):
            if token not in allowed[position] or (token == 9 and position < len(tokens)):
                raise ValueError("no such state")
        return [token in allowed[len(tokens)] for token in range(TARGET.vocab_size)]

    free = SamplingParams(mask=mask, max_tokens=40, stop_token_ids=(9,))
    seeded = [replace(free, seed=seed) for seed in range(3)]
    wanted = [plain_ids([1, 2], params) for params in seeded]
    drafted = 0
    for case in DRAFTERS:
        options: dict[str, Any] = {"num_speculative_tokens": 4, "policy": "fixed"}
        coupled = Engine(TARGET, case.make(), SpeculativeConfig(**options))
        for params, ids in zip(seeded, wanted, strict=True):
            assert coupled.generate([[1, 2]], params)[0].token_ids == ids
        # The coupled rule reads no row that it does not reach; this one has them all.
        config = SpeculativeConfig(rejection_sample_method="token", **options)
        one = Engine(TARGET, case.make(), config)
        one.use_seeds(count().__next__)
        for completion in one.generate([[1, 2]] * 4, free):
            assert completion.finish_reason is FinishReason.STOP
        drafted += one.stats.num_draft_tokens
    assert drafted > len(DRAFTERS)


def test_streams_side_by_side_lose_no_token() -> None:
    one = engine(rows=2)
    added = one.add([8, 9], GREEDY)
    first, second = one.stream([1, 2], GREEDY), one.stream([3], GREEDY)
    tokens: dict[int, list[int]] = {first.request_id: [], second.request_id: []}
    for pair in zip(first, second, strict=True):
        for event in pair:
            tokens[event.request_id].append(event.token_id)
    in_between = one.generate([[5, 6]], GREEDY)[0]
    events = one.step()
    assert tuple(tokens[first.request_id]) == plain_ids([1, 2], GREEDY)
    assert tuple(tokens[second.request_id]) == plain_ids([3], GREEDY)
    assert in_between.token_ids == plain_ids([5, 6], GREEDY)
    assert tuple(e.token_id for e in events if e.request_id == added) == plain_ids([8, 9], GREEDY)


def test_plain_streams_take_a_row_while_they_run() -> None:
    one = engine(rows=1)
    first, second = one.stream_plain([1, 2], GREEDY), one.stream_plain([3], GREEDY)
    next(first)
    with pytest.raises(ConfigError, match="all rows are taken"):
        next(second)
    first.close()
    assert first.completion.finish_reason is FinishReason.CANCELLED
    assert one.generate([[1, 2]], GREEDY)[0].token_ids == plain_ids([1, 2], GREEDY)


def test_greedy_drafts_stay_greedy_under_a_seed() -> None:
    """`draft_sample_method` is obeyed whatever the rule."""
    drawings: set[Drawing] = set()

    class Watching(DraftModelDrafter):
        def propose(self, requests, plans, randomness):  # type: ignore[no-untyped-def]
            drawings.update(plan.drawing for plan in plans)
            return super().propose(requests, plans, randomness)

    config = SpeculativeConfig(draft_sample_method="greedy")
    params = SamplingParams(seed=3, max_tokens=20)
    one = Engine(TARGET, Watching(DRAFT, 1, 512), config)
    assert one.generate([[1, 2]], params)[0].token_ids == plain_ids([1, 2], params)
    assert drawings == {Drawing.GREEDY}


def test_a_stream_that_is_never_read_takes_nothing() -> None:
    one = engine(rows=1)
    unread = one.stream([1, 2], GREEDY)
    unread.close()
    assert not one.has_work
    assert one.generate([[1, 2]], GREEDY)[0].token_ids == plain_ids([1, 2], GREEDY)


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_logprobs_are_those_of_plain_decoding(mode: Literal["raw", "processed"]) -> None:
    params = SamplingParams(
        seed=2, max_tokens=20, top_k=4, temperature=0.5, logprobs=3, logprobs_mode=mode
    )
    completion = engine().generate([[1, 2, 3]], params)[0]
    assert completion.logprobs is not None
    tokens = [1, 2, 3]
    for token, reported in zip(completion.token_ids, completion.logprobs, strict=True):
        logits = TARGET.next_logits(tokens)
        row = logits.log_softmax(-1)
        if mode == "processed":
            from forerun.core import Request as Tokens

            row = warp(logits[None], [Prefix(Tokens(0, tokens, 3, params, 2))])[0].log()
        assert reported.token_id == token
        assert reported.logprob == pytest.approx(row[token].item())
        best = row.topk(3)
        assert [one for one, _ in reported.top] == best.indices.tolist()
        tokens.append(token)


@pytest.mark.parametrize("case", SOME_DRAFTERS)
def test_statistics_add_up(case: object) -> None:
    one = Engine(TARGET, case.make(), SpeculativeConfig(), max_batch_size=ROWS)  # type: ignore[attr-defined]
    completions = one.generate(PROMPTS["ragged"], SamplingParams(max_tokens=40))
    for completion in completions:
        stats = completion.stats
        accepted = completion.origins.count(Origin.ACCEPTED)
        assert stats.num_emitted_tokens == len(completion.token_ids) == len(completion.origins)
        assert stats.num_accepted_tokens == accepted == sum(stats.num_accepted_tokens_per_pos)
        assert sorted(stats.num_accepted_tokens_per_pos, reverse=True) == (
            stats.num_accepted_tokens_per_pos
        )
        assert stats.num_plain_rounds == completion.origins.count(Origin.PLAIN)
        assert stats.num_target_forwards == stats.num_drafts + stats.num_plain_rounds
        # Each round emits what it accepts and one token more, but for one cut at the end.
        assert stats.num_emitted_tokens - accepted in (
            stats.num_target_forwards,
            stats.num_target_forwards - 1,
        )
    total = Stats.total(completion.stats for completion in completions)
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_emitted_tokens"):
        assert getattr(total, name) == getattr(one.stats, name)
    assert total.num_accepted_tokens_per_pos == one.stats.num_accepted_tokens_per_pos
    assert total.seconds == pytest.approx(
        total.draft_seconds + total.target_seconds + total.verify_seconds
    )


def test_float32_rows_work_too() -> None:
    """The toy runs in float64; a model in float32 goes through the same code."""
    single = ToyModel(TARGET.vocab_size)
    single.tables = single.tables.float()
    single.dtype = torch.float32
    one = Engine(single, DraftModelDrafter(DRAFT, 1, 512), SpeculativeConfig())
    assert one.generate([[1, 2, 3]], GREEDY)[0].token_ids == plain_ids([1, 2, 3], GREEDY)
