"""Chains and trees against the rules that ship, the closed forms and brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import Draft, Tree
from forerun.theory import acceptance
from forerun.theory.acceptance import acceptance_rate, corrected_distribution, end_probabilities
from forerun.theory.formulas import expected_tokens
from forerun.verification import token
from forerun.verification.decision import Decision
from forerun.verification.traversal import BlockRule
from tests.helpers.theory_strategies import row_pairs
from tests.helpers.tree_tokens import expected_tokens_branching, expected_tokens_tree


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
        1.0 + acceptance.token_rule_survival(p, q).sum(),
        1.0 + acceptance.block_rule_survival(p, q).sum(),
    )
    assert by_token == pytest.approx(enumerated_tokens(token.decide, p, q), abs=1e-12)
    assert by_block == pytest.approx(enumerated_tokens(BlockRule().decide, p, q), abs=1e-12)
    assert by_block > by_token + 1e-6


def test_the_example_of_block_verification() -> None:
    """Sun et al.: two coins, 10/9 tokens accepted by token, 11/9 by block, 12/9 being the bound."""
    p, q = np.array([[1 / 3, 2 / 3]] * 2), np.array([[2 / 3, 1 / 3]] * 2)
    assert acceptance.token_rule_survival(p, q).sum() == pytest.approx(10 / 9)
    assert acceptance.block_rule_survival(p, q).sum() == pytest.approx(11 / 9)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 4))
def test_block_accepts_more_than_token_and_less_than_the_overlap_of_whole_prefixes(
    seed: int, vocab_size: int, length: int
) -> None:
    p, q = prefix_rows(seed, vocab_size, length), prefix_rows(seed + 1, vocab_size, length)
    by_token, by_block = acceptance.token_rule_survival(p, q), acceptance.block_rule_survival(p, q)
    joint_p, joint_q, bound = np.ones(()), np.ones(()), []
    for target, draft in zip(p, q, strict=True):
        joint_p, joint_q = joint_p[..., None] * target, joint_q[..., None] * draft
        bound.append(np.minimum(joint_p, joint_q).sum())
    assert np.all(by_token <= by_block + 1e-12)
    assert np.all(by_block <= np.array(bound) + 1e-12)
    assert acceptance.block_rule_survival(p, p) == pytest.approx(np.ones(length))


@given(row_pairs(), st.integers(1, 5))
def test_rows_without_context_are_independent_acceptance(
    pair: tuple[np.ndarray, np.ndarray], length: int
) -> None:
    p, q = (np.tile(row, (length, 1)) for row in pair)
    alpha = acceptance_rate(*pair)
    tokens = 1.0 + acceptance.token_rule_survival(p, q).sum()
    assert tokens == pytest.approx(expected_tokens(alpha, length))
    branching = [1] * length
    for replacement in (True, False):
        tree = expected_tokens_branching(*pair, branching, replacement=replacement)
        assert tree == pytest.approx(expected_tokens(alpha, length))
    assert expected_tokens_tree(Tree.chain(length).parents, [float(alpha)]) == pytest.approx(
        expected_tokens(alpha, length)
    )


@given(row_pairs(largest=4), st.integers(1, 4))
def test_more_siblings_are_accepted_more_often(
    pair: tuple[np.ndarray, np.ndarray], count: int
) -> None:
    for siblings in (acceptance.sibling_acceptance, acceptance.distinct_sibling_acceptance):
        by_rank = siblings(*pair, count)
        assert by_rank[0] == pytest.approx(acceptance_rate(*pair))
        assert np.all(by_rank >= 0.0)
        assert by_rank.sum() <= 1.0 + 1e-12
        assert siblings(*pair, count + 1)[:count] == pytest.approx(by_rank)
    p, q = pair
    if np.all(q > 0):
        # All tokens are offered once: one of them is taken.
        assert acceptance.distinct_sibling_acceptance(p, q, len(q)).sum() == pytest.approx(1.0)


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
    assert acceptance.sibling_acceptance(p, q, 3) == pytest.approx(by_rank)


def test_a_tree_by_hand() -> None:
    """Two children, the first of which has two of its own."""
    parents = [-1, -1, 0, 0]
    assert expected_tokens_tree(parents, [0.5, 0.2]) == pytest.approx(1 + 0.7 + 0.5 * 0.7)
    by_depth = [[0.5, 0.2], [0.8, 0.1]]
    assert expected_tokens_tree(parents, by_depth) == pytest.approx(1 + 0.7 + 0.5 * 0.9)
    assert expected_tokens_tree([], [0.5]) == 1.0


def test_a_uniform_tree_by_its_branching() -> None:
    p, q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
    by_rank = acceptance.distinct_sibling_acceptance(p, q, 2)
    by_nodes = expected_tokens_tree(Tree.branching([2, 2, 2]).parents, by_rank)
    assert by_nodes == pytest.approx(expected_tokens_branching(p, q, [2, 2, 2]))
