"""Explanations of a rule's verdict: the probabilities, uniform and residual of every drafted token.

Nothing is recorded while a round runs. Random numbers are functions of their keys, so a rule's
tests can be repeated from its draft, its rows and its request: the decision and the uniforms are
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from forerun.contracts import Verifier
from forerun.core import Draft, Request, SparseProbs, Tree
from forerun.randomness import Purpose, Randomness
from forerun.sampling import draw, draw_coupled
from forerun.verification import typical
from forerun.verification.coupled import CoupledRule
from forerun.verification.decision import Decision, DecisionRule, acceptance
from forerun.verification.target_rows import TargetRows

# Number of tokens of a row that an explanation names, the most likely first.
_TOP = 3

Top = tuple[tuple[int, float], ...]
"""Tokens and their probabilities, best first."""


@dataclass(frozen=True)
class NodeRecord:
    """A rule's test of one drafted token.

    Args:
        token_id: the token.
        target_prob: its probability in the target's row; for a tested token, in the residual that
            its earlier siblings left of that row.
        draft_prob: its probability in the row that it was drawn from; 1 for a point mass.
        ratio: min(1, target_prob / draft_prob), the probability with which the token rule's test
            passes.
        accept: the probability with which this rule's test passes; None for rules without tests.
        uniform: the number drawn for the test, which passes below `accept`; None if the test was
            not reached.
        threshold: probability above which the typical rule accepts; None for other rules.
        drawn: the token that the target drew in its place; only for the coupled rule, on the path.
        passed: the outcome; None if it was not tested.
        residual: the best tokens of the target's residual after this one is rejected; empty if it
            was not rejected, and for rules that reject without a residual.
    """

    token_id: int
    target_prob: float
    draft_prob: float
    ratio: float
    accept: float | None = None
    uniform: float | None = None
    threshold: float | None = None
    drawn: int | None = None
    passed: bool | None = None
    residual: Top = ()


@dataclass(frozen=True)
class Explanation:
    """Explanation of one verdict, before it is cut at the end of the output.

    Args:
        rule: name of the rule.
        nodes: one record per drafted token.
        tests: the nodes that were tested, in that order.
        end: the node at which the path ends; -1 for the committed text.
        emit: the best tokens of the row that the last token was drawn from.
        uniform: the uniform that it was drawn with; None if it was drawn by noise or not at all.
        token_id: the last token; None if the path ends with a stop token or a row that fails.
    """

    rule: str
    nodes: tuple[NodeRecord, ...]
    tests: tuple[int, ...]
    end: int
    emit: Top
    uniform: float | None
    token_id: int | None


def explain(
    rule: Verifier, rows: TargetRows, index: int, randomness: Randomness
) -> Explanation | None:
    """Explain a rule's verdict on the draft of one request; None for a rule that is not forerun's own.

    Args:
        rule: the rule.
        rows: rows of the round, with its drafts and requests.
        index: index of the request.
        randomness: the engine's.
    """
    if isinstance(rule, CoupledRule):
        return _coupled(rule, rows, index, randomness)
    if isinstance(rule, DecisionRule):
        return _decided(rule, rows, index, randomness)
    return None


def _decided(
    rule: DecisionRule, rows: TargetRows, index: int, randomness: Randomness
) -> Explanation:
    draft, request = rows.drafts[index], rows.requests[index]
    probs, failed = rows.unchecked(index)
    decision = rule.decide(draft, probs)
    accept: list[float] = decision.accept.tolist()
    uniforms: dict[int, float] = {}

    def uniform(test: int) -> float:
        uniforms[test] = randomness.uniform(*_key(request), Purpose.ACCEPT, test)
        return uniforms[test]

    end = decision.end(accept, uniform)
    left = _Left(rule, draft, probs, decision)
    nodes = _records(
        draft, lambda node: left.before(node) if node in uniforms else left.whole(node)
    )
    if isinstance(rule, typical.TypicalRule):
        nodes = _typical(nodes, typical.thresholds(draft, probs).tolist())
    else:
        nodes = [replace(node, accept=accept[number]) for number, node in enumerate(nodes)]
        for test, number in uniforms.items():
            passed = number < accept[test]
            residual = () if passed else _top(left.after(test))
            nodes[test] = replace(nodes[test], uniform=number, passed=passed, residual=residual)
    row = decision.emit[end + 1 : end + 2]
    drawn_at = randomness.uniform(*_key(request), Purpose.EMIT)
    failing = any(failed[node + 1] for node in (-1, *draft.tree.path_to(end)))
    token = None if failing else draw(row, [drawn_at])[0]
    return Explanation(rule.name, tuple(nodes), tuple(uniforms), end, _top(row[0]), drawn_at, token)


def _coupled(
    rule: CoupledRule, rows: TargetRows, index: int, randomness: Randomness
) -> Explanation:
    draft, request = rows.drafts[index], rows.requests[index]
    probs, failed = rows.unchecked(index)
    nodes = _records(draft, lambda node: probs[draft.tree.parents[node] + 1])
    tests: list[int] = []
    end, token = -1, None
    while not failed[end + 1]:
        row, prefix = probs[end + 1 : end + 2], rows.prefix(index, end)
        [token] = draw_coupled(row, [prefix], randomness)
        below = draft.tree.children(end)
        accepted = next((child for child in below if draft.token_ids[child] == token), None)
        for child in below:
            nodes[child] = replace(nodes[child], drawn=token, passed=child == accepted)
        tests += below
        if accepted is None:
            break
        end = accepted
        if token in request.stop_token_ids:
            token = None
            break
    else:
        token = None
    return Explanation(
        rule.name, tuple(nodes), tuple(tests), end, _top(probs[end + 1]), None, token
    )


class _Left:
    """Residuals of the target's rows before and after the rejection of each child of a node."""

    def __init__(self, rule: DecisionRule, draft: Draft, probs: Tensor, decision: Decision) -> None:
        self._rule, self._draft, self._probs, self._decision = rule, draft, probs, decision
        self._rows: dict[int, Tensor] = {}

    def whole(self, node: int) -> Tensor:
        """The target's row for a node, [V]."""
        return self._probs[self._draft.tree.parents[node] + 1]

    def before(self, node: int) -> Tensor:
        """The row that a node is tested against, [V]."""
        tree = self._draft.tree
        rank = tree.ranks[node]
        siblings = tree.children(tree.parents[node])
        return self.after(siblings[rank - 1]) if rank else self.whole(node)

    def after(self, node: int) -> Tensor:
        """The row after a node was rejected, [V], from which its parent would emit without more children."""
        if node not in self._rows:
            parent = self._draft.tree.parents[node]
            if node not in self._draft.tree.next_sibling:
                self._rows[node] = self._decision.emit[parent + 1]
            else:
                kept = _without_later_siblings(self._draft.tree, node)
                decision = self._rule.decide(
                    _part(self._draft, kept), self._probs[[0, *(other + 1 for other in kept)]]
                )
                at = kept.index(parent) if parent >= 0 else -1
                self._rows[node] = decision.emit[at + 1]
        return self._rows[node]


