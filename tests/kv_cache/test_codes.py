"""Keys and values as codes: how far off they are, and that the kernels store the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from forerun.core import Batch, View
from forerun.costs.precision import bytes_per_value, group_of
from forerun.errors import CacheError
from forerun.kv_cache import StaticCache
from forerun.kv_cache.codes import Codes, turn

CPU = torch.device("cpu")
STEPS = {"int8": 119, "int4": 7}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def stored(values: Tensor, kv_dtype: str, turned: bool = False) -> tuple[Codes, Tensor]:
    rows, heads, slots, size = values.shape
    codes = Codes((rows, heads, slots, size), kv_dtype, torch.float32, CPU, turned)
    codes[:, :, :] = values
    return codes, codes[:, :, :]


@pytest.mark.parametrize("kv_dtype", STEPS)
@pytest.mark.parametrize("size", [16, 48, 64, 96, 128, 256])
def test_each_number_is_within_half_a_step(kv_dtype: str, size: int) -> None:
    values = drawn(2, 3, 7, size)
    codes, found = stored(values, kv_dtype)
    largest = values.reshape(2, 3, 7, -1, codes.group).abs().amax(-1, keepdim=True)
    error = (found - values).abs().reshape(2, 3, 7, -1, codes.group)
    assert (error <= 0.51 * largest / STEPS[kv_dtype]).all()


def test_outliers_of_one_dimension_cost_the_others_little() -> None:
    values = drawn(1, 2, 50, 64)
    values[..., 5] *= 100
    others = [i for i in range(64) if i != 5]
    far, near = (
        (stored(values, "int8", turned)[1] - values)[..., others].norm() for turned in (False, True)
    )
    assert near < 0.6 * far


def test_turned_twice_is_what_was_there() -> None:
    values = drawn(3, 5, 64).double()
    for group in (16, 32, 64):
        assert torch.allclose(turn(turn(values, group), group) / group, values)
        products = turn(values[0], group) @ turn(values[1], group).T / group
        assert torch.allclose(products, values[0] @ values[1].T)


@pytest.mark.parametrize("kv_dtype", STEPS)
def test_extreme_numbers(kv_dtype: str) -> None:
    values = torch.zeros(1, 1, 6, 16)
    values[0, 0, 1, 3] = 3e38
    values[0, 0, 2] = 1e-40
    values[0, 0, 3, 2] = torch.inf
    values[0, 0, 4, 7] = torch.nan
    values[0, 0, 5] = torch.linspace(-1, 1, 16) * 1e-20
    _, found = stored(values, kv_dtype)
    assert (found[0, 0, [0, 2]] == 0).all()
    assert torch.isclose(found[0, 0, 1, 3], values[0, 0, 1, 3], rtol=0.05)
    assert found[0, 0, [3, 4]].isnan().all()
    assert torch.allclose(found[0, 0, 5], values[0, 0, 5], atol=0.1e-20 * 16 / STEPS[kv_dtype] * 8)


def test_upper_nibbles_are_nearly_int4() -> None:
    values = drawn(1, 4, 30, 64)
    codes, whole = stored(values, "int8")
    coarse = codes.read((slice(None),) * 3, coarse=True)
    largest = values.abs().amax(-1, keepdim=True)
    assert ((coarse - whole).abs() <= 8.1 * largest / 119).all()
    assert 5 < (coarse - values).norm() / (whole - values).norm() < 30


def test_sizes() -> None:
    assert [group_of(size) for size in (8, 16, 80, 96, 64, 256)] == [None, 16, 16, 32, 64, 64]
    shape = (2, 3, 10, 64)
    for kv_dtype in STEPS:
        codes = Codes(shape, kv_dtype, torch.float32, CPU)
        assert codes.nbytes == 2 * 3 * 10 * 64 * bytes_per_value(kv_dtype, 64, 4)
    assert bytes_per_value("int8", 64, 4, coarse=True) == bytes_per_value("int4", 64, 4)
    assert [bytes_per_value(name, 64, 8) for name in ("auto", "fp32", "bf16")] == [8, 4, 2]


@pytest.mark.parametrize("kv_dtype", ["auto", "fp32", "int4"])
def test_a_coarse_view_needs_int8(kv_dtype: str) -> None:
    cache = StaticCache(1, (1, 1, 8, 16), torch.float32, CPU, kv_dtype)
    batch = Batch([0], [[1]], [[0]], view=View(0, 4, coarse=True))
    with pytest.raises(CacheError, match=f"kv_dtype '{kv_dtype}', .* with kv_dtype 'int8'"):
        cache.append(batch, torch.zeros(1, 1, dtype=torch.int64), range(1))


@pytest.mark.parametrize("kv_dtype", STEPS)
def test_what_is_kept_moves_as_it_is(kv_dtype: str) -> None:
    cache = StaticCache(1, (1, 2, 16, 32), torch.float32, CPU, kv_dtype)
    batch = Batch([0], [list(range(9))], [range(9)])
    appending = cache.append(batch, torch.arange(9)[None], range(1))
    appending.write(0, drawn(1, 2, 9, 32), drawn(1, 2, 9, 32, seed=1))
    before = cache.keys[0][0, :, :9], cache.values[0][0, :, :9]
    cache.keep(0, 3, [1, 4])
    after = cache.keys[0][0, :, :5], cache.values[0][0, :, :5]
    for was, is_now in zip(before, after, strict=True):
        assert torch.equal(is_now, was[:, [0, 1, 2, 4, 7]])
