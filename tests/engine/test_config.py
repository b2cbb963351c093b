"""How to speculate: types are made right or refused, and what contradicts itself is refused."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.core import Tree
from forerun.drafters import DRAFTERS
from forerun.drafters.draft_model import DraftModelOptions
from forerun.drafters.ngram import NgramOptions
from forerun.drafters.suffix import SuffixOptions
from forerun.engine.config import SpeculativeConfig
from forerun.errors import ConfigError, UnknownNameError
from forerun.policies import POLICIES

METHODS = {**DRAFTERS, **POLICIES}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_speculative_tokens": 2.5}, "is 2.5; it must be an integer in [1, 64]"),
        ({"num_speculative_tokens": 65}, "[1, 64]"),
        ({"num_speculative_tokens": True}, "is True"),
        ({"num_speculative_tokens": 11, "policy": "adaptive"}, "[2, 10]"),
        ({"num_speculative_tokens": 1, "policy": "adaptive"}, "[2, 10]"),
        (
            {"num_speculative_tokens": 9, "policy": "adaptive", "longest_draft": 8},
            "it must lie in [2, 8]",
        ),
        ({"policy": None}, "None"),
        ({"policy": 3}, "is 3; it must be one of adaptive, auto, fixed"),
        ({"rejection_sample_method": 4}, "one of auto, block, coupled, standard, token"),
        ({"draft_sample_method": None}, "one of auto, greedy, probabilistic"),
        ({"draft_sample_method": "greedy", "method": "ngram"}, "does not draw its drafts"),
        ({"draft_dtype": "fp31", "method": "draft_model"}, "Did you mean 'fp32'?"),
        ({"draft_dtype": 16, "method": "draft_model"}, "one of auto, fp16, bf16, fp32, fp64"),
        ({"method": 3}, "is 3; it must be one of cascade, draft_model"),
        ({"model": ""}, "not empty"),
        ({"model": 3}, "is 3; it must be text"),
        ({"revision": ""}, "not empty"),
        ({"tree": ""}, "not empty"),
        ({"prompt_lookup_min": 5, "method": "ngram"}, "prompt_lookup_max 4"),
        ({"prompt_lookup_min": 0, "method": "ngram"}, "[1, 2147483648]"),
        ({"exit_layer": "2", "method": "layer_skip"}, "exit_layer is '2'"),
        ({"cascade": ["ngram", 4], "method": "cascade"}, "cascade[1] is 4"),
        ({"options": 3}, "options is 3; it must be a mapping"),
        ({"options": {3: 4}}, "a key of options is 3"),
    ],
    ids=str,
)
def test_wrong_values_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        SpeculativeConfig.from_dict(options)
    message = str(error.value)
    assert next(iter(options)) in message
    assert words in message
    assert "\n" not in message


def test_types_are_made_right() -> None:
    config = SpeculativeConfig(
        model=Path("a"),  # type: ignore[arg-type]
        num_speculative_tokens=np.int64(3),  # type: ignore[arg-type]
        tree=[-1, 0, 0],  # type: ignore[arg-type]
    )
    wanted = SpeculativeConfig(model="a", num_speculative_tokens=3, tree=Tree((-1, 0, 0)))
    assert repr(config) == repr(wanted)


@pytest.mark.parametrize("length", [2, 10])
def test_limits_of_the_adaptive_policy_are_allowed(length: int) -> None:
    SpeculativeConfig(num_speculative_tokens=length, policy="adaptive")


def test_options_come_flat_or_by_name() -> None:
    flat = SpeculativeConfig.from_dict({"method": "ngram", "prompt_lookup_max": 6})
    own = NgramOptions(prompt_lookup_max=6)
    assert flat == SpeculativeConfig(method="ngram", options={"prompt_lookup_max": 6})
    assert flat.read(NgramOptions) == own
    assert flat.read(SuffixOptions) == SuffixOptions()


def test_a_cascade_takes_the_options_of_its_members() -> None:
    options = {"suffix_store_tokens": 9, "draft_dtype": "bf16"}
    config = SpeculativeConfig(method="cascade", options=options)
    assert config.read(SuffixOptions) == SuffixOptions(suffix_store_tokens=9)
    assert config.read(DraftModelOptions) == DraftModelOptions(draft_dtype="bf16")
    with pytest.raises(ConfigError, match="prompt_lookup_max is not read by method 'cascade'"):
        dataclasses.replace(config, options={"prompt_lookup_max": 3})


def test_equal_configs_are_equal_however_they_say_it() -> None:
    usual = SpeculativeConfig(method="ngram")
    assert usual == SpeculativeConfig(method="ngram", options={"prompt_lookup_max": 4})
    assert usual.options == {}


@pytest.mark.parametrize("method", sorted(DRAFTERS))
def test_what_a_config_says_makes_it_again(method: str) -> None:
    options = {"suffix_store_tokens": 5} if method in ("suffix", "cascade") else {}
    config = SpeculativeConfig(method=method, tree=Tree((-1, -1)), options=options)
    values = config.as_dict()
    assert SpeculativeConfig.from_dict(values) == config
    # Also what is at its default: it must be known to make a run again.
    for drafter in config.drafters:
        assert {field.name for field in dataclasses.fields(drafter.options)} <= set(values)


@pytest.mark.parametrize("method", sorted(DRAFTERS))
def test_options_of_other_methods_are_refused_with_those_of_this_one(method: str) -> None:
    drafters = SpeculativeConfig(method=method).drafters
    own = {field.name for drafter in drafters for field in dataclasses.fields(drafter.options)}
    for other, drafter in DRAFTERS.items():
        for field in dataclasses.fields(drafter.options):
            if field.name in own:
                continue
            with pytest.raises(ConfigError) as error:
                SpeculativeConfig.from_dict({"method": method, field.name: field.default})
            assert f"{field.name} is not read by method {method!r}" in str(error.value)
            assert f"method {other!r}" in str(error.value)
            assert all(name in str(error.value) for name in own)


def test_options_of_another_policy_are_refused() -> None:
    with pytest.raises(ConfigError, match="or use policy 'adaptive'"):
        SpeculativeConfig(options={"longest_draft": 5})
    with pytest.raises(ConfigError, match="or use policy 'adaptive'"):
        SpeculativeConfig(method="ngram", options={"longest_draft": 5})


def test_options_wait_for_a_method_that_is_open() -> None:
    config = SpeculativeConfig(options={"exit_layer": 0})
    with pytest.raises(ConfigError, match="exit_layer is 0"):
        dataclasses.replace(config, method="layer_skip")
    with pytest.raises(UnknownNameError, match="Did you mean 'exit_layer'"):
        SpeculativeConfig(options={"exit_layr": 1})


def test_unknown_options_get_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'policy'"):
        SpeculativeConfig.from_dict({"polcy": "fixed"})
    with pytest.raises(UnknownNameError, match="Did you mean 'exit_layer'") as error:
        SpeculativeConfig.from_dict({"method": "layer_skip", "exit_layr": 1})
    assert {"exit_layer", "policy"} <= set(error.value.known)
    assert "prompt_lookup_max" not in error.value.known
    with pytest.raises(ConfigError, match="must be a mapping"):
        SpeculativeConfig.from_dict([("policy", "fixed")])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_defaults_pass_their_own_checks(name: str) -> None:
    usual = METHODS[name].options()
    values = {field.name: getattr(usual, field.name) for field in dataclasses.fields(usual)}
    assert METHODS[name].options(**values) == usual


def test_no_option_is_declared_twice() -> None:
    """Methods that share one inherit it."""
    kinds = {
        kind
        for owner in (SpeculativeConfig, *(method.options for method in METHODS.values()))
        for kind in owner.__mro__
    }
    names = [name for kind in kinds for name in inspect.get_annotations(kind)]
    assert len(set(names)) == len(names)
    assert "corpus" in names
