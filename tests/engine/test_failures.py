"""What fails, is interrupted, cancelled or refused leaves the engine usable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from forerun.core import Draft, FinishReason, ForwardOutput, Plan, Request
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.engine import scheduler
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.guarded import MOST_FAILURES
from forerun.engine.stream import Stream
from forerun.errors import (
    ConfigError,
    DistributionError,
    IncompatibleDraftError,
    PromptError,
    UnknownNameError,
)
from forerun.params import SamplingParams, TokenMask
from forerun.testing import ToyModel, TreeDrafter
from tests.helpers.engines import GREEDY, engine, plain_ids
from tests.matrix import DRAFT, TARGET


def test_cancellation_of_running_and_waiting_requests() -> None:
    one = engine(rows=1)
    running, waiting, kept = (one.add([1, 2], GREEDY) for _ in range(3))
    one.step()
    assert one.cancel(waiting)
    assert one.cancel(running)
    assert not one.cancel(running)
    while one.has_work:
        one.step()
    assert one.completion(running).finish_reason is FinishReason.CANCELLED
    assert one.completion(waiting).token_ids == ()
    assert one.completion(kept).token_ids == plain_ids([1, 2], GREEDY)
    with pytest.raises(ConfigError, match="handed out once"):
        one.completion(kept)


def test_an_interrupted_round_can_be_repeated() -> None:
    """Ctrl-C may come anywhere, in a mask hook too: the caches go back to what is committed."""
    calls = iter(range(10_000))

    def mask(committed: object, drafted: object) -> None:
        if next(calls) == 9:
            raise KeyboardInterrupt

    one = engine(rows=2)
    params = [replace(GREEDY, max_tokens=11), replace(GREEDY, mask=mask)]
    ids = [one.add([1, 2], params[0]), one.add([3, 4], params[1])]
    interruptions = 0
    while one.has_work:
        try:
            one.step()
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions == 1
    assert one.completion(ids[0]).token_ids == plain_ids([1, 2], params[0])
    assert one.completion(ids[1]).token_ids == plain_ids([3, 4], GREEDY)


def broken(committed: Sequence[int], drafted: Sequence[int]) -> list[bool]:
    """A mask hook that works for three tokens, then fails."""
    if len(committed) > 4:
        raise ValueError("broken hook")
    return [True] * TARGET.vocab_size


def dead(committed: Sequence[int], drafted: Sequence[int]) -> list[bool]:
    return [False] * TARGET.vocab_size


@pytest.mark.parametrize(
    ("mask", "error"), [(broken, ValueError), (dead, DistributionError)], ids=["broken", "dead"]
)
def test_a_request_that_fails_ends_alone(mask: TokenMask, error: type[Exception]) -> None:
    """No token of the others is lost, and their events all come out."""
    one = engine(rows=3)
    failing = one.add([3, 4], replace(GREEDY, mask=mask))
    others = [one.add(prompt, GREEDY) for prompt in ([1, 2], [5], [6, 7])]
    events = []
    while one.has_work:
        events += one.step()
    completion = one.completion(failing)
    assert completion.finish_reason is FinishReason.ERROR
    assert isinstance(completion.error, error)
    for request_id, prompt in zip(others, ([1, 2], [5], [6, 7]), strict=True):
        expected = plain_ids(prompt, GREEDY)
        assert tuple(e.token_id for e in events if e.request_id == request_id) == expected
        assert one.completion(request_id).token_ids == expected


def test_a_failing_prompt_ends_generate_and_leaves_the_engine_usable() -> None:
    one = engine(rows=2)
    with pytest.raises(DistributionError):
        one.generate([[1, 2], [3], [4]], [GREEDY, replace(GREEDY, mask=dead), GREEDY])
    assert not one.has_work
    stream = one.stream([1, 2], replace(GREEDY, mask=broken))
    with pytest.raises(ValueError, match="broken hook"):
        list(stream)
    assert len(stream.completion.token_ids) >= 3
    assert one.generate([[1, 2]], GREEDY)[0].token_ids == plain_ids([1, 2], GREEDY)


def test_an_interrupted_prefill_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "LARGEST_CHUNK", 4)
    target = ToyModel(TARGET.vocab_size)
    one = Engine(target)
    request_id = one.add(list(range(11)), GREEDY)
    forward, calls = target.forward, iter(range(100))

    def interrupted(*args: object, **options: object) -> object:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return forward(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(target, "forward", interrupted)
    one.step()  # the first chunk
    with pytest.raises(KeyboardInterrupt):
        one.step()
    while one.has_work:
        one.step()
    assert one.completion(request_id).token_ids == plain_ids(list(range(11)), GREEDY)


def test_bad_requests_are_refused() -> None:
    one = engine(max_context=16)
    with pytest.raises(PromptError, match="empty"):
        one.add([])
    with pytest.raises(PromptError, match="has 16 tokens and the context 16"):
        one.add([1] * 16)
    with pytest.raises(PromptError, match="token id 11"):
        one.add([11])
    with pytest.raises(ConfigError, match="stop_token_ids"):
        one.add([1], SamplingParams(stop_token_ids=(99,)))
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        Engine(TARGET).add("abc")
    with pytest.raises(ConfigError, match="need a tokenizer"):
        Engine(TARGET).add([1], SamplingParams(stop=("a",)))
    with pytest.raises(PromptError, match="whole numbers"):
        one.add([1.5])  # type: ignore[arg-type]
    with pytest.raises(PromptError, match="not valid UTF-8"):
        one.add("a\udcffb")
    with pytest.raises(ConfigError, match="2 prompts but 1 sets"):
        one.generate([[1], [2]], [GREEDY])


def test_illegal_combinations_are_refused_at_construction() -> None:
    block = SpeculativeConfig(rejection_sample_method="block")
    with pytest.raises(ConfigError, match="ngram proposes point masses"):
        Engine(TARGET, NgramDrafter(), block)
    with pytest.raises(ConfigError, match="tree proposes trees"):
        Engine(TARGET, TreeDrafter(DRAFT), block)
    with pytest.raises(ConfigError, match="greedy drafts are point masses"):
        SpeculativeConfig(rejection_sample_method="block", draft_sample_method="greedy")
    drafter = NgramDrafter()
    drafter.hidden_layers = (7,)
    with pytest.raises(ConfigError, match=r"ngram reads hidden layers \[7\] of toy-11"):
        Engine(TARGET, drafter)
    with pytest.raises(ConfigError, match="max_batch_size"):
        Engine(TARGET, max_batch_size=0)
    with pytest.raises(ConfigError, match="takes 2 to 512 tokens"):
        Engine(TARGET, max_context=513)
    with pytest.raises(IncompatibleDraftError, match="proposes from 7 tokens and toy-11 has 11"):
        Engine(TARGET, DraftModelDrafter(ToyModel(7), 1, 512))
    with pytest.raises(ConfigError, match="built for 1 requests at once and the engine runs 3"):
        Engine(TARGET, DraftModelDrafter(DRAFT, 1, 512), max_batch_size=3)
    with pytest.raises(ConfigError, match="asks for method 'ngram' and no drafter"):
        Engine(TARGET, None, SpeculativeConfig(method="ngram"))
    for drafter_or_none in (None, NgramDrafter()):
        with pytest.raises(
            ConfigError, match="the options prompt_lookup_max are those of a method"
        ):
            Engine(TARGET, drafter_or_none, SpeculativeConfig(options={"prompt_lookup_max": 3}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "ngrams"}, "Did you mean 'ngram'"),
        ({"rejection_sample_method": "blok"}, "Did you mean 'block'"),
        ({"policy": "adaptiv"}, "Did you mean 'adaptive'"),
        ({"num_speculative_tokens": 0}, r"in \[1, 64\]"),
        ({"method": "ngram", "prompt_lookup_min": 3, "prompt_lookup_max": 2}, "1 <= min <= max"),
        ({"num_speculative_token": 3}, "Did you mean 'num_speculative_tokens'"),
    ],
    ids=str,
)
def test_bad_configs_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        SpeculativeConfig.from_dict(options)


def test_a_drafter_that_fails_with_a_chunk_of_a_prompt_costs_that_request_the_draft() -> None:
    class Failing(NgramDrafter):
        hidden_layers: tuple[int, ...] = (1,)

        def observe_prefill(self, request: Request, start: int, output: ForwardOutput) -> None:
            if request.token_ids[0] == 1:
                raise ValueError("no states")

    params = SamplingParams(temperature=0.0, max_tokens=5)
    one = Engine(TARGET, Failing(1, 3), max_batch_size=2)
    prompts = [[1, 2, 3], [4, 5, 6]]
    for prompt, completion in zip(prompts, one.generate(prompts, params), strict=True):
        assert completion.token_ids == plain_ids(prompt, params)


@pytest.mark.parametrize("method", ["release", "observe", "propose"])
def test_a_drafter_that_fails_is_named_once_and_stops_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """After too many errors it is left out."""
    one, calls = engine(rows=2), []

    def fail(*_: object) -> None:
        calls.append(method)
        raise ValueError("broken")

    monkeypatch.setattr(one.drafter, method, fail)
    prompts = [[1, 2], [3, 4], [5]] * 4
    results = one.generate(prompts, GREEDY)
    assert [result.token_ids for result in results] == [
        plain_ids(prompt, GREEDY) for prompt in prompts
    ]
    for result in results:
        assert result.stats.num_emitted_tokens == len(result.token_ids)
    assert len([record for record in caplog.records if "broken" in record.message]) == 1
    if method == "propose":
        assert one.stats.num_plain_rounds_by_reason.keys() == {"failed", "short"}
        # A round's draft is tried for the batch first, and then for each of its requests.
        assert MOST_FAILURES <= len(calls) <= 2 * MOST_FAILURES
        assert "in a row and is left out" in caplog.text


def test_a_draft_that_fails_costs_no_other_request_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that succeeds afterwards: only errors in a row have a drafter left out."""
    one = engine(rows=2)
    assert one.drafter is not None
    propose = one.drafter.propose

    def failing(requests: Sequence[Request], *rest: Any) -> list[Draft]:
        if any(request.token_ids[0] == 1 for request in requests):
            raise ValueError("broken")
        return propose(requests, *rest)

    monkeypatch.setattr(one.drafter, "propose", failing)
    for _ in range(MOST_FAILURES):
        bad, good = one.generate([[1, 2], [3, 4]], GREEDY)
        assert bad.token_ids == plain_ids([1, 2], GREEDY)
        assert good.token_ids == plain_ids([3, 4], GREEDY)
        assert bad.stats.num_drafts == 0
        assert good.stats.num_plain_rounds_by_reason.keys() <= {"short"}


