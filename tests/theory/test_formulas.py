"""The formulas against sums, published tables, brute force and the rules that ship."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from forerun.core import Draft
from forerun.errors import ConfigError, DistributionError
from forerun.theory import chains, formulas, rows, trees
from forerun.theory.enumeration import end_probabilities
from forerun.theory.formulas import expected_tokens, optimal_length, speedup
from forerun.theory.rows import acceptance_rate, corrected_distribution, total_variation
from forerun.verification import block, token
from forerun.verification.decision import Decision

NAN, INF = float("nan"), float("inf")
ALPHAS = st.floats(0.0, 1.0)
LENGTHS = st.integers(0, 40)
RATIOS = st.floats(0.0, 3.0)


@st.composite
def row_pairs(draw: st.DrawFn, largest: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Two rows over one vocabulary; zeros and equal rows are likely, one token possible."""
    size = draw(st.integers(1, largest))
    weights = st.lists(st.just(0.0) | st.floats(1e-3, 1.0), min_size=size, max_size=size)
    p = np.array(draw(weights.filter(any)))
    q = p if draw(st.booleans()) else np.array(draw(weights.filter(any)))
    return p / p.sum(), q / q.sum()


@given(row_pairs())
def test_acceptance_is_one_less_the_total_variation(pair: tuple[np.ndarray, np.ndarray]) -> None:
    p, q = pair
    assert acceptance_rate(p, q) == pytest.approx(1.0 - total_variation(p, q), abs=1e-12)
    assert acceptance_rate(p, q) == acceptance_rate(q, p)
    assert 0.0 <= acceptance_rate(p, q) <= acceptance_rate(p, p) + 1e-12
    by_token = sum(y * min(1.0, x / y) for x, y in zip(p, q, strict=True) if y > 0)
    assert acceptance_rate(p, q) == pytest.approx(by_token)


@given(row_pairs())
def test_accepted_and_recovered_tokens_make_up_the_target(
    pair: tuple[np.ndarray, np.ndarray],
) -> None:
    p, q = pair
    recovered = corrected_distribution(p, q)
    assert recovered.sum() == pytest.approx(1.0)
    assert np.minimum(p, q) + total_variation(p, q) * recovered == pytest.approx(p, abs=1e-12)
    assert np.array_equal(corrected_distribution(p, p), p)


@given(row_pairs())
def test_coupled_draws_meet_as_often_as_they_can_be_shown_to(
    pair: tuple[np.ndarray, np.ndarray],
) -> None:
    apart = total_variation(*pair)
    met = rows.coupled_acceptance_rate(*pair)
    assert (1 - apart) / (1 + apart) - 1e-12 <= met <= 1 - apart + 1e-12


def test_coupled_draws_are_the_gumbel_argmax() -> None:
    random = np.random.default_rng(1)
    p, q = random.dirichlet(np.ones(5)), random.dirichlet(np.ones(5))
    noise = random.gumbel(size=(200_000, 5))
    met = np.mean((np.log(p) + noise).argmax(1) == (np.log(q) + noise).argmax(1))
    assert abs(met - rows.coupled_acceptance_rate(p, q)) < 4 * 0.5 / math.sqrt(200_000)


def test_rows_broadcast_and_take_single_precision() -> None:
    random = np.random.default_rng(0)
    p, q = random.dirichlet(np.ones(50), size=(4, 1)), random.dirichlet(np.ones(50), size=3)
    assert np.shape(acceptance_rate(p, q)) == (4, 3)
    assert corrected_distribution(p, q).shape == (4, 3, 50)
    single = p.astype(np.float32)
    assert acceptance_rate(single, q) == pytest.approx(np.asarray(acceptance_rate(p, q)), abs=1e-6)
    assert np.allclose(corrected_distribution(single, q).sum(-1), 1.0, atol=1e-12)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([0.5, 0.4], [0.5, 0.5]),
        ([0.5, 0.5], [0.5, 0.6]),
        ([1.5, -0.5], [0.5, 0.5]),
        ([NAN, 1.0], [0.5, 0.5]),
        ([INF, 0.0], [0.5, 0.5]),
        ([0.5, 0.5], [0.2, 0.3, 0.5]),
        ([], []),
        (1.0, 1.0),
        ([["0.5", "0.5"]], [0.5, 0.5]),
        ([[0.5, 0.5], [1.0]], [0.5, 0.5]),
    ],
    ids=str,
)
def test_rows_that_are_no_probabilities_are_refused(p: Any, q: Any) -> None:
    functions: list[Callable[..., Any]] = [
        total_variation,
        acceptance_rate,
        corrected_distribution,
        rows.coupled_acceptance_rate,
    ]
    for function in (*functions, lambda p, q: trees.sibling_acceptance(p, q, 2)):
        with pytest.raises(DistributionError) as caught:
            function(p, q)
        assert "\n" not in str(caught.value)


