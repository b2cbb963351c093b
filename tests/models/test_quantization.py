"""How near the precisions of the CPU kernels come to float32 on torch."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from forerun.errors import CheckpointError
from forerun.models import model_from_tensors
from forerun.models.cpu import CpuModel
from forerun.models.sources import TensorSource
from tests.helpers.forwards import run
from tests.helpers.kernel_models import (
    PRECISIONS,
    SHAPES,
    architecture,
    model,
    needs_kernels,
    plain,
    weights,
)

pytestmark = needs_kernels
TEXT = [index * 11 % 31 for index in range(30)]
# Of the logits' own spread. Random layers amplify what rounding does to the ones below: these are
# about half as much again as the worst of the shapes has.
ERROR = {"fp32": 1e-5, "bf16": 0.05, "int8": 0.13, "int4": 0.8}
# Kullback-Leibler divergence of the next token's distribution, in nats, on average.
DIVERGENCE = {"fp32": 1e-6, "bf16": 2e-3, "int8": 0.015, "int4": 0.5}
# Factor of both where rounding may send a token to another expert.
ROUTED = 5.0


@cache
def exact(name: str) -> Tensor:
    """Logits [n, V] of our own decoder on torch in float64."""
    one = model_from_tensors(architecture(name).config, weights(name), dtype="fp64")
    logits: Tensor = run(one, one.new_cache(1, 32), [TEXT]).logits
    return logits[0].float()


def error(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).std() / wanted.std()).item()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_near(name: str, precision: str) -> None:
    found, wanted = plain(model(name, precision), TEXT)[0], exact(name)
    routed = ROUTED if architecture(name).num_experts else 1.0
    assert error(found, wanted) < routed * ERROR[precision]
    target, drawn = wanted.log_softmax(-1), found.log_softmax(-1)
    assert (target.exp() * (target - drawn)).sum(-1).mean() < routed * DIVERGENCE[precision]


@pytest.mark.parametrize("name", SHAPES)
def test_more_bits_are_nearer(name: str) -> None:
    errors = [error(plain(model(name, one), TEXT)[0], exact(name)) for one in PRECISIONS]
    assert errors[0] < errors[1] < errors[3]
    assert errors[2] < errors[3] / 2


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_every_group_is_near(name: str, group: int, precision: str) -> None:
    """Groups that fill a row, that end inside of it and that are longer than it."""
    found = plain(model(name, precision, group=group), TEXT)[0]
    assert error(found, exact(name)) < ERROR[precision] / 2


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_smaller_groups_are_nearer(precision: str) -> None:
    errors = {
        group: error(plain(model("qwen3", precision, group=group), TEXT)[0], exact("qwen3"))
        for group in (32, 128)
    }
    assert errors[32] < errors[128]


def test_the_default_groups() -> None:
    for precision, group in (("int8", 64), ("int4", 32)):
        default = plain(model("qwen3", precision), TEXT)[0]
        assert torch.equal(default, plain(model("qwen3", precision, group=group), TEXT)[0])
        assert not torch.equal(default, plain(model("qwen3", precision, group=128), TEXT)[0])


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_values_on_the_grid_are_exact(precision: str) -> None:
    """A tied embedding is read back from the quantized head: multiples of a scale come out whole."""
    key, step = "model.embed_tokens.weight", 2.0**-6
    steps = torch.randint(-7, 8, weights("qwen3")[key].shape)
    steps[:, ::32] = -127 if precision == "int8" else -8  # The extreme of every group.
    source = TensorSource({**weights("qwen3"), key: steps * step}, "grid")
    one = CpuModel(architecture("qwen3"), source, "int8" if precision == "int8" else "int4", "grid")
    found = plain(one, TEXT)[1][:, 0] / step
    # The head of an int4 model is int8, whose grid is finer than these steps.
    atol = 0.0 if precision == "int8" else 8 / 127
    torch.testing.assert_close(found, steps[TEXT].float(), rtol=0, atol=atol)


def test_memory_falls_with_the_bits() -> None:
    sizes = [model("qwen3", precision).weight_bytes for precision in PRECISIONS]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 1.9 * sizes[1] > 3 * sizes[2]


def test_a_shape_that_the_kernels_cannot_run() -> None:
    """A rotary embedding turns pairs."""
    odd = replace(architecture("llama"), head_dim=9)
    with pytest.raises(CheckpointError, match="head_dim"):
        CpuModel(odd, TensorSource({}, "odd"), "fp32", "odd")
