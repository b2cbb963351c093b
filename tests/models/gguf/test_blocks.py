"""Blocks of llama.cpp's formats as groups of the kernels: the same numbers in whatever holds them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from forerun.costs.precision import STORED_FORMATS
from forerun.models.gguf.blocks import Groups, codes_of, precision_of
from tests.helpers.gguf_files import EXACT, stored, values_of

WIDTHS = {"int4": 16, "int4_offset": 16, "int8": 256, "int8_offset": 256}


@pytest.mark.parametrize("kind", EXACT)
def test_the_numbers_are_those_of_the_file(kind: Kind) -> None:
    # Blocks of Q5_0 and IQ4_NL are held two and two, where the columns are a multiple of 64.
    values = np.random.default_rng(5).normal(size=(6, 96)).astype(np.float32)
    rows = stored(values, kind)
    groups = codes_of(rows, kind)
    assert isinstance(groups, Groups)
    assert groups.precision == precision_of(kind, 96)
    assert (groups.offsets is None) == (not groups.precision.endswith("_offset"))
    assert groups.codes.max() < WIDTHS[groups.precision]
    np.testing.assert_array_equal(groups.values(), gguf.dequantize(rows, kind))


@pytest.mark.parametrize(
    ("kind", "precision", "most"),
    [
        (Kind.Q3_K, "q6_k", 2.0),
        (Kind.Q4_K, "q4_k", 1.03),
        (Kind.Q5_K, "q5_k", 1.03),
        (Kind.Q6_K, "q6_k", 1.03),
        (Kind.Q5_0, "q5_0", 1.03),
        (Kind.IQ4_NL, "iq4_nl", 1.03),
        (Kind.IQ4_XS, "iq4_xs", 1.03),
    ],
)
def test_blocks_that_are_held_as_they_are(kind: Kind, precision: str, most: float) -> None:
    values = np.random.default_rng(5).normal(size=(6, 768)).astype(np.float32)
    rows = stored(values, kind).view(np.uint8)
    blocks = codes_of(rows, kind)
    assert blocks.precision == precision_of(kind, 768) == precision
    np.testing.assert_array_equal(values_of(blocks), gguf.dequantize(rows, kind))
    # Bytes on the kernels, beside those of the file.
    assert STORED_FORMATS[precision] * values.size <= most * rows.nbytes


def test_blocks_that_are_rounded() -> None:
    kind, most = Kind.Q2_K, 6e-3
    values = np.random.default_rng(5).normal(size=(64, 768)).astype(np.float32)
    rows = stored(values, kind).view(np.uint8)
    groups = codes_of(rows, kind)
    assert groups.precision == precision_of(kind, 768) == "int8"
    exact = gguf.dequantize(rows, kind)
    assert 0 < np.square(values_of(groups) - exact).mean() < most**2 * np.square(exact).mean()


def test_zeros_stay_zeros() -> None:
    values = np.zeros((2, 256), np.float32)
    for kind in (*EXACT, Kind.F16, Kind.F32):
        assert not values_of(codes_of(stored(values, kind).view(np.uint8), kind)).any()