@given(ALPHAS, LENGTHS)
def test_expected_tokens_is_the_geometric_sum(alpha: float, length: int) -> None:
    plain_sum = math.fsum(alpha**power for power in range(length + 1))
    assert expected_tokens(alpha, length) == pytest.approx(plain_sum, rel=1e-13)
    assert formulas.expected_accepted(alpha, length) == pytest.approx(plain_sum - 1, abs=1e-12)


@given(st.floats(0.0, 1e-6), LENGTHS)
def test_expected_tokens_is_right_next_to_one(gap: float, length: int) -> None:
    """The second-order expansion; (1 - alpha^n) / (1 - alpha) has lost ten digits here."""
    n = length + 1
    nearby = n - gap * n * (n - 1) / 2 + gap**2 * n * (n - 1) * (n - 2) / 6
    assert expected_tokens(1.0 - gap, length) == pytest.approx(nearby, rel=1e-12)


def test_expected_tokens_at_its_ends() -> None:
    assert expected_tokens(1.0, 5) == 6.0
    assert expected_tokens(0.0, 5) == 1.0
    assert expected_tokens(0.9, 0) == 1.0
    assert expected_tokens(0.5, 1 << 31) == 2.0
    found = np.asarray(expected_tokens([[0.5], [1.0]], [0, 1, 2]))
    assert found.tolist() == [[1.0, 1.5, 1.75], [1.0, 2.0, 3.0]]
    assert np.shape(expected_tokens([], 3)) == (0,)


@given(ALPHAS, st.integers(1, 40))
def test_the_quantities_called_acceptance_differ(alpha: float, length: int) -> None:
    per_drafted = formulas.accepted_per_drafted(alpha, length)
    assert per_drafted <= alpha + 1e-12
    assert formulas.tokens_per_drafted(alpha, length) == pytest.approx(per_drafted + 1 / length)


# Leviathan et al., table 1: operations and speed-up for free drafts.
@pytest.mark.parametrize(
    ("alpha", "length", "operations", "gain"),
    [
        (0.6, 2, 1.53, 1.96),
        (0.7, 3, 1.58, 2.53),
        (0.8, 2, 1.23, 2.44),
        (0.8, 5, 1.63, 3.69),
        (0.9, 2, 1.11, 2.71),
        (0.9, 10, 1.60, 6.86),
    ],
)
def test_the_table_of_the_paper(alpha: float, length: int, operations: float, gain: float) -> None:
    assert formulas.operations_factor(alpha, length, 0.0) == pytest.approx(operations, abs=0.005)
    assert speedup(alpha, length, 0.0) == pytest.approx(gain, abs=0.005)


@given(ALPHAS, st.integers(1, 40))
def test_acceptance_comes_back_from_tokens(alpha: float, length: int) -> None:
    tokens = expected_tokens(alpha, length)
    found = formulas.acceptance_from_tokens(tokens, length)
    assert expected_tokens(found, length) == pytest.approx(tokens, rel=1e-12)
    assert found == pytest.approx(alpha, abs=1e-9)
    assert math.isnan(float(formulas.acceptance_from_tokens(length + 1.01, length)))


@given(ALPHAS, RATIOS, st.integers(0, 20), st.floats(0.5, 2.0))
def test_the_optimal_length_is_the_best_of_all(
    alpha: float, ratio: float, longest: int, checking: float
) -> None:
    best = optimal_length(alpha, ratio, longest, verification_cost=checking)
    gains = [speedup(alpha, n, ratio, verification_cost=checking) for n in range(1, longest + 1)]
    if best == 0:
        assert all(gain <= 1.0 for gain in gains)
    else:
        assert gains[best - 1] == max(gains)
        assert gains[best - 1] > 1.0
        assert all(gain < max(gains) for gain in gains[: best - 1])


