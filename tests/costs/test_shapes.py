"""Published models and devices: their sizes, and unknown names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.costs.hardware import HARDWARE, Hardware, find_hardware
from forerun.costs.shapes import SHAPES, ModelShape, find_shape, of_size
from forerun.errors import ConfigError, UnknownNameError

# Billions, as the model cards and papers print them: all, and those that one token uses.
PUBLISHED = {
    "llama-2-7b": (6.74, None),
    "llama-2-13b": (13.02, None),
    "llama-2-70b": (68.98, None),
    "llama-3.2-1b": (1.23, None),
    "llama-3.2-3b": (3.21, None),
    "llama-3.1-8b": (8.03, None),
    "llama-3.1-70b": (70.6, None),
    "llama-3.1-405b": (405.9, None),
    "mistral-7b": (7.24, None),
    "mixtral-8x7b": (46.7, 12.9),
    "mixtral-8x22b": (141, 39),
    "qwen3-0.6b": (0.6, None),
    "qwen3-1.7b": (1.72, None),
    "qwen3-4b": (4.0, None),
    "qwen3-8b": (8.2, None),
    "qwen3-14b": (14.8, None),
    "qwen3-32b": (32.8, None),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-235b-a22b": (235, 22),
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    total, active = PUBLISHED[name]
    shape = SHAPES[name]
    assert shape.parameters / 1e9 == pytest.approx(total, rel=0.01)
    if active is not None:
        # Cards differ in whether the embedding counts as active; it is at most a tenth here.
        embedding = shape.vocab_size * shape.hidden_size / 1e9
        low = shape.active_parameters / 1e9
        assert 0.98 * low <= active <= 1.02 * (low + embedding)


@given(st.floats(1e6, 1e13))
def test_a_typical_model_has_the_parameters_asked_for(count: float) -> None:
    shape = of_size(count)
    assert shape.parameters == pytest.approx(count, rel=0.01)
    assert shape.active_parameters == shape.parameters


@pytest.mark.parametrize(("text", "count"), [("70B", 70e9), ("1.5b", 1.5e9), ("350M", 3.5e8)])
def test_counts_are_read_with_their_units(text: str, count: float) -> None:
    assert find_shape(text).parameters == pytest.approx(count, rel=0.01)


def test_a_typical_model_is_built_like_the_known_ones() -> None:
    for name in ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "qwen3-8b", "qwen3-32b"):
        known = SHAPES[name]
        typical = of_size(known.parameters)
        for member in ("num_layers", "hidden_size", "cache_values_per_token"):
            ratio = getattr(typical, member) / getattr(known, member)
            assert 0.6 < ratio < 1.8, (name, member)


def test_names_are_found_as_hub_ids_too() -> None:
    assert find_shape("meta-llama/Llama-3.1-8B") is SHAPES["llama-3.1-8b"]
    assert find_hardware("H100") is HARDWARE["h100"]


@pytest.mark.parametrize("name", sorted(HARDWARE))
def test_devices_are_faster_with_smaller_numbers(name: str) -> None:
    device = HARDWARE[name]
    peaks = [peak for peak in (device.fp32, device.fp16, device.fp8) if peak is not None]
    assert peaks == sorted(peaks)
    # Decoding one sequence has an intensity of one: all of them wait for their memory then.
    assert device.fp16 / device.bandwidth > 10
    assert device.capacity is not None
    assert 10e9 < device.capacity < 1e12


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: Hardware("x", 0, 1e12), "bandwidth is 0"),
    (lambda: Hardware("x", 1e9, -1e12), "fp16 is -1"),
    (lambda: Hardware("x", 1e9, float("nan")), "fp16 is nan"),
    (lambda: Hardware("x", float("inf"), 1e12), "bandwidth is inf"),
    (lambda: Hardware("x", 1e9, 1e12, capacity=0), "capacity is 0"),
    (lambda: ModelShape(0, 8, 1, 1, 8, 8, 8), "num_layers is 0"),
    (lambda: ModelShape(1, -8, 1, 1, 8, 8, 8), "hidden_size is -8"),
    (lambda: ModelShape(1, 8, 3, 2, 8, 8, 8), "multiple"),
    (lambda: ModelShape(1, 8, 1, 1, 8, 8, 8, num_experts=4), "experts_per_token is 0"),
    (lambda: ModelShape(1, 8, 1, 1, 8, 8, 8, experts_per_token=1), "experts_per_token is 1"),
    (lambda: of_size(12), "12 parameters"),
    (lambda: find_shape("0B"), "0 parameters"),
]


@pytest.mark.parametrize(("wrong", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_input_is_refused(wrong: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        wrong()
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("find", "name", "suggestion"),
    [
        (find_hardware, "a100-80gb", "a100"),
        (find_shape, "llama-3.1-7b", "llama-3.1-70b"),
    ],
)
def test_unknown_names_list_the_known_ones(
    find: Callable[[str], Any], name: str, suggestion: str
) -> None:
    with pytest.raises(UnknownNameError, match="Known: ") as refusal:
        find(name)
    assert f"Did you mean {suggestion!r}?" in str(refusal.value)
