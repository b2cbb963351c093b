"""Blocks of llama.cpp's formats as groups of the kernels: the same numbers in whatever holds them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from forerun.costs.precision import STORED_FORMATS
from forerun.models.gguf.blocks import groups_of, precision_of, super_blocks_of
from tests.helpers.gguf_files import EXACT, stored

HOLD = {
    "int4": ("int4", "int4_offset", "int8", "int8_offset"),
    "int4_offset": ("int4_offset", "int8_offset"),
    "int8": ("int8", "int8_offset"),
    "int8_offset": ("int8_offset",),
    "q5_0": ("int8", "int8_offset"),
}
WIDTHS = {"int4": 16, "int4_offset": 16, "int8": 256, "int8_offset": 256}
CASES = [(kind, wider) for kind in EXACT for wider in HOLD[precision_of(kind, 256)]]


@pytest.mark.parametrize(("kind", "precision"), CASES)
def test_the_numbers_are_those_of_the_file(kind: Kind, precision: str) -> None:
    values = np.random.default_rng(5).normal(size=(6, 256)).astype(np.float32)
    rows = stored(values, kind)
    groups = groups_of(rows, kind).held_in(precision)
    assert groups.precision == precision
    assert (groups.offsets is None) == (not precision.endswith("_offset"))
    assert groups.codes.max() < WIDTHS[precision]
    np.testing.assert_array_equal(groups.values(), gguf.dequantize(rows, kind))


@pytest.mark.parametrize(
    ("kind", "precision"),
    [(Kind.Q4_K, "q4_k"), (Kind.Q5_K, "q5_k"), (Kind.Q6_K, "q6_k"), (Kind.Q5_0, "q5_0")],
)
def test_blocks_that_are_held_as_they_are(kind: Kind, precision: str) -> None:
    values = np.random.default_rng(5).normal(size=(6, 768)).astype(np.float32)
    rows = stored(values, kind).view(np.uint8)
    blocks = super_blocks_of(rows, kind)
    assert blocks.precision == precision_of(kind, 768) == precision
    np.testing.assert_array_equal(blocks.values(), gguf.dequantize(rows, kind))
    # Bytes on the kernels, beside those of the file.
    assert STORED_FORMATS[precision] * values.size <= 1.03 * rows.nbytes


def test_blocks_of_32_are_held_two_and_two() -> None:
    assert precision_of(Kind.Q5_0, 96) == "int8"


def test_zeros_stay_zeros() -> None:
    values = np.zeros((2, 256), np.float32)
    for kind in (*EXACT, Kind.F16, Kind.F32):
        assert not groups_of(stored(values, kind).view(np.uint8), kind).values().any()
