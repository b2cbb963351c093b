"""What a request may ask for: types are made right or refused, and every refusal names its option."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from forerun.errors import ConfigError, UnknownNameError
from forerun.params import SamplingOptions, SamplingParams, Warp


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -0.1}, "[0, 100]"),
        ({"temperature": float("nan")}, "is nan"),
        ({"temperature": float("inf")}, "is inf"),
        ({"temperature": None}, "is None; it must be a number"),
        ({"temperature": "0.5"}, "is '0.5'; it must be a number"),
        ({"temperature": True}, "is True"),
        ({"temperature": 1e-6}, "0 or lie in [1e-05, 100]; use 0 for greedy"),
        ({"top_p": 0.0}, "(0, 1]"),
        ({"top_p": 1.1}, "(0, 1]"),
        ({"min_p": -0.1}, "[0, 1]"),
        ({"top_k": -1}, "[0, 2147483648]"),
        ({"top_k": 2.0}, "is 2.0; it must be an integer"),
        ({"top_k": True}, "is True; it must be an integer"),
        ({"repetition_penalty": 0.0}, "(0, 100]"),
        ({"seed": 2**63}, "[-9223372036854775808, 9223372036854775807]"),
        ({"seed": "5"}, "is '5'"),
        ({"max_tokens": 0}, "[1, 2147483648]"),
        ({"max_tokens": 9.5}, "is 9.5"),
        ({"logprobs": -1}, "[0, 1024]"),
        ({"logprobs_mode": None}, "one of raw, processed"),
        ({"ignore_eos": "no"}, "True or False"),
        ({"mask": [True]}, "callable"),
        ({"stop": ("",)}, "not empty"),
        ({"stop": ""}, "not empty"),
        ({"stop": (3,)}, "is 3; it must be text"),
        ({"stop": "a\udcff"}, "not UTF-8 text (character 1)"),
        ({"stop_token_ids": 5}, "is 5; it must be a list"),
        ({"stop_token_ids": "12"}, "list or tuple"),
        ({"stop_token_ids": [1, "2"]}, "is '2'; it must be an integer"),
        ({"banned_token_ids": [1.0]}, "is 1.0"),
        ({"banned_token_ids": [-1]}, "[0, 2147483647]"),
        ({"allowed_token_ids": ()}, "is empty"),
        ({"allowed_token_ids": (1, 2), "banned_token_ids": (3, 2, 1)}, "leaves no token"),
        ({"logit_bias": [(1, 2.0)]}, "mapping"),
        ({"logit_bias": {"1": 2.0}}, "is '1'"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias[1] is nan"),
        ({"logit_bias": {1: float("-inf")}}, "logit_bias[1] is -inf"),
        ({"logit_bias": {1: "2"}}, "logit_bias[1] is '2'"),
    ],
    ids=str,
)
def test_wrong_values_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        SamplingParams(**options)
    message = str(error.value)
    assert next(iter(options)) in message
    assert words in message
    assert "\n" not in message


def test_types_are_made_right() -> None:
    params = SamplingParams(
        temperature=1,
        top_k=np.int64(3),  # type: ignore[arg-type]
        top_p=np.float32(0.5),  # type: ignore[arg-type]
        logit_bias={torch.tensor(4): np.float64(2)},  # type: ignore[dict-item]
        stop="END",  # type: ignore[arg-type]
        stop_token_ids=[7, np.int32(8)],  # type: ignore[arg-type]
        banned_token_ids=range(2),  # type: ignore[arg-type]
        allowed_token_ids={5},  # type: ignore[arg-type]
    )
    wanted = SamplingParams(
        temperature=1.0,
        top_k=3,
        top_p=0.5,
        logit_bias={4: 2.0},
        stop=("END",),
        stop_token_ids=(7, 8),
        banned_token_ids=(0, 1),
        allowed_token_ids=(5,),
    )
    assert params == wanted
    # 1 == 1.0 == True: only what is shown tells the types apart.
    assert repr(params) == repr(wanted)
    assert repr(dataclasses.replace(params, seed=1).stop_token_ids) == "(7, 8)"


def test_a_mapping_that_changes_later_changes_no_params() -> None:
    biases = {1: 2.0}
    params = SamplingParams(logit_bias=biases)
    biases[1] = float("nan")
    assert params.logit_bias == {1: 2.0}


def test_the_edges_of_ranges_are_allowed() -> None:
    for options in ({"temperature": 0}, {"temperature": 1e-5}, {"temperature": 100}, {"top_p": 1}):
        SamplingParams(**options)
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=1e-5).greedy


def test_defaults_pass_their_own_checks() -> None:
    usual = SamplingParams()
    values = {field.name: getattr(usual, field.name) for field in dataclasses.fields(usual)}
    assert repr(SamplingParams(**values)) == repr(usual)


def test_every_option_is_explained() -> None:
    assert SamplingParams.__doc__ is not None
    for field in dataclasses.fields(SamplingParams):
        assert f"    {field.name}: " in SamplingParams.__doc__


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(ConfigError) as error:
        SamplingParams(temperature=np.zeros((50, 50)))  # type: ignore[arg-type]
    assert len(str(error.value)) < 200
    assert "\n" not in str(error.value)


def test_unknown_options_get_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'temperature'"):
        SamplingParams.from_dict({"temprature": 1.0})
    with pytest.raises(UnknownNameError, match="Did you mean 'raw'"):
        SamplingParams(logprobs_mode="row")  # type: ignore[arg-type]


def test_the_warp_is_what_shapes_a_row() -> None:
    params = SamplingParams(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=1)
    assert params.warp == (0.5, 3, 0.9, 0.1)
    assert dataclasses.replace(params, temperature=0).warp.greedy
    assert SamplingParams().warp == Warp()


def test_they_survive_pickling() -> None:
    params = SamplingParams(logit_bias={1: 2.0}, stop="a")  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(params)) == params


def test_type_checkers_know_all_options() -> None:
    declared = {field.name for field in dataclasses.fields(SamplingParams)}
    assert SamplingOptions.__annotations__.keys() == declared
