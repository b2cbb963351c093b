"""What a completion tells of its rounds: which drafts there were and what became of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import replace

import pytest

from forerun.core import Origin
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.requests import Completion
from forerun.params import SamplingParams
from tests.helpers.covering import covering
from tests.helpers.engines import GREEDY, Letters, engine, plain_ids
from tests.matrix import DRAFTERS, PROMPTS, ROWS, TARGET, DrafterCase

SEEDED = SamplingParams(seed=3, max_tokens=30)
kinds = pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])


def check_rounds(completion: Completion) -> None:
    end = drafted = 0
    for record in completion.rounds:
        assert record.start >= end, "rounds overlap"
        end = record.start + record.num_emitted
        emitted = slice(record.start, end)
        accepted = [record.draft_ids[node] for node in record.accepted]
        assert list(completion.token_ids[emitted][: len(accepted)]) == accepted
        assert completion.origins[emitted].count(Origin.ACCEPTED) == len(accepted)
        assert Origin.PLAIN not in completion.origins[emitted]
        parents = [-1, *record.accepted][: len(accepted)]
        assert [record.parents[node] for node in record.accepted] == parents
        sizes = {len(record.draft_ids), len(record.draft_texts), len(record.parents)}
        assert len(sizes) == 1
        drafted += len(record.draft_ids)
    assert len(completion.rounds) == completion.stats.num_drafts
    assert drafted == completion.stats.num_draft_tokens
    assert end <= len(completion.token_ids)


@pytest.mark.parametrize(
    ("case", "params"),
    covering(DRAFTERS, [GREEDY, SEEDED]),
    ids=lambda one: getattr(one, "name", "seeded" if one is SEEDED else "greedy"),
)
def test_rounds_add_up_to_the_output(case: DrafterCase, params: SamplingParams) -> None:
    config = SpeculativeConfig(
        num_speculative_tokens=3,
        draft_sample_method=case.draft_sample_method,
        policy="fixed",
        **case.config,
    )
    made = Engine(TARGET, case.make(), config, max_batch_size=ROWS)
    completions = made.generate(PROMPTS["ragged"], params, hints=case.hints)
    for completion in completions:
        check_rounds(completion)
    assert any(completion.rounds for completion in completions)


@pytest.mark.parametrize("limit", range(1, 8))
def test_rounds_are_cut_where_the_output_is(limit: int) -> None:
    [completion] = engine().generate([[1, 2, 3]], replace(GREEDY, max_tokens=limit))
    check_rounds(completion)


def test_rounds_are_cut_where_a_stop_token_is() -> None:
    inside = 0
    for stop in set(plain_ids([1, 2, 3], GREEDY)):
        completion = engine().generate([1, 2, 3], replace(GREEDY, stop_token_ids=(stop,)))
        check_rounds(completion)
        inside += completion.origins[-1] is Origin.ACCEPTED
    assert inside, "no stop token was accepted"


@kinds
def test_texts_are_those_that_were_streamed(params: SamplingParams) -> None:
    stream = engine().stream([1, 2], replace(params, stop=("zz",)))
    streamed = tuple(event.text for event in stream)
    completion = stream.completion
    assert completion.texts == streamed
    assert "".join(completion.texts) == completion.text
    for record in completion.rounds:
        assert record.draft_texts == tuple(Letters().decode([token]) for token in record.draft_ids)


def test_a_round_that_is_run_again_is_told_once() -> None:
    made = engine()
    stream = made.stream([1, 2], GREEDY)
    next(stream)
    calls = 0

    def fail_once(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError

    made.watch_rounds(fail_once)
    number = made.add([3, 4], GREEDY)
    with pytest.raises(RuntimeError):
        made.step()
    while made.has_work:
        made.step()
    check_rounds(made.completion(number))


class FailsOnce(list[str]):
    """A list that cannot be extended the first time."""

    failed = False

    def extend(self, values: Iterable[str]) -> None:
        if not self.failed:
            self.failed = True
            raise KeyboardInterrupt
        super().extend(values)


def test_a_round_whose_commit_is_interrupted_is_told_once() -> None:
    made = engine()
    number = made.add([1, 2], GREEDY)
    made.step()
    running = made._added.running[number]
    running.texts = FailsOnce(running.texts)
    with pytest.raises(KeyboardInterrupt):
        made.step()
    while made.has_work:
        made.step()
    completion = made.completion(number)
    starts = [record.start for record in completion.rounds]
    assert len(starts) == len(set(starts))
    check_rounds(completion)


def test_plain_rounds_drafted_nothing() -> None:
    [completion] = Engine(TARGET).generate([[1, 2]], GREEDY)
    assert completion.rounds == ()
    assert set(completion.origins) == {Origin.PLAIN}


def test_a_completion_can_be_pickled() -> None:
    [completion] = engine().generate([[1, 2]], GREEDY)
    assert pickle.loads(pickle.dumps(completion)) == completion
