"""What the hook of rounds sees: drafts and verdicts that add up to each output."""

from __future__ import annotations

import pickle
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from forerun.core import Draft, Origin, Verdict
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.parts import TimedRound
from forerun.engine.requests import Completion
from forerun.params import SamplingParams
from tests.helpers.covering import covering
from tests.helpers.engines import GREEDY, engine, plain_ids
from tests.matrix import DRAFTERS, PROMPTS, ROWS, TARGET, DrafterCase

SEEDED = SamplingParams(seed=3, max_tokens=30)


def watched(
    made: Engine, prompts: Any, params: SamplingParams, **options: Any
) -> tuple[list[Completion], list[list[tuple[Draft, Verdict]]]]:
    """The completions of prompts, and the rounds of each."""
    rounds = defaultdict[int, list[tuple[Draft, Verdict]]](list)

    def see(done: TimedRound) -> None:
        assert done.times.total >= 0.0
        for request, draft, verdict in zip(done.requests, done.drafts, done.verdicts, strict=True):
            rounds[request.request_id].append((draft, verdict))

    made.watch_rounds(see)
    completions = made.generate(prompts, params, **options)
    return completions, [rounds[completion.request_id] for completion in completions]


def check_rounds(completion: Completion, rounds: list[tuple[Draft, Verdict]]) -> None:
    assert sum((verdict.token_ids for _, verdict in rounds), ()) == completion.token_ids
    assert sum((verdict.origins for _, verdict in rounds), ()) == completion.origins
    for draft, verdict in rounds:
        path = verdict.path[: verdict.num_accepted]
        accepted = tuple(draft.token_ids[node] for node in path)
        assert verdict.token_ids[: len(accepted)] == accepted
        assert [draft.tree.parents[node] for node in path] == [-1, *path][: len(path)]
        assert (Origin.PLAIN in verdict.origins) == (not len(draft))
    drafted = [len(draft) for draft, _ in rounds if len(draft)]
    assert len(drafted) == completion.stats.num_drafts
    assert sum(drafted) == completion.stats.num_draft_tokens


@pytest.mark.parametrize(
    ("case", "params"),
    covering(DRAFTERS, [GREEDY, SEEDED]),
    ids=lambda value: getattr(value, "name", "seeded" if value is SEEDED else "greedy"),
)
def test_rounds_add_up_to_the_output(case: DrafterCase, params: SamplingParams) -> None:
    config = SpeculativeConfig(
        num_speculative_tokens=3,
        draft_sample_method=case.draft_sample_method,
        policy="fixed",
        **case.config,
    )
    made = Engine(TARGET, case.make(), config, max_batch_size=ROWS)
    completions, rounds = watched(made, PROMPTS["ragged"], params, hints=case.hints)
    for pair in zip(completions, rounds, strict=True):
        check_rounds(*pair)
    assert any(completion.stats.num_drafts for completion in completions)


@pytest.mark.parametrize("limit", range(1, 8))
def test_rounds_are_cut_where_the_output_is(limit: int) -> None:
    [completion], [rounds] = watched(engine(), [[1, 2, 3]], replace(GREEDY, max_tokens=limit))
    check_rounds(completion, rounds)


def test_rounds_are_cut_where_a_stop_token_is() -> None:
    inside = 0
    for stop in set(plain_ids([1, 2, 3], GREEDY)):
        params = replace(GREEDY, stop_token_ids=(stop,))
        [completion], [rounds] = watched(engine(), [[1, 2, 3]], params)
        check_rounds(completion, rounds)
        inside += completion.origins[-1] is Origin.ACCEPTED
    assert inside, "no stop token was accepted"


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_texts_are_those_that_were_streamed(params: SamplingParams) -> None:
    stream = engine().stream([1, 2], replace(params, stop=("zz",)))
    streamed = tuple(event.text for event in stream)
    completion = stream.completion
    assert completion.texts == streamed
    assert "".join(completion.texts) == completion.text


def test_plain_rounds_drafted_nothing() -> None:
    [completion], [rounds] = watched(Engine(TARGET), [[1, 2]], GREEDY)
    assert not any(len(draft) for draft, _ in rounds)
    assert set(completion.origins) == {Origin.PLAIN}


def test_a_completion_can_be_pickled() -> None:
    [completion] = engine().generate([[1, 2]], GREEDY)
    assert pickle.loads(pickle.dumps(completion)) == completion
