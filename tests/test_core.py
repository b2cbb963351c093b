"""Drafts and verdicts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forerun
from forerun.core import NO_DRAFT, Draft, Origin, Tree, Verdict
from forerun.errors import ConfigError


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    count = draw(st.integers(0, 8))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(count))
    return Draft(Tree(parents), tuple(draw(st.integers(0, 5)) for _ in range(count)))


@given(drafts())
def test_attention_sees_exactly_the_ancestors(draft: Draft) -> None:
    for node in range(len(draft)):
        assert draft.tree.mask[node].nonzero()[0].tolist() == draft.tree.path_to(node)
    for node in range(-1, len(draft)):
        seen = [column - 1 for column in draft.tree.rooted.mask[node + 1].nonzero()[0].tolist()]
        assert seen == [-1, *draft.tree.path_to(node)]


@given(drafts())
def test_depths_count_ancestors(draft: Draft) -> None:
    assert list(draft.tree.depths) == [
        len(draft.tree.path_to(node)) - 1 for node in range(len(draft))
    ]
    assert draft.tree.depth == max(
        (len(draft.tree.path_to(n)) for n in range(len(draft))), default=0
    )
    assert draft.tree.leaves == [n for n in range(len(draft)) if n not in draft.tree.parents]


@given(drafts(), st.data())
def test_truncation_keeps_all_emitted_tokens_but_the_newest_in_the_path(
    draft: Draft, data: st.DataObject
) -> None:
    end = data.draw(st.integers(-1, len(draft) - 1))
    verdict = Verdict.of(draft, end, 3)
    count = data.draw(st.integers(1, len(verdict.token_ids)))
    cut = verdict.truncate(count)
    assert cut.token_ids == verdict.token_ids[:count]
    assert len(cut.path) == len(cut.origins) - 1 == count - 1
    assert cut.path == verdict.path[: count - 1]


def test_origins_tell_rejection_from_a_spent_draft() -> None:
    chain = Draft.chain([4, 5])
    assert Verdict.of(chain, 0, 9).origins == (Origin.ACCEPTED, Origin.RECOVERED)
    assert Verdict.of(chain, 1, 9).origins[-1] is Origin.BONUS
    assert Verdict.of(NO_DRAFT, -1, 9).origins == (Origin.PLAIN,)


def test_parents_come_first() -> None:
    for parents in ((1, -1), (0,), (-2,)):
        with pytest.raises(ConfigError, match="earlier node"):
            Tree(parents)


def test_every_public_name_can_be_imported() -> None:
    for name in forerun.__all__:
        assert getattr(forerun, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = forerun.nothing
