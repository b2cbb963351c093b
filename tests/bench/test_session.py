"""Sessions: pairs of the same work, gaps where something fails, nothing measured twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from forerun.bench.contestants import Drafting, Measured
from forerun.bench.pairs import MeasuredPair
from forerun.bench.runs import EncodedPrompt, Timed, run_drafting
from forerun.bench.session import BenchSession, grouped
from forerun.bench.settings import COLD, DEFAULT, Setting
from forerun.bench.verdict import FEW
from forerun.core import Plan, Request
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.token_recycling import TokenRecyclingDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.policies.base import USUAL_LENGTH, BasePolicy
from forerun.policies.fixed import FixedPolicy
from tests.matrix import DRAFT, TARGET

PARAMS = SamplingParams(temperature=0.0, max_tokens=20)
PROMPTS = [EncodedPrompt(str(n), "ab"[n % 2], (1, n)) for n in range(5)]
ROWS = 3


def drafting(method: str = "draft_model") -> Drafting:
    config = SpeculativeConfig(method=method, num_speculative_tokens=3, policy="fixed")
    if method == "draft_model":
        drafter: Any = DraftModelDrafter(DRAFT, ROWS, DRAFT.max_context)
    else:
        drafter = TokenRecyclingDrafter(TARGET.vocab_size)
    engine = Engine(TARGET, drafter, config, max_batch_size=ROWS, prefix_reuse=False)
    return Drafting(Setting(method, config), engine)


def session(*contestants: Any, **more: Any) -> BenchSession:
    plain = Engine(TARGET, max_batch_size=ROWS, prefix_reuse=False)
    return BenchSession(plain, contestants, PROMPTS, PARAMS, **more)


class Failing(Drafting):
    """Fails on its first prompts, as often as it is told."""

    def __init__(self, times: int) -> None:
        other = drafting()
        super().__init__(replace(other.setting, method="failing"), other.engine)
        self.left = times

    def measure(
        self, prompts: Sequence[EncodedPrompt], params: SamplingParams, plain: Timed
    ) -> Measured:
        if self.left:
            self.left -= 1
            raise RuntimeError("out of\norder")
        return super().measure(prompts, params, plain)


def test_both_sides_do_the_same_work() -> None:
    rows = list(session(drafting(), temperatures=(0.0, 1.0), batches=(1, 3)).run())
    assert all(row.error is None for row in rows)
    # Of each prompt alone, and of three of them at once where a third one begins.
    assert len(rows) == 2 * (5 + 2)
    for row in rows:
        assert row.side is not None
        assert row.plain is not None
        assert row.stats is not None
        assert len(row.key.prompts) == row.key.batch
        assert row.side.tokens == row.plain.tokens == 20 * row.key.batch
        for side in (row.side, row.plain):
            assert sum(side.stages.values()) == pytest.approx(side.seconds, rel=0.2)
        assert len(row.plain.gaps) == row.plain.tokens - row.key.batch > len(row.side.gaps)
        assert row.stats.num_emitted_tokens == row.side.tokens
        greedy = row.key.temperature == 0
        assert row.identical == (row.key.batch if greedy else None)


def test_runs_are_measured_cold() -> None:
    """What a drafter remembers of a prompt does not help later runs of it."""
    contestant = drafting("token_recycling")
    counts = [run_drafting(contestant.engine, PROMPTS[:1], PARAMS).stats for _ in range(3)]
    assert len({(stats.num_drafts, stats.num_accepted_tokens) for stats in counts}) == 1
    warm = [contestant.engine.generate([[1, 2]], PARAMS)[0].stats for _ in range(2)]
    assert warm[1].num_draft_tokens > warm[0].num_draft_tokens, "or else this test could not fail"


class Learning(BasePolicy):
    """Counts its rounds since it last forgot, before every request."""

    name = "learning"

    def __init__(self) -> None:
        self.rounds, self.known, self.forgot = 0, list[int](), 0

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        if any(not request.num_output_tokens for request in requests):
            self.known.append(self.rounds)
        self.rounds += 1
        return [Plan(2)] * len(requests)

    def forget(self) -> None:
        self.rounds, self.forgot = 0, self.forgot + 1


def learning(*, cold: bool) -> tuple[Drafting, Learning]:
    config, policy = SpeculativeConfig(method="draft_model"), Learning()
    drafter = DraftModelDrafter(DRAFT, ROWS, DRAFT.max_context)
    engine = Engine(TARGET, drafter, config, policy=policy, max_batch_size=ROWS, prefix_reuse=False)
    return Drafting(Setting(DEFAULT, config, cold=cold), engine), policy


def test_the_warm_default_goes_on_and_the_cold_one_begins_anew() -> None:
    """Neither has learned anything from its warm-up, nor from the other."""
    (warm, learned), (cold, forgetful) = learning(cold=False), learning(cold=True)
    rows = list(session(warm, cold).run())
    assert Counter(row.key.setting for row in rows) == {DEFAULT: len(PROMPTS), COLD: len(PROMPTS)}
    assert forgetful.known == [0] * len(PROMPTS)
    assert forgetful.forgot == len(PROMPTS)
    assert learned.known[0] == learned.forgot == 0
    assert learned.known == sorted(set(learned.known)), "it knows more before every further prompt"


def test_fixed_lengths_are_warmed_up_as_they_are() -> None:
    contestant, lengths = drafting(), list[int]()
    contestant.engine.watch_rounds(lambda done: lengths.extend(map(len, done.drafts)))
    contestant.warm_up(PROMPTS[:1], PARAMS)
    assert max(lengths) == contestant.setting.config.num_speculative_tokens == 3
    lengths.clear()
    other, _ = learning(cold=False)
    other.engine.watch_rounds(lambda done: lengths.extend(map(len, done.drafts)))
    other.warm_up(PROMPTS[:1], PARAMS)
    assert max(lengths) == USUAL_LENGTH, "not as its policy plans, which is not asked"


def test_what_policies_say_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By those that have not forgotten it: what the default decided, and what any of them gave up."""
    (warm, _), (cold, _), other = learning(cold=False), learning(cold=True), drafting()
    assert warm.notes == []
    monkeypatch.setattr("forerun.bench.contestants.in_words", lambda _: "3 rounds")
    for kind in (Learning, FixedPolicy):
        monkeypatch.setattr(kind, "given_up", lambda _: ["a was given up"])
        monkeypatch.setattr(kind, "report", lambda _: {"plain": 3})
    assert warm.notes == ["default decided: 3 rounds", "default: a was given up"]
    assert cold.notes == []
    assert other.notes == [f"{other.name}: a was given up"]


