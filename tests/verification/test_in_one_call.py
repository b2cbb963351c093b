"""Verdicts made in one call of the kernels, from logits, are those of warping and verifying."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from forerun import _native
from forerun.core import NO_DRAFT, Draft, Request, Tree, Verdict
from forerun.errors import DistributionError
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.sampling import Prefix, draw, warp
from forerun.verification import make_rule, rows, verify_one
from tests.helpers.verification import verify_logits, warp_draft

pytestmark = pytest.mark.skipif(not _native.AVAILABLE, reason="built without kernels")

PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(top_k=5, min_p=0.05),
    SamplingParams(temperature=1.5, top_k=40, top_p=0.6),
]
VOCAB_SIZES = (2, 30, 64, 65, 500, 3000)
# Each draft is a tree or a chain, with the rows that it was drawn from or without.
KINDS = {
    "drawn trees": ("token", True, True),
    "trees of point masses": ("token", True, False),
    "drawn chains": ("token", False, True),
    "traversed trees": ("traversal", True, True),
    "traversed chains": ("traversal", False, True),
    "coupled chains": ("coupled", False, False),
    "coupled trees": ("coupled", True, False),
}
LARGEST = 6
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
        patch.setattr(rows, "warp", refuse)
        patch.setattr(rows, "warp_unchecked", refuse)
        return verify_logits(make_rule(rule), draft, logits, request)


def target_logits(vocab_size: int, count: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Rows [count, V], peaked or flat, some on a grid with ties, some with excluded tokens."""
    source = torch.Generator().manual_seed(1000 * vocab_size + seed)
    rows = torch.randn(count, vocab_size, generator=source, dtype=dtype) * (1 + 2 * (seed % 3))
    if seed % 4 == 1:
        rows = rows.round()
    if seed % 2:
        kept = torch.randint(vocab_size, (count, 1), generator=source)
        values = rows.gather(1, kept)
        rows[torch.rand(rows.shape, generator=source) < 0.4] = -torch.inf
        rows.scatter_(1, kept, values)
    return rows


def drafted(
    parents: tuple[int, ...], logits: Tensor, request: Request, with_rows: bool, seed: int
) -> Draft:
    """A draft of tokens that the target takes now and then, drawn from rows near its own."""
    if not parents:
        return NO_DRAFT
    source = torch.Generator().manual_seed(seed)
    near = logits[[parent + 1 for parent in parents]].float()
    near = near + torch.randn(near.shape, generator=source)
    # Also what the target excludes.
    near = torch.where(near.isinf() & (torch.rand(near.shape, generator=source) < 0.2), 0.0, near)
    rows = warp(near, [Prefix(request)] * len(parents))
    tokens = draw(rows, torch.rand(len(parents), generator=source).tolist())
    return Draft(Tree(parents), tuple(tokens), rows if with_rows else None)


def cases(
    kind: str, vocab_size: int, dtype: torch.dtype, seeds: int
) -> Iterator[tuple[str, Draft, Tensor, Request]]:
    """Rule, draft, logits and request, for all parameters and every size of a draft."""
    rule, tree, with_rows = KINDS[kind]
    for index, params in enumerate(PARAMS):
        for seed in range(seeds):
            source = random.Random(1000 * index + seed)
            size = seed % (LARGEST + 1)
            branches = [source.randint(-1, node - 1) for node in range(size)]
            parents = tuple(branches if tree else range(-1, size - 1))
            logits = target_logits(vocab_size, size + 1, seed, dtype)
            request = Request(0, [1, 0, 1], 3, params, source.randrange(-(2**63), 2**63))
            yield rule, drafted(parents, logits, request, with_rows, seed), logits, request


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("kind", KINDS)
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


@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.parametrize("vocab_size", [2, 65, 500])
@pytest.mark.parametrize("kind", KINDS)
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
