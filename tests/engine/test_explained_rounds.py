"""Rounds that are explained: the decision that the engine took, and no change to it."""

from __future__ import annotations

import pytest

from forerun.core import Draft, Request, Tree, Verdict
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.verification.explain import Explanation
from tests.matrix import DRAFT, TARGET

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8]]
DRAWN = SamplingParams(temperature=0.9, max_tokens=24)
SHAPE = Tree.branching((3, 2, 1))


def make(rule: str, tree: Tree | None) -> Engine:
    config = SpeculativeConfig(policy="fixed", rejection_sample_method=rule, tree=tree)
    one = Engine(TARGET, DraftModelDrafter(DRAFT, 3, 512), config, max_batch_size=3)
    seeds = iter(range(1000))
    one.use_seeds(lambda: next(seeds))
    return one


@pytest.mark.parametrize(
    ("rule", "tree"),
    [
        ("token", None),
        ("token", SHAPE),
        ("block", None),
        ("traversal", SHAPE),
        ("coupled", None),
        ("coupled", SHAPE),
        ("typical", None),
    ],
)
def test_every_round_is_explained(form: str, rule: str, tree: Tree | None) -> None:
    one, seen = make(rule, tree), list[tuple[Draft, Verdict]]()

    def see(_: Request, draft: Draft, verdict: Verdict, why: Explanation | None) -> None:
        assert why is not None
        assert len(why.nodes) == len(draft)
        path = draft.tree.path_to(why.end)
        tokens = [draft.token_ids[node] for node in path]
        if why.token_id is not None:
            tokens.append(why.token_id)
        # A verdict is cut where the output ends.
        assert tuple(tokens[: len(verdict.token_ids)]) == verdict.token_ids
        seen.append((draft, verdict))

    expected = make(rule, tree).generate(PROMPTS, DRAWN)
    one.explain_rounds(see)
    completions = one.generate(PROMPTS, DRAWN)
    assert [c.token_ids for c in completions] == [c.token_ids for c in expected]
    assert any(len(verdict.path) > 1 for _, verdict in seen)
    assert any(len(draft) for draft, _ in seen)


def test_nothing_is_explained_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("not asked for")

    monkeypatch.setattr("forerun.engine.round.explain", refuse)
    one = make("auto", None)
    one.watch_rounds(lambda *_: None)
    one.generate(PROMPTS, DRAWN)
    one.explain_rounds(lambda *_: None)
    with pytest.raises(AssertionError, match="not asked for"):
        one.generate(PROMPTS, DRAWN)