def _without_later_siblings(tree: Tree, node: int) -> list[int]:
    """The nodes that the test of `node` depends on: those on its path, each with its earlier siblings."""
    kept = []
    for step in tree.path_to(node):
        kept += list(tree.children(tree.parents[step]))[: tree.ranks[step] + 1]
    return sorted(kept)


def _part(draft: Draft, kept: list[int]) -> Draft:
    """The part of a draft with some of its nodes, each of which has its parent among them."""
    moved = {node: place for place, node in enumerate(kept)} | {-1: -1}
    tree = Tree(tuple(moved[draft.tree.parents[node]] for node in kept))
    probs = draft.probs
    if isinstance(probs, SparseProbs):
        probs = SparseProbs(probs.token_ids[kept], probs.values[kept])
    elif probs is not None:
        probs = probs[kept]
    return Draft(tree, tuple(draft.token_ids[node] for node in kept), probs)


def _records(draft: Draft, row_before: Callable[[int], Tensor]) -> list[NodeRecord]:
    """A record of an untested token for each node."""
    records = []
    for node, token in enumerate(draft.token_ids):
        p = row_before(node)[token]
        q = _draft_prob(draft, node, p)
        ratio = float(acceptance(p, q).clamp(0.0, 1.0))
        records.append(NodeRecord(token, float(p), float(q), ratio))
    return records


def _draft_prob(draft: Draft, node: int, like: Tensor) -> Tensor:
    token = draft.token_ids[node]
    if draft.probs is None:
        return torch.ones_like(like)
    if isinstance(draft.probs, SparseProbs):
        here = draft.probs.token_ids[node] == token
        return draft.probs.values[node][here].sum().to(like)
    return draft.probs[node, token].to(like)


def _typical(nodes: list[NodeRecord], thresholds: list[float]) -> list[NodeRecord]:
    return [
        replace(node, threshold=enough, passed=node.target_prob > enough)
        for node, enough in zip(nodes, thresholds, strict=True)
    ]


def _top(row: Tensor) -> Top:
    best = row.topk(min(_TOP, len(row)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple((token, value) for token, value in pairs if value > 0)


def _key(request: Request) -> tuple[int, int]:
    return request.seed, len(request)
