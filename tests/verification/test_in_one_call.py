"""Verdicts made in one call of the kernels, from logits, are those of warping and verifying."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from forerun import _native
from forerun.core import Draft, Request, Verdict
from forerun.errors import DistributionError
from forerun.randomness import Randomness
from forerun.verification import make_rule, target_rows, verify_one
from tests.helpers.covering import covering
from tests.helpers.random_drafts import KINDS, PARAMS, cases, drafted, target_logits
from tests.helpers.verification import verify_logits, warp_draft

pytestmark = pytest.mark.skipif(not _native.AVAILABLE, reason="built without kernels")

VOCAB_SIZES = (2, 30, 64, 65, 500, 3000)
FLAWS = {"dead": -torch.inf, "nan": torch.nan, "inf": torch.inf}


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def in_two_calls(rule: str, draft: Draft, logits: Tensor, request: Request) -> Verdict:
    target_probs = warp_draft(logits, request, draft)
    return verify_one(make_rule(rule), draft, target_probs, request, Randomness())


def in_one_call(rule: str, draft: Draft, logits: Tensor, request: Request) -> Verdict:
    """Without falling back to what it is compared with."""

    def refuse(*arguments: object) -> Tensor:
        raise AssertionError("verified step by step")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target_rows, "warp", refuse)
        patch.setattr(target_rows, "warp_unchecked", refuse)
        return verify_logits(make_rule(rule), draft, logits, request)


@pytest.mark.parametrize(("kind", "vocab_size"), covering(KINDS, VOCAB_SIZES))
def test_one_call_verifies_as_two_do(kind: str, vocab_size: int, dtype: torch.dtype) -> None:
    depths = set()
    for rule, draft, logits, request in cases(kind, vocab_size, dtype, 21):
        verdict = in_one_call(rule, draft, logits, request)
        assert verdict == in_two_calls(rule, draft, logits, request), request
        depths.add(len(verdict.path))
    assert {0, 1, 2} <= depths


@pytest.mark.parametrize("kind", ["drawn trees", "drawn chains", "traversed trees"])
def test_greedy_rows_verify_drafts_drawn_from_any(kind: str, dtype: torch.dtype) -> None:
    """A drafter may sample where the target takes the most likely token."""
    rule, tree, _ = KINDS[kind]
    greedy = Request(0, [1], 1, PARAMS[0], 5)
    depths = set()
    for seed in range(60):
        source = random.Random(seed)
        branches = [source.randint(-1, node - 1) for node in range(5)]
        parents = tuple(branches if tree else range(-1, 4))
        logits = target_logits(30, 6, seed, dtype)
        draft = drafted(parents, logits, Request(0, [1], 1, PARAMS[1], 5), True, seed)
        verdict = in_one_call(rule, draft, logits, greedy)
        assert verdict == in_two_calls(rule, draft, logits, greedy)
        # Nothing but the most likely token may come out.
        rows = [0, *(node + 1 for node in verdict.path)]
        assert list(verdict.token_ids) == logits[rows].argmax(-1).tolist()
        depths.add(len(verdict.path))
    assert len(depths) > 2


@pytest.mark.parametrize(
    ("kind", "vocab_size", "flaw"), covering(KINDS, [2, 65, 500], FLAWS, whole=3)
)
def test_flawed_rows_on_the_path_are_refused(
    kind: str, vocab_size: int, flaw: str, dtype: torch.dtype
) -> None:
    """By both, wherever on the path they are; one NaN or inf is enough."""
    refused = set()
    for index, (rule, draft, logits, request) in enumerate(cases(kind, vocab_size, dtype, 14)):
        source = random.Random(index)
        path = in_two_calls(rule, draft, logits, request).path
        row = source.choice([0, *(node + 1 for node in path)])
        columns = slice(None) if flaw == "dead" else source.randrange(vocab_size)
        logits[row, columns] = FLAWS[flaw]
        with pytest.raises(DistributionError):
            in_two_calls(rule, draft, logits, request)
        verdict = verify_logits(make_rule(rule), draft, logits, request)
        if rule in ("token", "coupled"):
            assert isinstance(verdict.error, DistributionError)
            # What stands before the row that fails is kept.
            kept = [0, *(node + 1 for node in path)].index(row)
            assert verdict.token_ids == tuple(draft.token_ids[node] for node in path[:kept])
        else:
            # Rules that verify whole paths may take another: it fails at the row or misses it.
            visited = [0, *(node + 1 for node in verdict.path)]
            if verdict.error is None:
                assert row not in visited
            elif row > 0:
                assert draft.token_ids[row - 1] == verdict.token_ids[-1]
        refused.add(row > 0)
    assert refused == {False, True}
