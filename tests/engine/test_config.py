"""How to speculate: types are made right or refused, and what contradicts itself is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.engine import config as module
from forerun.engine.config import SpeculativeConfig
from forerun.errors import ConfigError, UnknownNameError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_speculative_tokens": 2.5}, "is 2.5; it must be an integer in [1, 64]"),
        ({"num_speculative_tokens": 65}, "[1, 64]"),
        ({"num_speculative_tokens": True}, "is True"),
        ({"num_speculative_tokens": 11, "policy": "adaptive"}, "[2, 10]"),
        ({"num_speculative_tokens": 1, "policy": "adaptive"}, "[2, 10]"),
        ({"policy": None}, "is None; it must be one of adaptive, fixed"),
        ({"rejection_sample_method": None}, "one of auto, block, coupled, standard, token"),
        ({"draft_sample_method": None}, "one of auto, greedy, probabilistic"),
        ({"draft_dtype": "fp31"}, "Did you mean 'fp32'?"),
        ({"draft_dtype": 16}, "one of auto, fp16, bf16, fp32, fp64"),
        ({"monitor": "no"}, "is 'no'; it must be True or False"),
        ({"method": 3}, "is 3; it must be one of cascade, draft_model"),
        ({"model": ""}, "not empty"),
        ({"model": 3}, "is 3; it must be text"),
        ({"revision": ""}, "not empty"),
        ({"prompt_lookup_min": 5}, "prompt_lookup_max 4"),
        ({"prompt_lookup_min": 0}, "[1, 2147483648]"),
    ],
    ids=str,
)
def test_wrong_values_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        SpeculativeConfig(**options)
    message = str(error.value)
    assert next(iter(options)) in message
    assert words in message
    assert "\n" not in message


def test_types_are_made_right() -> None:
    config = SpeculativeConfig(
        model=Path("a"),  # type: ignore[arg-type]
        num_speculative_tokens=np.int64(3),  # type: ignore[arg-type]
    )
    assert repr(config) == repr(SpeculativeConfig(model="a", num_speculative_tokens=3))


@pytest.mark.parametrize("length", [2, 10])
def test_limits_of_the_adaptive_policy_are_allowed(length: int) -> None:
    SpeculativeConfig(num_speculative_tokens=length, policy="adaptive")


def test_every_option_has_a_check() -> None:
    names = [field.name for field in dataclasses.fields(SpeculativeConfig)]
    assert list(module._checks()) == names


def test_unknown_options_get_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'policy'"):
        SpeculativeConfig.from_dict({"polcy": "fixed"})
