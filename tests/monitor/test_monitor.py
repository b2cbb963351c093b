"""The monitor counts what was recorded, forgets what has left its window, and reads engines."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun import Monitor
from forerun.core import PlainReason, Stats
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.params import SamplingParams
from tests.helpers.engines import GREEDY, engine
from tests.helpers.examples import examples
from tests.matrix import TARGET

WINDOW = 30


@st.composite
def rounds_of(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Arguments of `record_round`, from batches of one to three requests."""
    made = []
    for _ in range(draw(st.integers(0, 70))):
        drafted = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
        accepted = [draw(st.integers(0, number)) for number in drafted]
        emitted = [number + draw(st.integers(0, 1)) for number in accepted]
        stages = draw(st.tuples(*[st.integers(0, 64)] * 3))
        # Sixteenths add up without rounding, in any order.
        names = ("draft_seconds", "target_seconds", "verify_seconds")
        times = {name: stage / 16 for name, stage in zip(names, stages, strict=True)}
        counts = {"draft_tokens": drafted, "accepted_tokens": accepted, "emitted_tokens": emitted}
        made.append({**counts, **(times if draw(st.booleans()) else {})})
    return made


def counted(rounds: list[dict[str, Any]]) -> Stats:
    """The same rounds, counted here in other words."""
    made = Stats()
    for done in rounds:
        rows = zip(
            done["draft_tokens"], done["accepted_tokens"], done["emitted_tokens"], strict=True
        )
        for drafted, accepted, emitted in rows:
            one = Stats(num_emitted_tokens=emitted)
            if drafted:
                one.num_drafts, one.num_draft_tokens = 1, drafted
                one.num_accepted_tokens, one.num_emitted_in_drafts = accepted, emitted
                one.num_accepted_tokens_per_pos = [int(k < accepted) for k in range(drafted)]
            else:
                one.count_plain(PlainReason.NOTHING_FOUND)
            made = Stats.total([made, one])
        for stage in ("draft_seconds", "target_seconds", "verify_seconds"):
            setattr(made, stage, getattr(made, stage) + done.get(stage, 0.0))
            made.seconds += done.get(stage, 0.0)
    return made


@given(rounds=rounds_of())
@examples(60)
def test_run_and_window_are_the_sums_of_their_rounds(rounds: list[dict[str, Any]]) -> None:
    """The window knows exactly the newest rounds, whatever came before them."""
    monitor = Monitor(WINDOW)
    for done in rounds:
        monitor.record_round(**done)
    assert monitor.snapshot().stats == counted(rounds)
    newest = monitor.snapshot(window=True)
    assert newest.stats == counted(rounds[-WINDOW:])
    fresh = Monitor(WINDOW)
    for done in rounds[-WINDOW:]:
        fresh.record_round(**done)
    assert newest.num_tested_tokens_per_pos == fresh.snapshot().num_tested_tokens_per_pos
    assert newest.timed_seconds == fresh.snapshot().timed_seconds


def test_a_foreign_loop_reads_what_the_definitions_say() -> None:
    monitor = Monitor()
    for accepted in (4, 1, 0, 2):
        monitor.record_round(4, accepted)
    seen = monitor.snapshot()
    assert seen.stats.acceptance_rate == 7 / 16
    assert seen.stats.tokens_per_target_forward == (7 + 4) / 4
    assert seen.acceptance_rate_per_pos == [3 / 4, 2 / 4, 1 / 4, 1 / 4]
    assert seen.conditional_acceptance_per_pos == [3 / 4, 2 / 3, 1 / 2, 1.0]
    assert seen.acceptance == 7 / 10
    assert seen.seconds_saved is None
    assert seen.num_untimed_rounds == 4


def test_ratios_of_nothing_are_unknown() -> None:
    seen = Monitor().snapshot()
    assert seen.stats.acceptance_rate is None
    assert seen.stats.tokens_per_target_forward is None
    assert seen.acceptance is None
    assert seen.conditional_acceptance_per_pos == []


def test_a_token_behind_the_end_of_a_text_counts_as_not_tested() -> None:
    monitor = Monitor()
    monitor.record_round(4, 2, emitted_tokens=2)
    assert monitor.snapshot().acceptance == 1.0


def test_a_tree_is_as_deep_as_it_is() -> None:
    monitor = Monitor()
    monitor.record_round(16, 3, draft_depth=3)
    assert monitor.snapshot().conditional_acceptance_per_pos == [1.0, 1.0, 1.0]
    assert monitor.snapshot().stats.acceptance_rate == 3 / 16


def test_time_saved_is_plain_time_less_time_spent() -> None:
    """Rounds of a batch are compared with plain rounds of as many requests."""
    monitor = Monitor()
    monitor.record_plain(0.5, tokens=10)
    monitor.record_plain(2.0, tokens=10, requests=2)
    for _ in range(3):
        monitor.record_round(4, 3, draft_seconds=0.01, verify_seconds=0.06)
    monitor.record_round([4, 0], [4, 0], seconds=0.25)
    monitor.record_round([4, 4, 4], [4, 4, 4], seconds=9.0)
    saved = 3 * (4 * 0.05 - 0.07) + (6 * 0.1 - 0.25)
    seen = monitor.snapshot()
    assert seen.seconds_saved == pytest.approx(saved)
    assert seen.speedup == pytest.approx((12 * 0.05 + 6 * 0.1) / (3 * 0.07 + 0.25))