def test_a_stream_that_is_collected_in_the_middle_of_a_round_ends_with_it() -> None:
    """The garbage collector may close it wherever it runs."""
    one = engine(rows=2)
    left: list[Stream] = [one.stream([3, 4], GREEDY)]
    next(left[0])

    def collect(*_: object) -> None:
        left.clear()

    one.watch_rounds(collect)
    assert one.generate([[1, 2]], GREEDY)[0].token_ids == plain_ids([1, 2], GREEDY)
    assert not one.has_work


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_log_probabilities_ask_no_hook_again(
    monkeypatch: pytest.MonkeyPatch, mode: Literal["raw", "processed"]
) -> None:
    """It is asked once for each token where what is drafted is never allowed."""
    asked: list[int] = []

    def mask(committed: Sequence[int], drafted: Sequence[int]) -> list[bool]:
        asked.append(len(committed) + len(drafted))
        return [token != 1 for token in range(TARGET.vocab_size)]

    def propose(_: object, plans: Sequence[Plan], __: object) -> list[Draft]:
        return [Draft.chain([1][: plan.num_tokens]) for plan in plans]

    one = engine(rows=2)
    monkeypatch.setattr(one.drafter, "propose", propose)
    params = replace(GREEDY, mask=mask, logprobs=1, logprobs_mode=mode)
    # A request with a seed beside it is verified under another rule.
    one.generate([[1, 2], [3, 4]], [params, SamplingParams(seed=1, max_tokens=30)])
    assert asked == list(range(2, 32))


@pytest.mark.parametrize(
    ("proposed", "message"),
    [
        ([], "must propose a list of 1 drafts"),
        (None, "must propose a list of 1 drafts"),
        ([Draft.chain([1, 2, 3, 4])], "proposed 4 tokens along a path where 3 were planned"),
        ([Draft.chain([99])], "proposed tokens outside the vocabulary"),
    ],
)
def test_a_proposal_that_was_not_planned_is_refused(
    monkeypatch: pytest.MonkeyPatch, proposed: object, message: str
) -> None:
    one = engine(rows=1)
    monkeypatch.setattr(one.drafter, "propose", lambda *_: proposed)
    with pytest.raises(ConfigError, match=f"draft_model {message}"):
        one.generate([[1, 2]], GREEDY)


def test_a_plan_for_each_request_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(rows=1)
    monkeypatch.setattr(one.policy, "plan", lambda _: [])
    with pytest.raises(ConfigError, match="made 0 plans for 1 requests"):
        one.generate([[1, 2]], GREEDY)
