"""The draft model's cache heals itself, and pays only for what it must run."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import Drawing, Plan, Request
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.sampling import Prefix, warp
from forerun.testing import ToyModel
from tests.helpers.counting import Counting
from tests.helpers.examples import examples

MODEL = ToyModel(7)


def request(request_id: int, tokens: list[int], row: int) -> Request:
    return Request(request_id, tokens, 1, SamplingParams(), seed=request_id, row=row)


@examples(50)
@given(st.data())
def test_drafts_never_depend_on_what_the_cache_went_through(data: st.DataObject) -> None:
    """Against a fresh drafter after any history of accepted parts, plain rounds and re-used rows."""
    used = DraftModelDrafter(MODEL, 2, 200)
    requests = [request(0, [1, 2, 3], 0), request(1, [4], 1)]
    next_id = 2
    for _ in range(data.draw(st.integers(1, 6))):
        plans = [
            Plan(data.draw(st.integers(0, 4)), data.draw(st.sampled_from(list(Drawing))))
            for _ in requests
        ]
        ours = used.propose(requests, plans, Randomness())
        fresh = DraftModelDrafter(MODEL, 2, 200).propose(requests, plans, Randomness())
        for index, (one, other) in enumerate(zip(ours, fresh, strict=True)):
            assert one.token_ids == other.token_ids
            assert len(one) == plans[index].num_tokens
            assert (one.probs is None) == (other.probs is None)
            taken = data.draw(st.integers(0, len(one)))
            emitted = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
            requests[index].extend([*one.token_ids[:taken], *emitted])
        if data.draw(st.booleans()):
            used.release(requests[1])
            requests[1] = request(next_id, data.draw(st.lists(st.integers(0, 6), min_size=1)), 1)
            next_id += 1


def test_a_text_with_ids_that_the_draft_model_lacks_gets_no_draft() -> None:
    """Its embedding is padded to fewer rows than the target's; the text beside it is drafted for."""
    drafter = DraftModelDrafter(ToyModel(5), 2, 50, vocab_size=7)
    requests = [request(0, [1, 6, 2], 0), request(1, [1, 4, 2], 1)]
    lacking, spelled = drafter.propose(requests, [Plan(3)] * 2, Randomness())
    assert len(lacking) == 0
    assert len(spelled) == 3


def test_recorded_rows_are_those_that_the_tokens_were_drawn_from() -> None:
    one = request(0, [1, 2, 3], 0)
    draft = DraftModelDrafter(MODEL, 1, 50).propose(
        [one], [Plan(4, Drawing.SAMPLED)], Randomness()
    )[0]
    assert isinstance(draft.probs, torch.Tensor)
    for node in range(4):
        drafted = draft.token_ids[:node]
        logits = MODEL.next_logits([*one.token_ids, *drafted])
        row = warp(logits[None], [Prefix(one, drafted)])[0]
        torch.testing.assert_close(draft.probs[node], row)


def test_prompts_are_run_once_and_only_when_drafting() -> None:
    model = Counting(7)
    drafter = DraftModelDrafter(model, 1, 400)
    one = request(0, [index % 7 for index in range(100)], 0)
    drafter.propose([one], [Plan(0)], Randomness())
    assert model.ran == 0
    drafts = drafter.propose([one], [Plan(4)], Randomness())
    assert model.ran == 103
    one.extend([*drafts[0].token_ids[:2], 5])
    drafter.propose([one], [Plan(4)], Randomness())
    # The two accepted tokens are in the cache; the recovered one and three drafted ones are run.
    assert model.ran == 107


def test_a_text_that_begins_like_an_earlier_one_runs_the_rest() -> None:
    """Another request in the row: its text, some of the accepted draft, and more."""
    model = Counting(7)
    drafter = DraftModelDrafter(model, 1, 400)
    first = request(0, [index % 7 for index in range(50)], 0)
    drafts = drafter.propose([first], [Plan(4)], Randomness())
    drafter.release(first)
    second = request(1, [*first.token_ids, *drafts[0].token_ids[:2], 5, 6], 0)
    model.ran = 0
    ours = drafter.propose([second], [Plan(4)], Randomness())
    # Two new tokens, and three of the draft's four.
    assert model.ran == 2 + 3
    fresh = DraftModelDrafter(MODEL, 1, 400).propose([second], [Plan(4)], Randomness())
    assert ours[0].token_ids == fresh[0].token_ids
    drafter.clear_row(0)
    model.ran = 0
    drafter.propose([second], [Plan(4)], Randomness())
    assert model.ran == len(second) + 3


def test_logits_are_padded_to_the_target_vocabulary() -> None:
    one = request(0, [1, 2, 3], 0)
    for size in (5, 9):
        drafter = DraftModelDrafter(MODEL, 1, 50, vocab_size=size)
        draft = drafter.propose([one], [Plan(3, Drawing.SAMPLED)], Randomness())[0]
        assert isinstance(draft.probs, torch.Tensor)
        assert draft.probs.shape == (3, size)
        assert (draft.probs[:, 7:] == 0).all()
