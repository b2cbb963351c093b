"""The rules that ship, enumerated: whole completed sequences follow the target to 1e-12."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from forerun.core import Draft
from forerun.theory.enumeration import end_probabilities
from forerun.verification import block, token
from forerun.verification.decision import Decision

Decide = Callable[[Draft, Tensor], Decision]
Row = np.ndarray
Law = dict[tuple[int, ...], float]


class Tables:
    """Random rows for every prefix; a share of the entries is zero, as top-k and masks make them."""

    def __init__(self, vocab_size: int, seed: int, zeros: float = 0.3) -> None:
        self.vocab_size, self.seed, self.zeros = vocab_size, seed, zeros
        self._rows: dict[tuple[int, ...], Row] = {}

    def row(self, prefix: tuple[int, ...]) -> Row:
        if prefix not in self._rows:
            random = np.random.default_rng([self.seed, 7, *prefix])
            row = random.dirichlet(np.full(self.vocab_size, 0.7))
            row[random.random(self.vocab_size) < self.zeros] = 0.0
            if row.sum() == 0:
                row[random.integers(self.vocab_size)] = 1.0
            self._rows[prefix] = row / row.sum()
        return self._rows[prefix]


def sequences_law(tables: Tables, length: int) -> Law:
    """The target's own law over whole sequences."""
    law = {}
    for sequence in itertools.product(range(tables.vocab_size), repeat=length):
        steps = [tables.row(sequence[:index])[token] for index, token in enumerate(sequence)]
        law[sequence] = float(np.prod(steps))
    return law


def ends_of(decision: Decision, num_nodes: int) -> np.ndarray:
    """The probability that the walk ends at each node, the committed text first."""
    return end_probabilities(
        decision.accept.numpy(),
        decision.on_accept,
        decision.on_reject,
        decision.start,
        num_nodes,
    )


def drawn_drafts(
    tables: Tables, parents: tuple[int, ...], replacement: bool
) -> Iterator[tuple[float, Draft]]:
    """Every draft that a drafter can draw over this tree, with its probability."""

    def grow(
        tokens: tuple[int, ...], rows: list[Row], probability: float
    ) -> Iterator[tuple[float, tuple[int, ...], list[Row]]]:
        node = len(tokens)
        if node == len(parents):
            yield probability, tokens, rows
            return
        partial = Draft(tokens, parents[:node])
        row = tables.row(tuple(partial.tokens_to(parents[node]))).copy()
        if not replacement:
            for sibling in partial.children(parents[node]):
                row[tokens[sibling]] = 0.0
        if row.sum() <= 0:
            return  # nothing left to draw: such a drafter would propose a smaller tree
        row = row / row.sum()
        for one in np.flatnonzero(row):
            yield from grow((*tokens, int(one)), [*rows, row], probability * row[one])

    for probability, tokens, rows in grow((), [], 1.0):
        yield probability, Draft(tokens, parents, torch.tensor(np.array(rows)))


def target_rows(tables: Tables, draft: Draft) -> Tensor:
    rows = [tables.row(tuple(draft.tokens_to(node))) for node in range(-1, len(draft))]
    return torch.tensor(np.array(rows))


def emitted_law(
    decide: Decide, target: Tables, drafts: Iterator[tuple[float, Draft]], length: int
) -> Law:
    """The law of whole sequences: accepted path, emitted token, then plain decoding."""
    law: Law = defaultdict(float)
    for probability, draft in drafts:
        decision = decide(draft, target_rows(target, draft))
        ends = ends_of(decision, len(draft))
        for end in range(-1, len(draft)):
            for last, share in enumerate(decision.emit[end + 1].tolist()):
                emitted = (*draft.tokens_to(end), last)
                weight = probability * ends[end + 1] * share
                if weight:
                    complete(law, target, emitted, weight, length)
    return law


def complete(
    law: Law, target: Tables, emitted: tuple[int, ...], weight: float, length: int
) -> None:
    if len(emitted) == length:
        law[emitted] += weight
        return
    for one, share in enumerate(target.row(emitted)):
        if share:
            complete(law, target, (*emitted, one), weight * share, length)


def deviation(ours: Law, truth: Law) -> float:
    return max(abs(ours.get(one, 0.0) - share) for one, share in truth.items())


def depth_of(parents: tuple[int, ...]) -> int:
    return max(Draft((0,) * len(parents), parents).depths) + 1


CHAINS = [(-1,), (-1, 0), (-1, 0, 1)]
TREES = [(-1, -1), (-1, -1, 0, 0), (-1, -1, -1, 1), (-1, 0, 0, -1), (-1, -1, 0, 1, 1)]


@pytest.mark.parametrize("decide", [token.decide, block.decide], ids=["token", "block"])
@pytest.mark.parametrize("vocab_size", [3, 4])
@pytest.mark.parametrize("parents", CHAINS, ids=str)
def test_drawn_chains(decide: Decide, vocab_size: int, parents: tuple[int, ...]) -> None:
    length = len(parents) + 1
    for seed in range(6):
        target, draft = Tables(vocab_size, seed), Tables(vocab_size, 100 + seed)
        ours = emitted_law(decide, target, drawn_drafts(draft, parents, True), length)
        assert deviation(ours, sequences_law(target, length)) < 1e-12


