"""Every round without a draft says why there was none."""

from __future__ import annotations

from forerun.core import PlainReason, Stats
from forerun.drafters.ngram import NgramDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.testing import ToyModel, TreeDrafter
from tests.helpers.engines import GREEDY, engine
from tests.matrix import TARGET


def reasons(stats: Stats) -> dict[str, int]:
    assert sum(stats.num_plain_rounds_by_reason.values()) == stats.num_plain_rounds
    return stats.num_plain_rounds_by_reason


def test_plain_decoding_was_asked_for() -> None:
    for one, speculative in ((engine(), False), (Engine(TARGET), True)):
        stats = one.generate([[1, 2, 3]], GREEDY, speculative=speculative)[0].stats
        assert reasons(stats) == {PlainReason.ASKED: 30}
    stream = engine().stream_plain([1, 2, 3], GREEDY)
    assert len(list(stream)) == 30
    assert reasons(stream.completion.stats) == {PlainReason.ASKED: 30}


def test_too_short_for_a_draft() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1)
    assert reasons(engine().generate([[1]], params)[0].stats) == {PlainReason.SHORT: 1}


def test_nothing_to_look_up() -> None:
    one = Engine(TARGET, NgramDrafter(), SpeculativeConfig(method="ngram"))
    params = SamplingParams(temperature=0.0, max_tokens=2)
    # A prompt of one token holds no n-gram, and the token after it is the last.
    found = reasons(one.generate([[1]], params)[0].stats)
    assert found == {PlainReason.NOTHING_FOUND: 1, PlainReason.SHORT: 1}


def test_drafts_do_not_pay() -> None:
    hopeless = ToyModel(TARGET.vocab_size, seed=99)
    drafter = TreeDrafter(hopeless, (1, 1, 1, 1))
    one = Engine(TARGET, drafter, SpeculativeConfig(num_speculative_tokens=4))
    params = SamplingParams(temperature=0.0, max_tokens=60)
    found = reasons(one.generate([[1, 2, 3]], params)[0].stats)
    assert found[PlainReason.PAUSED] > 30


def test_totals_add_up_by_reason() -> None:
    one = engine()
    for params in (GREEDY, SamplingParams(temperature=0.0, max_tokens=1)):
        one.generate([[1], [2]], params, speculative=False)
    one.generate([[1]], SamplingParams(temperature=0.0, max_tokens=1))
    assert reasons(one.stats) == {PlainReason.ASKED: 62, PlainReason.SHORT: 1}
