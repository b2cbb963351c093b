"""The exit adapter on the kernels: the same for a token whatever stands beside it."""

from __future__ import annotations

import pytest
import torch
from kernel_models import LEVELS, PRECISIONS, needs_kernels
from torch import Tensor

from forerun.drafters.exit_adapter import NORM_EPS, adapt
from forerun.models.cpu import GatedMlp

pytestmark = needs_kernels
# Sizes that fit no block, line or group.
HIDDEN, INNER, TOKENS = 75, 50, 20
NEAR = {"fp32": 1e-4, "bf16": 0.03, "int8": 0.06, "int4": 0.6}


def weights(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    matrices = [some(INNER, HIDDEN), some(INNER, HIDDEN), some(HIDDEN, INNER)]
    return [some(HIDDEN) + 1, *(matrix / matrix.shape[1] ** 0.5 for matrix in matrices)]


def states() -> Tensor:
    return torch.randn(2, TOKENS // 2, HIDDEN, generator=torch.Generator().manual_seed(1)) * 5


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("level", LEVELS)
def test_it_computes_what_was_trained(precision: str, level: str) -> None:
    norm, gate, up, down = weights()
    found = GatedMlp(norm, gate, up, down, NORM_EPS, precision, level)(states())
    wanted = adapt(states(), norm, gate, up, down)
    error = (found - wanted).abs().max() / (wanted - states()).abs().max()
    assert error < NEAR[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_token_does_not_depend_on_others_nor_on_the_level(precision: str) -> None:
    made = [GatedMlp(*weights(), NORM_EPS, precision, level) for level in LEVELS]
    together = made[0](states())
    for one in made:
        assert torch.equal(one(states()), together)
        assert torch.equal(one(states()[1:, 3:7]), together[1:, 3:7])
        assert torch.equal(one(states()[0, 2]), together[0, 2])


def test_what_does_not_fit_is_refused() -> None:
    norm, gate, up, down = weights()
    for broken in (
        (norm[1:], gate, up, down),
        (norm, gate, up[1:], down),
        (norm, gate, up, down.T),
    ):
        with pytest.raises(ValueError, match="has a shape that does not fit"):
            GatedMlp(*broken, NORM_EPS, "fp32")
    with pytest.raises(ValueError, match="has a shape that does not fit"):
        GatedMlp(norm, gate, up, down, NORM_EPS, "fp32")(torch.zeros(1, HIDDEN + 1))
    for index in range(4):
        spoiled = weights()
        spoiled[index].flatten()[3] = torch.nan
        with pytest.raises(ValueError, match=r"finite|number"):
            GatedMlp(*spoiled, NORM_EPS, "bf16")