@given(ALPHAS, RATIOS)
def test_speculation_pays_exactly_where_acceptance_exceeds_the_cost(
    alpha: float, ratio: float
) -> None:
    assume(abs(alpha - ratio) > 1e-9)
    assert (optimal_length(alpha, ratio) > 0) == (alpha > ratio)


def test_the_optimal_length_of_a_free_and_perfect_draft_is_the_longest() -> None:
    assert optimal_length(1.0, 0.0) == 64
    assert optimal_length(1.0, 0.0, longest=7) == 7
    assert optimal_length(0.0, 0.0) == 0
    # Checking three tokens costs twice as much as checking two here.
    assert optimal_length(0.9, 0.0, longest=2, verification_cost=[1.0, 2.0]) == 1


@given(ALPHAS, LENGTHS, RATIOS)
def test_no_speedup_passes_its_ceilings(alpha: float, length: int, ratio: float) -> None:
    gain = speedup(alpha, length, ratio)
    assert gain <= formulas.acceptance_ceiling(alpha) * (1 + 1e-12)
    assert gain <= formulas.length_ceiling(length, ratio) * (1 + 1e-12)
    worst, average, best = formulas.round_cases(alpha, length, ratio)
    assert (worst.tokens, best.tokens) == (1.0, length + 1.0)
    assert average.speedup == gain
    assert worst.speedup <= gain * (1 + 1e-12)
    assert best.speedup == formulas.length_ceiling(length, ratio)


def test_ceilings_are_approached() -> None:
    assert formulas.acceptance_ceiling([0.8, 1.0]) == pytest.approx([5.0, INF])
    assert speedup(0.8, 1000, 0.0) == pytest.approx(5.0)


@given(st.integers(1, 40), RATIOS, st.floats(0.1, 4.0))
def test_at_break_even_nothing_is_won_or_lost(length: int, ratio: float, checking: float) -> None:
    cost = {"verification_cost": checking}
    alpha = float(formulas.break_even_acceptance(length, ratio, **cost))
    if math.isnan(alpha):
        assert speedup(1.0, length, ratio, **cost) < 1.0
    elif alpha == 0.0:
        assert speedup(0.0, length, ratio, **cost) >= 1.0 - 1e-12
    else:
        assert speedup(alpha, length, ratio, **cost) == pytest.approx(1.0, abs=1e-9)
        assert speedup(0.99 * alpha, length, ratio, **cost) < 1.0


@given(ALPHAS, st.integers(1, 40), st.floats(0.1, 4.0))
def test_the_break_even_cost_ratio_likewise(alpha: float, length: int, checking: float) -> None:
    cost = {"verification_cost": checking}
    ratio = float(formulas.break_even_cost_ratio(alpha, length, **cost))
    if math.isnan(ratio):
        assert speedup(alpha, length, 0.0, **cost) < 1.0
    else:
        assert speedup(alpha, length, ratio, **cost) == pytest.approx(1.0, abs=1e-9)


