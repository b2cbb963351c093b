"""An exception or Ctrl-C anywhere in the engine leaves a round undone or done, never half of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest

from forerun.core import FinishReason
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.requests import Completion, Running, TokenEvent
from forerun.errors import ConfigError
from forerun.params import SamplingParams
from tests.helpers.engines import GREEDY, Letters, engine, plain_ids
from tests.helpers.interruptions import at_line
from tests.matrix import DRAFT, TARGET

PROMPTS = [[1, 2], [3, 4, 5, 1, 2], [6]]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=7),
    SamplingParams(seed=5, max_tokens=6, stop=("zz",)),
    SamplingParams(seed=6, max_tokens=5, logprobs=1),
]


class Planted(BaseException):
    """What is raised; no code of ours catches it by its type."""


def raising_at(line: int) -> AbstractContextManager[Callable[[], int]]:
    """Raise at a line, as `at_line` counts."""

    def planted() -> None:
        raise Planted

    return at_line(line, planted)


def make(drafter: str) -> Engine:
    return Engine(
        TARGET,
        DraftModelDrafter(DRAFT, 2, DRAFT.max_context) if drafter == "model" else SuffixDrafter(50),
        SpeculativeConfig(num_speculative_tokens=3, policy="fixed"),
        tokenizer=Letters(),
        max_batch_size=2,
    )


def check(one: Engine, results: list[Completion], expected: list[Completion]) -> None:
    """The outputs are those of an undisturbed run, and nothing is left over."""
    for result, wanted in zip(results, expected, strict=True):
        assert result.token_ids == wanted.token_ids
        assert result.text == wanted.text == Letters().decode(result.token_ids)
        assert result.finish_reason == wanted.finish_reason
        assert len(result.origins) == len(result.token_ids)
        assert result.logprobs is None or len(result.logprobs) == len(result.token_ids)
    assert not one.has_work
    assert one._scheduler.rows == [None, None]


@pytest.mark.parametrize("drafter", ["model", "suffix"])
@pytest.mark.parametrize(
    "start", [0, *(pytest.param(start, marks=pytest.mark.slow) for start in range(1, 7))]
)
def test_a_round_is_all_or_nothing(drafter: str, start: int) -> None:
    """Wherever an exception comes, a caller who goes on gets what comes without it: text, tokens,
    finish reasons, every token once, and all rows back."""
    expected = make(drafter).generate(PROMPTS, PARAMS)
    line, interrupted = 1 + 37 * start, 0
    while True:
        one = make(drafter)
        ids = [one.add(*pair) for pair in zip(PROMPTS, PARAMS, strict=True)]
        events = []
        with raising_at(line) as lines:
            while True:
                try:
                    if not one.has_work:
                        break
                    events += one.step()
                except Planted:
                    interrupted += 1
        events += one.step()
        results = [one.completion(number) for number in ids]
        check(one, results, expected)
        for number, result in zip(ids, results, strict=True):
            handed = tuple(event.token_id for event in events if event.request_id == number)
            assert handed == result.token_ids
        if lines() < line:
            break
        line += 7 * 37
    assert interrupted > 5


@pytest.mark.parametrize("start", range(3))
def test_generate_that_is_interrupted_frees_its_rows(start: int) -> None:
    expected = make("model").generate(PROMPTS, PARAMS)
    one, line = make("model"), 11 + 53 * start
    for _ in range(12):
        try:
            with raising_at(line):
                one.generate(PROMPTS, PARAMS)
        except Planted:
            pass
        # A request whose interruption came while it was cancelled goes on; cancel it again.
        for running in one._scheduler.admitted:
            one.cancel(running.request.request_id)
        check(one, one.generate(PROMPTS, PARAMS), expected)
        line += 3 * 53


def test_a_round_hook_that_raises_costs_no_token() -> None:
    one = engine(rows=1)
    calls = iter(range(1000))

    def see(*_: object) -> None:
        if next(calls) in (2, 5):
            raise RuntimeError("a hook that fails")

    one.watch_rounds(see)
    number = one.add([1, 2], GREEDY)
    failures = 0
    while one.has_work:
        try:
            one.step()
        except RuntimeError:
            failures += 1
    assert failures == 2
    completion = one.completion(number)
    assert completion.token_ids == plain_ids([1, 2], GREEDY)
    assert completion.text == Letters().decode(completion.token_ids)
    assert completion.finish_reason is FinishReason.LENGTH


def test_a_hook_that_calls_the_engine_is_refused() -> None:
    one = engine(rows=1)

    def hook(*_: object) -> None:
        one.step()

    one.watch_rounds(hook)
    with pytest.raises(ConfigError, match="in the middle of a round"):
        one.generate([[1, 2]], GREEDY)
    one.watch_rounds(None)
    assert one.generate([[1, 2]], GREEDY)[0].token_ids == plain_ids([1, 2], GREEDY)


def test_threads_may_share_an_engine() -> None:
    one = engine(rows=2)
    params = [replace(GREEDY, max_tokens=6 + index) for index in range(4)]
    outputs: dict[int, list[tuple[int, ...]]] = {}

    def work(index: int) -> None:
        outputs[index] = []
        for turn in range(5):
            prompt = [1 + index, 2, turn]
            if turn % 2:
                stream = one.stream(prompt, params[index])
                ids = tuple(event.token_id for event in stream)
            else:
                ids = one.generate([prompt], params[index])[0].token_ids
            outputs[index].append(ids)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(4):
        expected = [plain_ids([1 + index, 2, turn], params[index]) for turn in range(5)]
        assert outputs[index] == expected
    assert not one.has_work


@pytest.mark.parametrize("how", ["generate", "stream"])
def test_an_interruption_right_after_a_request_is_queued_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    one = engine(rows=1)
    submit = one._scheduler.submit

    def interrupted(requests: Iterable[Running]) -> None:
        submit(requests)
        raise Planted

    monkeypatch.setattr(one._scheduler, "submit", interrupted)
    with pytest.raises(Planted):
        _ = one.generate([[1, 2]], GREEDY) if how == "generate" else list(one.stream([1], GREEDY))
    assert not one.has_work


def test_a_plain_stream_may_be_cancelled_by_another_thread_at_any_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here between its look at the request and its turn."""
    one = engine(rows=1)
    stream = one.stream_plain([1, 2], GREEDY)
    next(stream)
    alone = one._scheduler.alone

    def late() -> Any:
        monkeypatch.undo()
        thread = threading.Thread(target=one.cancel, args=(stream.request_id,))
        thread.start()
        thread.join()
        return alone()

    monkeypatch.setattr(one._scheduler, "alone", late)
    assert list(stream) == []
    assert stream.completion.finish_reason is FinishReason.CANCELLED
    assert not one.has_work


def test_threads_that_share_the_steps_get_each_event_once() -> None:
    one = Engine(TARGET, SuffixDrafter(), max_batch_size=3)
    added = [one.add([index % 7, 2, 3], PARAMS[0]) for index in range(30)]
    events: list[TokenEvent] = []

    def work() -> None:
        while one.has_work:
            events.extend(one.step())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events += one.step()
    for number in added:
        ids = tuple(event.token_id for event in events if event.request_id == number)
        assert sorted(ids) == sorted(one.completion(number).token_ids)