def test_plain_rounds_of_the_loop_are_what_drafts_are_compared_with() -> None:
    monitor = Monitor()
    for _ in range(8):
        monitor.record_round(0, 0, seconds=0.05)
    monitor.record_round(4, 3, seconds=0.1)
    assert monitor.snapshot().speedup == pytest.approx(2.0)


@pytest.mark.parametrize(
    "counts",
    [
        {"draft_tokens": 3, "accepted_tokens": 4},
        {"draft_tokens": -1, "accepted_tokens": 0},
        {"draft_tokens": 3, "accepted_tokens": -1},
        {"draft_tokens": 3.5, "accepted_tokens": 1},
        {"draft_tokens": True, "accepted_tokens": 0},
        {"draft_tokens": "3", "accepted_tokens": 0},
        {"draft_tokens": 2**40, "accepted_tokens": 0},
        {"draft_tokens": 3, "accepted_tokens": 2, "emitted_tokens": 1},
        {"draft_tokens": 3, "accepted_tokens": 2, "draft_depth": 1},
        {"draft_tokens": 3, "accepted_tokens": 2, "draft_depth": 4},
        {"draft_tokens": 3, "accepted_tokens": 0, "draft_depth": 0},
        {"draft_tokens": [3, 3], "accepted_tokens": [1]},
        {"draft_tokens": [], "accepted_tokens": []},
        {"draft_tokens": 3, "accepted_tokens": 1, "seconds": "soon"},
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused_and_leave_no_trace(counts: dict[str, Any]) -> None:
    monitor = Monitor()
    with pytest.raises(ConfigError):
        monitor.record_round(**counts)
    assert monitor.snapshot().stats == Stats()
    assert monitor.snapshot().num_untimed_rounds == 0


@pytest.mark.parametrize("options", [{"window": 3}, {"window": "all"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Monitor(**options)


@pytest.mark.parametrize("jump", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("stage", ["draft_seconds", "verify_seconds", "seconds"])
def test_a_clock_that_jumps_is_a_gap(stage: str, jump: float) -> None:
    """The tokens count; the time of that round does not."""
    monitor = Monitor()
    times: dict[str, Any] = {"draft_seconds": 0.1, "verify_seconds": 0.2, "seconds": 0.3}
    monitor.record_round(4, 2, **times)
    monitor.record_round(4, 2, **{**times, stage: jump})
    seen = monitor.snapshot()
    assert seen.num_untimed_rounds == 1
    assert seen.stats.seconds == 0.3
    assert seen.stats.num_accepted_tokens == 4
    monitor.record_plain(jump, tokens=100)
    assert monitor.snapshot().speedup is None


def test_numbers_of_other_libraries_are_numbers() -> None:
    monitor = Monitor()
    counts: Any = np.array([4, 2]), (np.int64(1), 2)
    monitor.record_round(*counts, seconds=np.float32(0.5))  # type: ignore[arg-type]
    assert monitor.snapshot().stats.num_accepted_tokens == 3


def test_threads_lose_nothing() -> None:
    monitor = Monitor()

    def work() -> None:
        for number in range(500):
            monitor.record_round(3, 2, seconds=0.25)
            if number % 20 == 0:
                monitor.as_dict()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = monitor.snapshot().stats
    assert (stats.num_drafts, stats.num_accepted_tokens, stats.seconds) == (2000, 4000, 500.0)


def test_a_snapshot_is_a_copy() -> None:
    monitor = Monitor()
    monitor.record_round(3, 2)
    before = monitor.snapshot()
    monitor.record_round(3, 3)
    assert before.stats.num_drafts == 1
    assert before.num_tested_tokens_per_pos == [1, 1, 1]


@pytest.mark.parametrize("rows", [1, 3])
def test_an_engine_that_is_watched_is_counted_alike(rows: int) -> None:
    """In ragged batches, with requests that decode plainly beside those that draft."""
    one, monitor = engine(rows=rows), Monitor()
    monitor.watch(one)
    prompts = [[1, 2], [3, 4, 5], [6]]
    one.generate(prompts, [GREEDY, SamplingParams(seed=3, max_tokens=17), GREEDY])
    one.generate(prompts[0], GREEDY, speculative=False)
    ours, theirs = asdict(monitor.snapshot().stats), asdict(one.stats)
    for name in ("prompt_tokens", "prefill_seconds", "num_cached_tokens"):
        del ours[name], theirs[name]
    for name in ("draft_seconds", "target_seconds", "verify_seconds", "seconds"):
        assert ours.pop(name) == pytest.approx(theirs.pop(name))
    assert ours == theirs
    one.watch_rounds(None)
    one.generate(prompts[0], GREEDY)
    assert monitor.snapshot().stats.num_drafts == ours["num_drafts"]


def test_plain_rounds_beside_drafting_ones_are_no_measure() -> None:
    """A request that decodes plainly shares the time of the drafts beside it."""
    monitor = Monitor()
    for _ in range(40):
        monitor.record_round([4, 0], [4, 0], seconds=0.1)
    assert monitor.snapshot().plain_seconds == {}


def test_a_hook_that_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a function or None"):
        Engine(TARGET).watch_rounds(3)  # type: ignore[arg-type]