def test_break_even_of_one_token_is_the_cost_ratio() -> None:
    found = formulas.break_even_acceptance(1, [0.0, 0.3, 1.0, 1.5])
    assert found == pytest.approx([0.0, 0.3, 1.0, NAN], nan_ok=True)
    assert formulas.break_even_acceptance(0, 0.5) == 0.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: expected_tokens(1.0001, 3),
        lambda: expected_tokens(-0.1, 3),
        lambda: expected_tokens(NAN, 3),
        lambda: expected_tokens([0.5, 2.0], 3),
        lambda: expected_tokens("0.5", 3),
        lambda: expected_tokens(True, 3),
        lambda: expected_tokens(0.5, -1),
        lambda: expected_tokens(0.5, 2.5),
        lambda: expected_tokens(0.5, True),
        lambda: expected_tokens([0.1, 0.2], [1, 2, 3]),
        lambda: formulas.accepted_per_drafted(0.5, 0),
        lambda: formulas.tokens_per_drafted(0.5, 0),
        lambda: formulas.acceptance_from_tokens(0.9, 3),
        lambda: speedup(0.5, 3, -0.1),
        lambda: speedup(0.5, 3, NAN),
        lambda: speedup(0.5, 3, INF),
        lambda: speedup(0.5, 3, 0.1, verification_cost=0.0),
        lambda: formulas.round_speedup(2.0, -1.0),
        lambda: optimal_length(1.5, 0.1),
        lambda: optimal_length(0.5, NAN),
        lambda: optimal_length(0.5, 0.1, longest=-1),
        lambda: optimal_length(0.5, 0.1, 2, verification_cost=[[1.0], [2.0]]),
        lambda: formulas.acceptance_ceiling(2.0),
        lambda: formulas.break_even_acceptance(3, -1.0),
        lambda: formulas.break_even_cost_ratio(0.5, 0),
        lambda: formulas.round_cases(2.0, 3, 0.1),
        lambda: chains.expected_tokens_block_rule(np.ones((2, 1)), np.ones((3, 1))),
        lambda: chains.token_rule_survival([np.ones((2, 1))], [np.ones((2, 1))]),
        lambda: chains.token_rule_survival(np.full((30, 4), 0.25), np.full((30, 4), 0.25)),
        lambda: trees.branching_parents([2, 0]),
        lambda: trees.branching_parents([64, 64, 64]),
        lambda: trees.sibling_acceptance([1.0], [1.0], 0),
        lambda: trees.distinct_sibling_acceptance([[1.0]], [[1.0]], 2),
        lambda: trees.distinct_sibling_acceptance(np.full(50, 0.02), np.full(50, 0.02), 9),
        lambda: trees.expected_tokens_tree([0], [0.5]),
        lambda: trees.expected_tokens_tree([-1, -1], [0.7, 0.7]),
        lambda: trees.expected_tokens_tree([-1, -1], [0.7]),
        lambda: trees.expected_tokens_tree([-1, 0], [[0.7]]),
        lambda: trees.expected_tokens_tree([-1], 0.7),
    ],
)
def test_what_is_out_of_range_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert "\n" not in str(caught.value)


def prefix_rows(seed: int, vocab_size: int, length: int) -> list[np.ndarray]:
    """Random rows after every prefix; some of their entries are zero."""
    random = np.random.default_rng(seed)
    found = []
    for place in range(length):
        table = random.dirichlet(np.ones(vocab_size), size=(vocab_size,) * place)
        kept = np.where(random.random(table.shape) < 0.15, 0.0, table)
        table = np.where(kept.sum(-1, keepdims=True) > 0, kept, table)
        found.append(table / table.sum(-1, keepdims=True))
    return found


def enumerated_tokens(
    decide: Callable[[Draft, torch.Tensor], Decision], p: list[np.ndarray], q: list[np.ndarray]
) -> float:
    """Tokens a round of a rule that ships: all drafts, all ends of its walk."""
    length, vocab_size, total = len(p), len(p[0]), 0.0
    for ids in itertools.product(range(vocab_size), repeat=length):
        draft_rows = np.array([q[place][ids[:place]] for place in range(length)])
        drawn = math.prod(row[i] for row, i in zip(draft_rows, ids, strict=True))
        if drawn == 0.0:
            continue
        target = [p[place][ids[:place]] for place in range(length)] + [np.eye(vocab_size)[0]]
        draft = Draft.chain(ids, torch.tensor(draft_rows))
        made = decide(draft, torch.tensor(np.array(target)))
        ends = end_probabilities(
            made.accept.numpy(), made.on_accept, made.on_reject, made.start, length
        )
        total += drawn * float(ends @ np.arange(1, length + 2))
    return total


@pytest.mark.parametrize("seed", range(4))
def test_chains_are_what_the_shipped_rules_accept(seed: int) -> None:
    p, q = prefix_rows(seed, 3, 3), prefix_rows(seed + 50, 3, 3)
    by_token, by_block = (
        chains.expected_tokens_token_rule(p, q),
        chains.expected_tokens_block_rule(p, q),
    )
    assert by_token == pytest.approx(enumerated_tokens(token.decide, p, q), abs=1e-12)
    assert by_block == pytest.approx(enumerated_tokens(block.decide, p, q), abs=1e-12)
    assert by_block > by_token + 1e-6


def test_the_example_of_block_verification() -> None:
    """Sun et al.: two coins, 10/9 tokens accepted by token, 11/9 by block, 12/9 being the bound."""
    p, q = np.array([[1 / 3, 2 / 3]] * 2), np.array([[2 / 3, 1 / 3]] * 2)
    assert chains.token_rule_survival(p, q).sum() == pytest.approx(10 / 9)
    assert chains.block_rule_survival(p, q).sum() == pytest.approx(11 / 9)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 4))
