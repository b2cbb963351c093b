"""An explanation is the decision that ships: replaying its records gives the verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from forerun.core import Draft, Request, SparseProbs, Tree, Verdict
from forerun.params import SamplingParams
from forerun.randomness import Key, Purpose, Randomness
from forerun.verification import TargetRows, make_rule
from forerun.verification.explain import Explanation, NodeRecord, explain
from tests.helpers.covering import covering
from tests.helpers.random_drafts import KINDS, cases

TYPICAL = {
    "typical chains": ("typical", False, True),
    "typical trees": ("typical", True, False),
}
BLOCK = {"blocks": ("block", False, True)}
ALL = KINDS | TYPICAL | BLOCK
# By the records alone.
TOP_DOWN = ("token", "coupled", "typical")


@pytest.fixture(autouse=True)
def _kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.helpers.random_drafts.KINDS", ALL)


def explained(
    name: str, draft: Draft, logits: torch.Tensor, request: Request
) -> tuple[Explanation, Verdict]:
    rule, randomness = make_rule(name), Randomness()
    rows = TargetRows(logits[None], [draft], [request])
    [verdict] = rule.verify([draft], rows, [request], randomness)
    explanation = explain(rule, rows, 0, randomness)
    assert explanation is not None
    assert len(explanation.nodes) == len(draft)
    return explanation, verdict


def replayed(rule: str, tree: Tree, nodes: tuple[NodeRecord, ...], tests: tuple[int, ...]) -> int:
    """Where the path ends, by the records alone."""
    if rule == "typical":
        ends = [-1]
        for node in range(len(tree)):
            if all(nodes[step].passed for step in tree.path_to(node)):
                ends.append(node)
        return max(ends, key=lambda node: len(tree.path_to(node)))
    passed = [node for node in tests if nodes[node].passed]
    if rule in ("token", "coupled"):
        assert [tree.parents[node] for node in passed] == [-1, *passed][: len(passed)]
    else:
        assert len(passed) < 2
        # From the leaves up: what passes is tested last.
        assert passed in ([], list(tests[-1:]))
    return passed[-1] if passed else -1


@pytest.mark.parametrize(("kind", "vocab_size"), covering(ALL, [2, 30, 500]))
def test_replaying_the_records_gives_the_verdict(form: str, kind: str, vocab_size: int) -> None:
    depths = set()
    for rule, draft, logits, request in cases(kind, vocab_size, torch.float32, 14):
        explanation, verdict = explained(rule, draft, logits, request)
        end = replayed(rule, draft.tree, explanation.nodes, explanation.tests)
        assert explanation.end == end
        assert Verdict.of(draft, end, explanation.token_id or 0) == verdict
        for node in explanation.nodes:
            if node.uniform is not None:
                assert node.accept is not None
                assert node.passed == (node.uniform < node.accept)
        depths.add(len(verdict.path))
    assert {0, 1, 2} <= depths


@pytest.mark.parametrize("kind", ["drawn trees", "traversed trees", "blocks"])
def test_uniforms_are_the_very_ones(form: str, kind: str) -> None:
    """Those that the rule itself draws, neither more nor fewer."""
    for rule, draft, logits, request in cases(kind, 30, torch.float32, 14):
        keys: list[Key] = []
        recording = Randomness(keys.append)
        rows = TargetRows(logits[None], [draft], [request])
        make_rule(rule).verify([draft], rows, [request], recording)
        explanation = explain(make_rule(rule), rows, 0, Randomness())
        assert explanation is not None
        tested = [key for key in keys if key.purpose is Purpose.ACCEPT]
        assert [key.node for key in tested] == list(explanation.tests)
        for key in tested:
            assert explanation.nodes[key.node].uniform == Randomness().uniform(*key)
        [emitted] = [key for key in keys if key.purpose is Purpose.EMIT]
        assert explanation.uniform == Randomness().uniform(*emitted)


@pytest.mark.parametrize("kind", ["drawn trees", "trees of point masses", "drawn chains"])
def test_the_token_rule_accepts_with_the_ratio(form: str, kind: str) -> None:
    """Also siblings, each against what the ones before have left."""
    siblings = 0
    for rule, draft, logits, request in cases(kind, 30, torch.float64, 21):
        explanation, _ = explained(rule, draft, logits, request)
        for test in explanation.tests:
            node = explanation.nodes[test]
            assert node.accept == pytest.approx(node.ratio, abs=1e-12)
            assert (node.draft_prob == 1.0) or draft.probs is not None
            siblings += draft.tree.ranks[test] > 0
    assert siblings or kind == "drawn chains"


def test_on_a_chain_p_and_q_are_those_of_the_rows(form: str) -> None:
    for rule, draft, logits, request in cases("blocks", 30, torch.float64, 14):
        explanation, _ = explained(rule, draft, logits, request)
        probs = TargetRows(logits[None], [draft], [request]).probs(0)
        assert draft.probs is not None or not len(draft)
        for index, (token, node) in enumerate(zip(draft.token_ids, explanation.nodes, strict=True)):
            assert isinstance(draft.probs, torch.Tensor)
            assert node.target_prob == probs[index, token].item()
            assert node.draft_prob == draft.probs[index, token].item()
            expected = min(1.0, node.target_prob / node.draft_prob)
            assert node.ratio == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", ["drawn chains", "drawn trees", "traversed trees"])
def test_a_residual_is_what_is_emitted_after_a_rejection(form: str, kind: str) -> None:
    seen = 0
    for rule, draft, logits, request in cases(kind, 30, torch.float64, 21):
        explanation, _ = explained(rule, draft, logits, request)
        below = draft.tree.children(explanation.end)
        tested = [node for node in explanation.tests if explanation.nodes[node].passed is False]
        assert all(explanation.nodes[node].residual for node in tested)
        if below:
            assert explanation.nodes[below[-1]].residual == explanation.emit
            seen += 1
    assert seen > 20


def test_sparse_rows_are_explained_as_dense_ones(form: str) -> None:
    for rule, draft, logits, request in cases("drawn trees", 30, torch.float32, 14):
        if draft.probs is None:
            continue
        assert isinstance(draft.probs, torch.Tensor)
        ids = torch.arange(30).expand(len(draft), 30)
        sparse = replace(draft, probs=SparseProbs(ids, draft.probs))
        explanations = [explained(rule, one, logits, request)[0] for one in (draft, sparse)]
        for dense, other in zip(*(one.nodes for one in explanations), strict=True):
            # The kernels take dense rows alone.
            assert dense.target_prob == pytest.approx(other.target_prob, abs=1e-6)
            assert (dense.draft_prob, dense.uniform) == (other.draft_prob, other.uniform)
            assert dense.passed == other.passed


def test_typical_shows_its_threshold(form: str) -> None:
    draft = Draft.chain([1, 0])
    logits = torch.tensor([[0.6, 0.3, 0.1], [0.01, 0.01, 0.98], [0.4, 0.3, 0.3]]).log()
    request = Request(0, [1], 1, SamplingParams(), seed=3)
    explanation, verdict = explained("typical", draft, logits, request)
    assert [node.passed for node in explanation.nodes] == [True, False]
    assert explanation.nodes[0].threshold == pytest.approx(0.09)
    assert verdict.path == (0,)


def test_a_row_that_fails_has_no_last_token(form: str) -> None:
    logits = torch.zeros(2, 5)
    logits[0, 1] = torch.nan
    request = Request(0, [1], 1, SamplingParams(seed=1), seed=1)
    for rule in ("token", "coupled"):
        explanation, verdict = explained(rule, Draft.chain([2]), logits, request)
        assert verdict.error is not None
        assert explanation.token_id is None


def test_a_rule_of_another_package_has_no_explanation() -> None:
    class Other:
        name = "other"

    rows = TargetRows(
        torch.zeros(1, 1, 5), [Draft.chain([])], [Request(0, [1], 1, SamplingParams(), 1)]
    )
    assert explain(Other(), rows, 0, Randomness()) is None  # type: ignore[arg-type]