@pytest.mark.parametrize("replacement", [False, True], ids=["without", "with"])
@pytest.mark.parametrize("parents", TREES, ids=str)
def test_drawn_trees(parents: tuple[int, ...], replacement: bool) -> None:
    length = depth_of(parents) + 1
    for seed in range(2):
        target, draft = Tables(3, seed), Tables(3, 100 + seed, zeros=0.0)
        ours = emitted_law(token.decide, target, drawn_drafts(draft, parents, replacement), length)
        assert deviation(ours, sequences_law(target, length)) < 1e-12


@pytest.mark.parametrize("parents", [*CHAINS, *TREES], ids=str)
def test_point_masses(parents: tuple[int, ...]) -> None:
    """Any fixed tree is exact, also one that repeats a token among siblings."""
    length = depth_of(parents) + 1
    for seed in range(8):
        random = np.random.default_rng(seed)
        tokens = tuple(random.integers(4, size=len(parents)).tolist())
        target = Tables(4, seed)
        ours = emitted_law(token.decide, target, iter([(1.0, Draft(tokens, parents))]), length)
        assert deviation(ours, sequences_law(target, length)) < 1e-12


def test_identical_models_accept_everything() -> None:
    target = Tables(4, 1)
    for _, draft in drawn_drafts(target, (-1, 0, 1), True):
        for decide in (token.decide, block.decide):
            decision = decide(draft, target_rows(target, draft))
            ends = ends_of(decision, len(draft))
            assert ends[-1] == pytest.approx(1.0, abs=1e-12)
            assert torch.isfinite(decision.emit).all()


def test_block_never_accepts_less_than_token() -> None:
    """Sun et al., theorem 2; and strictly more somewhere."""
    gains = []
    for seed in range(10):
        target, draft = Tables(3, seed), Tables(3, 100 + seed)
        accepted = []
        for decide in (token.decide, block.decide):
            total = 0.0
            for probability, one in drawn_drafts(draft, (-1, 0, 1), True):
                decision = decide(one, target_rows(target, one))
                ends = ends_of(decision, len(one))
                total += probability * float(ends @ np.arange(4))
            accepted.append(total)
        gains.append(accepted[1] - accepted[0])
    assert min(gains) > -1e-12
    assert max(gains) > 1e-3


def test_an_argmax_draft_against_its_softmax_row_is_caught() -> None:
    """The commonest defect of the field: the token was not drawn from the row that is recorded."""
    target, draft = Tables(4, 3, zeros=0.0), Tables(4, 103, zeros=0.0)
    row = draft.row(())
    wrong = Draft((int(row.argmax()),), (-1,), torch.tensor(row)[None])
    ours = emitted_law(token.decide, target, iter([(1.0, wrong)]), 2)
    assert deviation(ours, sequences_law(target, 2)) > 1e-2


def test_the_target_drawn_once_a_branch_is_caught() -> None:
    """Siblings that are all tested against the whole target row accept too often."""

    def decide(draft: Draft, rows: Tensor) -> Decision:
        right = token.decide(draft, rows)
        q = draft.dense_probs(rows.shape[-1])
        assert q is not None
        accept = [
            token.acceptance(rows[parent + 1, one], q[node, one])
            for node, (parent, one) in enumerate(zip(draft.parents, draft.token_ids, strict=True))
        ]
        return Decision(
            torch.stack(accept), right.on_accept, right.on_reject, right.start, right.emit
        )

    target, draft = Tables(4, 3, zeros=0.0), Tables(4, 103, zeros=0.0)
    ours = emitted_law(decide, target, drawn_drafts(draft, (-1, -1), False), 2)
    assert deviation(ours, sequences_law(target, 2)) > 1e-3


def test_sparse_rows_decide_like_dense_ones() -> None:
    from forerun.core import SparseProbs

    target = Tables(4, 5)
    for _, dense in drawn_drafts(Tables(4, 105), (-1, 0), True):
        assert isinstance(dense.probs, Tensor)
        values, ids = dense.probs.topk(4)
        sparse = Draft(dense.token_ids, dense.parents, SparseProbs(ids, values))
        for decide in (token.decide, block.decide):
            ours, theirs = (decide(one, target_rows(target, one)) for one in (sparse, dense))
            torch.testing.assert_close(ours.accept, theirs.accept)
            torch.testing.assert_close(ours.emit, theirs.emit)


def test_float32_stays_within_1e_6() -> None:
    target, draft = Tables(4, 2), Tables(4, 102)

    def decide(one: Draft, rows: Tensor) -> Decision:
        assert isinstance(one.probs, Tensor)
        single = Draft(one.token_ids, one.parents, one.probs.float())
        return token.decide(single, rows.float())

    ours = emitted_law(decide, target, drawn_drafts(draft, (-1, 0), True), 3)
    assert deviation(ours, sequences_law(target, 3)) < 1e-6