def test_block_accepts_more_than_token_and_less_than_the_overlap_of_whole_prefixes(
    seed: int, vocab_size: int, length: int
) -> None:
    p, q = prefix_rows(seed, vocab_size, length), prefix_rows(seed + 1, vocab_size, length)
    by_token, by_block = chains.token_rule_survival(p, q), chains.block_rule_survival(p, q)
    joint_p, joint_q, bound = np.ones(()), np.ones(()), []
    for target, draft in zip(p, q, strict=True):
        joint_p, joint_q = joint_p[..., None] * target, joint_q[..., None] * draft
        bound.append(np.minimum(joint_p, joint_q).sum())
    assert np.all(by_token <= by_block + 1e-12)
    assert np.all(by_block <= np.array(bound) + 1e-12)
    assert chains.block_rule_survival(p, p) == pytest.approx(np.ones(length))


@given(row_pairs(), st.integers(1, 5))
def test_rows_without_context_are_independent_acceptance(
    pair: tuple[np.ndarray, np.ndarray], length: int
) -> None:
    p, q = (np.tile(row, (length, 1)) for row in pair)
    alpha = acceptance_rate(*pair)
    assert chains.expected_tokens_token_rule(p, q) == pytest.approx(expected_tokens(alpha, length))
    branching = [1] * length
    for replacement in (True, False):
        tree = trees.expected_tokens_branching(*pair, branching, replacement=replacement)
        assert tree == pytest.approx(expected_tokens(alpha, length))
    chain = trees.branching_parents(branching)
    assert chain == tuple(range(-1, length - 1))
    assert trees.expected_tokens_tree(chain, [alpha]) == pytest.approx(
        expected_tokens(alpha, length)
    )


@given(row_pairs(largest=4), st.integers(1, 4))
def test_more_siblings_are_accepted_more_often(
    pair: tuple[np.ndarray, np.ndarray], count: int
) -> None:
    for siblings in (trees.sibling_acceptance, trees.distinct_sibling_acceptance):
        by_rank = siblings(*pair, count)
        assert by_rank[0] == pytest.approx(acceptance_rate(*pair))
        assert np.all(by_rank >= 0.0)
        assert by_rank.sum() <= 1.0 + 1e-12
        assert siblings(*pair, count + 1)[:count] == pytest.approx(by_rank)
    p, q = pair
    if np.all(q > 0):
        # All tokens are offered once: one of them is taken.
        assert trees.distinct_sibling_acceptance(p, q, len(q)).sum() == pytest.approx(1.0)


def test_siblings_with_replacement_by_brute_force() -> None:
    random = np.random.default_rng(3)
    p, q = random.dirichlet(np.ones(3)), random.dirichlet(np.ones(3))
    by_rank = np.zeros(3)
    for drawn in itertools.product(range(3), repeat=3):
        left, reached = p, float(np.prod(q[list(drawn)]))
        for rank, token_id in enumerate(drawn):
            accept = min(1.0, left[token_id] / q[token_id])
            by_rank[rank] += reached * accept
            reached *= 1.0 - accept
            left = corrected_distribution(left, q)
    assert trees.sibling_acceptance(p, q, 3) == pytest.approx(by_rank)


def test_a_tree_by_hand() -> None:
    """Two children, the first of which has two of its own."""
    parents = [-1, -1, 0, 0]
    assert trees.expected_tokens_tree(parents, [0.5, 0.2]) == pytest.approx(1 + 0.7 + 0.5 * 0.7)
    by_depth = [[0.5, 0.2], [0.8, 0.1]]
    assert trees.expected_tokens_tree(parents, by_depth) == pytest.approx(1 + 0.7 + 0.5 * 0.9)
    assert trees.expected_tokens_tree([], [0.5]) == 1.0
    assert trees.branching_parents([2, 2]) == (-1, -1, 0, 0, 1, 1)


def test_a_uniform_tree_by_its_branching() -> None:
    p, q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
    by_rank = trees.distinct_sibling_acceptance(p, q, 2)
    by_nodes = trees.expected_tokens_tree(trees.branching_parents([2, 2, 2]), by_rank)
    assert by_nodes == pytest.approx(trees.expected_tokens_branching(p, q, [2, 2, 2]))