def test_a_failure_is_a_gap_and_no_end() -> None:
    rows = list(session(drafting(), Failing(1)).run())
    own = [row for row in rows if row.key.setting.startswith("failing")]
    assert [row.error for row in own if row.error] == ["RuntimeError: out of order"]
    assert len(own) == len(PROMPTS)
    assert all(row.error is None for row in rows if row not in own)
    always = [row.error or "" for row in session(Failing(99)).run()]
    assert [error[:9] for error in always] == ["RuntimeEr", "RuntimeEr", *["not tried"] * 3]


def test_an_earlier_session_goes_on() -> None:
    rows = list(session(drafting(), Failing(1)).run())
    done = {row.key: row for row in rows}
    again = session(drafting(), Failing(0), done=done)
    kept = again.usable()
    assert len(kept) == len(rows) - 1
    [missing] = again.run()
    assert missing.error is None
    assert not done[missing.key].side
    changed = replace(PROMPTS[0], token_ids=(1, 2, 3))
    other = session(drafting(), done=done)
    other.prompts = [changed, *PROMPTS[1:]]
    assert [row.key.prompts for row in other.run()] == [("0",)], "it is another prompt now"


def test_time_ends_between_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 30))
    monkeypatch.setattr("forerun.bench.session.monotonic", lambda: float(next(clock)))
    short = session(drafting(), drafting("token_recycling"), minutes=2.0)
    rows = list(short.run())
    prompts = {row.key.prompts for row in rows}
    assert 1 <= len(prompts) < len(PROMPTS)
    assert len(rows) == 2 * len(prompts), "all settings on the same prompts"
    assert "the time was over" in short.notes[0]


def test_losers_are_left_out_where_time_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        MeasuredPair, "speedup", property(lambda row: 0.9 + 0.2 * ("r" in row.key.setting))
    )
    many = [EncodedPrompt(str(n), "a", (1, n)) for n in range(FEW + 3)]
    for minutes, left in ((0.0, 3), (1000.0, 3), (2.0, 0)):
        clock = iter(range(10_000))
        monkeypatch.setattr(
            "forerun.bench.session.monotonic", lambda clock=clock: 5.0 * next(clock)
        )
        low = drafting()
        low.setting = replace(low.setting, method="low")
        made = session(low, drafting("token_recycling"), minutes=minutes)
        made.prompts = many
        counts = Counter(row.key.setting.partition(",")[0] for row in made.run())
        assert counts["low"] == FEW + left
        assert counts["token_recycling"] == FEW + 3
        assert len(made.notes) == (left == 0)


def test_a_knock_out_leaves_the_fastest_and_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower half goes after 2 and 4 prompts; an interrupted one ends as it would have ended."""
    speeds = {"a": 0.8, "b": 0.9, "c": 1.0, "d": 1.1, DEFAULT: 0.5}
    name_of = {row.partition(",")[0]: speed for row, speed in speeds.items()}
    monkeypatch.setattr(
        MeasuredPair, "speedup", property(lambda row: name_of[row.key.setting.partition(",")[0]])
    )
    named = []
    for name in speeds:
        one = drafting()
        one.setting = replace(one.setting, method=name)
        named.append(one)
    made = session(*named, finalists=1)
    made.prompts = [EncodedPrompt(str(n), "a", (1, n)) for n in range(6)]
    rows = list(made.run())
    counts = Counter(row.key.setting.partition(",")[0] for row in rows)
    assert counts == {"a": 2, "b": 2, "c": 4, "d": 6, DEFAULT: 6}
    assert {name.partition(",")[0] for name, _, _ in made.knocked_out} == {"a", "b", "c"}
    assert "left out after 2 prompts" in made.notes[0]
    assert "(0.90 x)" in made.notes[0]
    again = session(*named, finalists=1, done={row.key: row for row in rows[:7]})
    again.prompts = made.prompts
    assert [row.key for row in again.run()] == [row.key for row in rows[7:]]
    assert again.knocked_out == made.knocked_out


def test_groups_cover_every_prompt() -> None:
    for size in (1, 2, 3, 7):
        groups = [group for begin in grouped(PROMPTS, [size]) for group in begin]
        assert all(len(group) == size for group in groups)
        assert all(len({p.category for p in group}) == 1 for group in groups)
        assert {p.prompt_id for g in groups for p in g} == {p.prompt_id for p in PROMPTS}


def test_rows_survive_json() -> None:
    import json

    for row in session(drafting(), Failing(1), temperatures=(0.0, 1.0), batches=(1, 3)).run():
        assert MeasuredPair.from_dict(json.loads(json.dumps(row.as_dict()))) == row
