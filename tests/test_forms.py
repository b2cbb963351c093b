"""The compiled form of sampling and verification against the torch form, and the walk of the former."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from forerun import _native
from forerun._native import rows as native
from forerun.core import NO_DRAFT, Draft, Drawing, Request, Tree, Verdict
from forerun.params import SamplingParams
from forerun.randomness import Purpose, Randomness
from forerun.sampling import Prefix, couple, draw, draw_siblings, warp
from forerun.verification import make_rule, token, traversal, verify_one
from forerun.verification.decision import Decision
from tests.helpers.verification import verify_logits, walk, warp_draft

pytestmark = pytest.mark.skipif(not _native.AVAILABLE, reason="built without kernels")

Decide = Callable[[Draft, Tensor], Decision]
DECIDE = {"token": token.decide, "traversal": traversal.decide}
TYPES = {torch.float32: 1e-6, torch.float64: 1e-12}
# From less than a block of tokens to more of them than one looks through for a nucleus.
VOCAB_SIZES = (1, 2, 63, 64, 65, 500, 3000)


@pytest.fixture(params=TYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "AVAILABLE", False)


def logits_of(vocab_size: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Peaked or flat, with ties on a grid, with tokens that are excluded."""
    source = torch.Generator().manual_seed(1000 * vocab_size + seed)
    rows = torch.randn(3, vocab_size, generator=source, dtype=dtype) * (1 + 5 * (seed % 3))
    if seed % 2:
        rows = (rows * 2).round() / 2
    if seed % 5 == 0:
        rows[torch.rand(rows.shape, generator=source) < 0.4] = -torch.inf
        rows[:, 0] = 0.0
    return rows


