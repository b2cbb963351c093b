"""Calibration of what a head expects: it finds what was planted, and never reorders tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from forerun.training.acceptance import Chains, calibrate, errors

PLANTED = ((0.5, -1.0), (2.0, 0.5), (1.0, 0.0))


def chains(lines: tuple[tuple[float, float], ...], count: int = 6) -> list[Chains]:
    """Conversations whose tokens are accepted as their logits say, once these are corrected."""
    generator = torch.Generator().manual_seed(0)
    scales, biases = torch.tensor(lines).unbind(-1)
    made = []
    for _ in range(count):
        logits = torch.randn(400, len(lines), generator=generator) * 1.5
        shares = (logits * scales + biases).sigmoid()
        made.append(Chains(shares, torch.zeros(400), logits))
    return made


def test_what_was_planted_is_found() -> None:
    found = calibrate({"chat, T=0": chains(PLANTED)[:3], "maths, T=1": chains(PLANTED)[3:]})
    assert found is not None
    for line, planted in zip(found.lines, PLANTED, strict=True):
        assert line == pytest.approx(planted, abs=0.02)
    assert found.helps
    assert found.before[0] > 0.1
    assert max(found.after) < 0.01


def test_what_no_chain_comes_to_counts_for_nothing() -> None:
    """A chain ends with the first token that is rejected: the head may say anything of those after it."""

    def with_others(part: Chains) -> Chains:
        assert part.confidence is not None
        accepted = torch.cat((part.accepted, torch.tensor([0.0, 1.0, 0.0]).expand(200, -1)))
        logits = torch.cat((part.confidence, torch.tensor([-30.0, -30.0, 30.0]).expand(200, -1)))
        return Chains(accepted, torch.zeros(600), logits)

    found = calibrate({"": [with_others(part) for part in chains(PLANTED)]})
    assert found is not None
    assert found.lines[1] == pytest.approx(PLANTED[1], abs=0.02)
    assert found.lines[2] == pytest.approx(PLANTED[2], abs=0.02)


def test_a_head_that_is_right_is_left_as_it_is() -> None:
    found = calibrate({"": chains(((1.0, 0.0),))})
    assert found is not None
    assert found.before == (0.0,)
    assert not found.helps


def test_the_order_of_tokens_is_never_turned_round() -> None:
    found = calibrate({"": chains(((-1.0, 0.3),))})
    assert found is not None
    assert 0 <= found.lines[0][0] < 0.1


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_tokens_that_all_have_the_same_end(share: float) -> None:
    made = [Chains(torch.full((9, 1), share), torch.zeros(9), torch.zeros(9, 1)) for _ in range(2)]
    found = calibrate({"": made})
    assert found is not None
    assert found.before == (0.5,)
    assert found.after[0] < 0.02


def test_heads_that_expect_nothing_and_too_little_text() -> None:
    some = chains(PLANTED, 1)
    assert calibrate({}) is None
    assert calibrate({"": some}) is None
    assert calibrate({"": [Chains(part.accepted, part.contexts) for part in some * 2]}) is None


def test_errors_are_those_of_being_reached_and_accepted() -> None:
    """The first position is right in its group's mean; the second is expected 0.25 and never happens."""
    logits = torch.zeros(4, 2)
    accepted: Tensor = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert errors(logits, accepted) == (0.0, 0.25)
    # Groups are told apart: what is too high in one does not make up for what is too low in another.
    spread = torch.tensor([[-2.0], [-2.0], [2.0], [2.0]])
    assert errors(spread, 1 - accepted[:, 1:])[0] == pytest.approx(0.88, abs=0.01)
