"""Blocks of llama.cpp's formats as groups of the kernels: the same numbers in whatever holds them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from forerun.models.gguf.blocks import groups_of, precision_of
from tests.helpers.gguf_files import EXACT, stored

HOLD = {
    "int4": ("int4", "int4_offset", "int8", "int8_offset"),
    "int4_offset": ("int4_offset", "int8_offset"),
    "int8": ("int8", "int8_offset"),
    "int8_offset": ("int8_offset",),
}
WIDTHS = {"int4": 16, "int4_offset": 16, "int8": 256, "int8_offset": 256}
CASES = [(kind, wider) for kind in EXACT for wider in HOLD[precision_of(kind)]]


@pytest.mark.parametrize(("kind", "precision"), CASES)
def test_the_numbers_are_those_of_the_file(kind: Kind, precision: str) -> None:
    values = np.random.default_rng(5).normal(size=(6, 256)).astype(np.float32)
    rows = stored(values, kind)
    groups = groups_of(rows, kind).held_in(precision)
    assert groups.precision == precision
    assert (groups.offsets is None) == (not precision.endswith("_offset"))
    assert groups.codes.max() < WIDTHS[precision]
    np.testing.assert_array_equal(groups.values(), gguf.dequantize(rows, kind))


def test_zeros_stay_zeros() -> None:
    values = np.zeros((2, 256), np.float32)
    for kind in (*EXACT, Kind.F16, Kind.F32):
        assert not groups_of(stored(values, kind).view(np.uint8), kind).values().any()