def warped(rows: Tensor, **options: float) -> Tensor:
    request = Request(0, [0], 1, SamplingParams(**options), 0)  # type: ignore[arg-type]
    return warp_draft(rows, request, Draft.chain([0] * (len(rows) - 1)))


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_rows_are_warped_alike(
    vocab_size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = list(
        itertools.product([0.0, 0.4, 1.0, 3.0], [0, 1, 7, 60], [1.0, 0.95, 0.3], [0.0, 0.1])
    )
    compiled = {}
    for form in ("compiled", "torch"):
        if form == "torch":
            in_torch(monkeypatch)
        for seed, (temperature, top_k, top_p, min_p) in enumerate(options):
            params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
            rows = logits_of(vocab_size, seed, dtype)
            probs = warp_draft(rows, Request(0, [0], 1, params, 0), Draft.chain([0, 0]))
            if form == "compiled":
                compiled[seed] = probs
            else:
                error = (probs - compiled[seed]).abs().max()
                assert error < TYPES[dtype], f"{params}, seed {seed}: {error}"


@pytest.mark.parametrize("spread", [0.3, 3.0])
@pytest.mark.parametrize("vocab_size", [200, 5000])
def test_nuclei_are_cut_at_the_same_token(
    vocab_size: int, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the limit falls among tokens that differ, few or many."""
    source = torch.Generator().manual_seed(vocab_size)
    row = torch.randn(1, vocab_size, generator=source, dtype=torch.float64) * spread
    results = []
    for _ in range(2):
        kept = [warped(row, top_p=step / 97) > 0 for step in range(1, 97)]
        results.append(torch.cat(kept))
        in_torch(monkeypatch)
    assert torch.equal(*results)


def test_a_row_does_not_depend_on_others(dtype: torch.dtype) -> None:
    rows = logits_of(3000, 1, dtype)
    request = Request(0, [0], 1, SamplingParams(top_p=0.9), 0)
    together = warp_draft(rows, request, Draft.chain([0, 0]))
    for index in range(3):
        alone = warp_draft(rows[index : index + 1], request, NO_DRAFT)
        assert torch.equal(together[index], alone[0])


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_tokens_are_drawn_alike(
    vocab_size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at the edges of the stretches of the unit interval, up to their rounding."""
    probs = logits_of(vocab_size, 4, dtype).softmax(-1)
    points = torch.rand(100, generator=torch.Generator().manual_seed(0)).tolist()
    points += [0.0, 1.0 - 2.0**-53]
    noises = [Randomness().gumbel(1, position, vocab_size) for position in range(20)]
    results = []
    for _ in range(2):
        drawn = [draw(probs, [point] * 3) for point in points]
        coupled = [couple(probs, noise.expand(3, -1).contiguous()) for noise in noises]
        results.append((drawn, coupled))
        in_torch(monkeypatch)
    assert results[0] == results[1]


def test_random_numbers_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniforms to the last bit; noise as well as two logarithms do."""
    keys = [
        (seed, position, purpose, node)
        for seed in (0, -1, 2**63 - 1, -(2**63), 12345)
        for position in (0, 1, 10**6)
        for purpose in Purpose
        for node in (0, 63)
    ]
    results = []
    for _ in range(2):
        source = Randomness()
        uniforms = [source.uniform(*key) for key in keys]
        results.append((uniforms, torch.stack([source.gumbel(s, 7, 5000) for s in (-3, 0, 8)])))
        in_torch(monkeypatch)
    (ours, noise), (theirs, other) = results
    assert ours == theirs
    torch.testing.assert_close(noise, other, rtol=1e-12, atol=1e-12)
    assert torch.equal(noise.argmax(-1), other.argmax(-1))


SHAPES = ((), (-1,), (-1, 0, 1, 2), (-1, -1, 0, 0, 1), (-1, -1, -1, 1, 1, 3))


def drawn(
    shape: tuple[int, ...], vocab_size: int, seed: int, dtype: torch.dtype
) -> tuple[Draft, Tensor]:
    """A drafted tree and the target's rows, with zeros and not too far apart."""
    source = torch.Generator().manual_seed(seed)
    size = (2 * len(shape) + 1, vocab_size)
    logits = torch.randn(size, generator=source, dtype=dtype)
    logits[torch.rand(size, generator=source) < 0.2] = -torch.inf
    logits[:, 0] = 1.0
    rows = logits.softmax(-1)
    ids = torch.multinomial(rows[: len(shape)], 1, generator=source) if shape else torch.zeros(0)
    draft = Draft(
        Tree(shape), tuple(ids.long().flatten().tolist()), rows[: len(shape)] if shape else None
    )
    return draft, rows[len(shape) :]


@pytest.mark.parametrize("vocab_size", [3, 64, 300])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", ["token", "traversal", "token, point masses"])
def test_the_compiled_walk_follows_the_compiled_decision(
    rule: str, shape: tuple[int, ...], vocab_size: int, dtype: torch.dtype
) -> None:
    """The same verdict for every seed: in one call of the kernels, and step by step."""
    verdicts = set()
    for seed in range(60):
        draft, target = drawn(shape, vocab_size, seed, dtype)
        if rule == "token, point masses":
            draft = Draft(Tree(shape), draft.token_ids)
        request = Request(0, [1, 2], 2, SamplingParams(), seed)
        decide = DECIDE[rule.split(",")[0]]
        by_name = make_rule(rule.split(",")[0])
        # The logarithms of probabilities are logits, up to rounding.
        probs = warp_draft(target.log(), request, draft)
        decision = decide(draft, probs)
        expected = walk(draft, decision, request, Randomness())
        assert verify_one(by_name, draft, probs, request, Randomness()) == expected
        assert verify_logits(by_name, draft, target.log(), request) == expected
        heard = Randomness(lambda key: None)
        assert verify_logits(by_name, draft, target.log(), request, heard) == expected
        verdicts.add((expected.path, expected.token_ids))
    assert len(verdicts) > 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decisions_agree(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [drawn(shape, 70, seed, dtype) for seed in range(20)]
    cases += [(Draft(Tree(shape), draft.token_ids), target) for draft, target in cases]
    results = []
    for _ in range(2):
        decided = []
        for (rule, decide), (draft, target) in itertools.product(DECIDE.items(), cases):
            if rule == "token" or draft.probs is not None or not shape:
                decided.append(decide(draft, target))
        results.append(decided)
        in_torch(monkeypatch)
    for ours, theirs in zip(*results, strict=True):
        assert ours.start == theirs.start
        assert (ours.on_accept, ours.on_reject) == (theirs.on_accept, theirs.on_reject)
        torch.testing.assert_close(ours.accept, theirs.accept, rtol=1e-5, atol=TYPES[dtype])
        torch.testing.assert_close(ours.emit, theirs.emit, rtol=1e-5, atol=TYPES[dtype])


@pytest.mark.parametrize("decide", DECIDE.values(), ids=DECIDE)
def test_where_nothing_is_left_the_target_row_is_emitted(decide: Decide) -> None:
    """Identical models: no residual, and a row to emit from all the same."""
    _, target = drawn((-1, 0), 70, 1, torch.float64)
    draft = Draft.chain(target[:2].argmax(-1).tolist(), target[:2])
    torch.testing.assert_close(decide(draft, target).emit, target)


@pytest.mark.parametrize("greedy", [False, True])
def test_coupled_verdicts_agree(greedy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the noise made in place, with noise that someone hears of, and in torch."""
    params = SamplingParams(temperature=0.0 if greedy else 1.0)
    cases = [drawn(shape, 70, seed, torch.float64) for shape in SHAPES for seed in range(20)]
    results: list[list[Verdict]] = []
    for heard in (False, True, True):
        if len(results) == 2:
            in_torch(monkeypatch)
        source = Randomness((lambda key: None) if heard else None)
        rule = make_rule("coupled")
        requests = [Request(0, [1, 2], 2, params, seed) for seed in range(len(cases))]
        pairs = zip(cases, requests, strict=True)
        results.append([verify_one(rule, *case, request, source) for case, request in pairs])
    assert results[0] == results[1] == results[2]
    assert len({verdict.path for verdict in results[0]}) > 1


def one_by_one(
    row: Tensor, key: tuple[int, int], nodes: list[int], replacement: bool
) -> list[tuple[int, Tensor]]:
    """The children of one node, written down plainly: tokens, and the rows they were drawn from."""
    found = []
    for node in nodes:
        token = draw(row[None], [Randomness().uniform(*key, Purpose.DRAFT, node)])[0]
        found.append((token, row))
        if not replacement:
            row = row.index_fill(0, torch.tensor(token), 0.0)
            if row.sum() == 0:
                break
            row = row / row.sum()
    return found


@pytest.mark.parametrize("replacement", [False, True], ids=["without", "with"])
@pytest.mark.parametrize("vocab_size", [1, 3, 64, 65, 500, 3000])
def test_siblings_are_drawn_alike(
    vocab_size: int, replacement: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of many nodes at once, one after the other, and from logits in torch. The rounding of
    sums adds up over siblings."""
    params = SamplingParams(top_k=40, temperature=1.5)
    requests = [Request(0, [1] * (seed % 3 + 1), 1, params, seed - 4) for seed in range(9)]
    prefixes = [Prefix(one) for one in requests]
    logits = torch.cat([logits_of(vocab_size, seed, dtype) for seed in range(3)])
    probs = warp(logits, prefixes)
    keys = [(one.seed, len(one)) for one in requests]
    nodes = [list(range(5 * row, 5 * row + row % 6)) for row in range(9)]
    tokens, rows = native.draw_siblings(probs, keys, nodes, replacement)
    each = zip(probs, keys, nodes, strict=True)
    expected = [one_by_one(*one, replacement) for one in each]
    assert tokens == [[token for token, _ in one] for one in expected]
    plainly = torch.stack([row for one in expected for _, row in one])
    rounding = 0.0 if replacement else 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(rows, plainly, rtol=rounding, atol=0.0)
    assert torch.equal(rows == 0, plainly == 0)
    in_torch(monkeypatch)
    source = Randomness()
    children = draw_siblings(
        logits, prefixes, Drawing.SAMPLED, nodes, source, replacement=replacement
    )
    assert tokens == [one.token_ids for one in children]
    in_torch_form = torch.cat([one.rows for one in children if one.rows is not None])
    torch.testing.assert_close(rows, in_torch_form, rtol=1e-5, atol=TYPES[dtype])


def test_siblings_of_nothing() -> None:
    """A row without probability has no children, nor has one of which none are asked for."""
    probs = torch.tensor([[0.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    keys = [(1, 1)] * 3
    tokens, rows = native.draw_siblings(probs, keys, [[0, 1], [], [2, 3]])
    assert tokens == [[], [], [1]]
    assert torch.equal(rows, probs[2:])
    assert native.draw_siblings(probs, keys, [[], [], []])[0] == [[], [], []]
    with pytest.raises(ValueError, match="each key has its nodes"):
        native.draw_siblings(probs, keys, [[0]])


def test_an_invalid_draft_is_refused() -> None:
    rule, request = make_rule("token"), Request(0, [0], 1, SamplingParams(), 0)
    with pytest.raises(ValueError, match="token id 9"):
        verify_one(rule, Draft.chain([9]), torch.full((2, 4), 0.25), request, Randomness())
    with pytest.raises(ValueError, match=r"must be \[2, 4\] and not \[1, 4\]"):
        verify_one(rule, Draft.chain([1]), torch.full((1, 4), 0.25), request, Randomness())
