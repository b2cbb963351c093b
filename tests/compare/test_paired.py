"""Both sides of a comparison pay for the same work."""

from __future__ import annotations

from forerun.compare.paired import compare
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.testing import ToyModel
from tests.helpers.counting import Counting


def test_every_run_starts_from_empty_caches() -> None:
    """The target's and the draft's: a prompt that one side need not run makes it look faster."""
    draft, ran = Counting(11), []
    drafter = DraftModelDrafter(draft, 2, draft.max_context)
    engine = Engine(ToyModel(11), drafter, SpeculativeConfig(policy="fixed"), max_batch_size=2)
    params = SamplingParams(temperature=0.0, max_tokens=8)
    comparison = compare(engine, [1, 2, 3] * 9, params, 3, begin=lambda *_: ran.append(draft.ran))
    for pair in comparison.pairs:
        assert pair.speculative.completion.stats.num_cached_tokens == 0
    # What the draft ran in each speculative run but the warm-up.
    assert len({after - before for before, after in zip(ran[2::2], ran[3::2], strict=True)}) == 1
    assert ran[3] - ran[2] > 27
