"""Tune: what its knock-out leaves, and the config that follows from bench's verdict."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.bench.pairs import summarize
from forerun.bench.settings import DEFAULT, Axes, cross
from forerun.bench.tune import TuneRequest, config_values
from forerun.bench.verdict import verdicts
from forerun.engine.options import ModelOptions
from forerun.errors import ConfigError
from forerun.placement import Placement
from tests.helpers.bench_rows import made_row

REQUEST = TuneRequest(model=ModelOptions(model="zoo", placement=Placement(kv_dtype="int8")))
MEASURED_AT = {"model": "zoo", "kv-dtype": "int8", "temperature": 0.5}
SUFFIX = {"method": "suffix", "num-speculative-tokens": 6}


def config(speedups: dict[str, float], prompts: int = 12) -> dict[str, Any]:
    """The config of settings with these speed-ups, which differ by a few per cent between prompts."""
    rows = [
        made_row(name, number, gain / (0.97 + 0.06 * number / prompts), temperature=0.5)
        for name, gain in speedups.items()
        for number in range(prompts)
    ]
    [found] = verdicts(summarize(rows))
    axes = Axes(method=(DEFAULT, "suffix", "ngram"), num_speculative_tokens=(1, 6))
    crossed = cross(axes, "zoo", cold=False)
    return config_values(REQUEST, found, crossed.settings)


@pytest.mark.parametrize(
    ("speedups", "prompts", "expected"),
    [
        ({"suffix, 6 tokens": 1.4, "ngram, 1 token": 1.1}, 12, SUFFIX),
        ({"suffix, 6 tokens": 0.8}, 12, {"speculative": False}),
        ({"suffix, 6 tokens": 1.0}, 12, {"speculative": False}),
        # Too few prompts to tell, or forerun's own choice: what it does by itself.
        ({"suffix, 6 tokens": 1.4}, 4, {}),
        ({"suffix, 6 tokens": 1.4, DEFAULT: 1.6}, 12, {}),
        ({"suffix, 6 tokens": 1.4, DEFAULT: 1.2}, 12, SUFFIX),
    ],
)
def test_the_config_says_what_the_verdict_does(
    speedups: dict[str, float], prompts: int, expected: dict[str, Any]
) -> None:
    assert config(speedups, prompts) == MEASURED_AT | expected


def test_trees_models_and_options_are_in_the_config() -> None:
    axes = Axes(
        method=("draft_model",),
        num_speculative_tokens=(3,),
        tree=("auto",),
        num_tree_nodes=(4,),
        draft_model=("zoo-draft",),
        options={"draft_dtype": "int8"},
    )
    [setting] = cross(axes, "zoo").settings
    [found] = verdicts(summarize([made_row(setting.name, n, 1.5) for n in range(9)]))
    request = TuneRequest(model=ModelOptions(model="zoo"), axes=axes)
    made = config_values(request, found, [setting])
    assert made == {
        "model": "zoo",
        "temperature": 0.0,
        "method": "draft_model",
        "draft-model": "zoo-draft",
        "num-speculative-tokens": 3,
        "tree": "auto",
        "num-tree-nodes": 4,
        "method-option": ["draft_dtype=int8"],
    }


def test_a_file_takes_one_setting() -> None:
    with pytest.raises(ConfigError, match="--output takes one setting"):
        TuneRequest(output="a.toml", temperature=(0.0, 1.0))
