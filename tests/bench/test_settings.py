"""Methods, lengths, trees and policies, crossed: all that can be run, each with a name of its own."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.bench.settings import COLD, DEFAULT, Axes, cross, likely_methods, method_of
from forerun.errors import ConfigError, UnknownNameError


def axes(*methods: str, **more: Any) -> Axes:
    """Axes of methods at a single length."""
    return Axes(**{"num_speculative_tokens": (4,), "method": methods} | more)


def test_everything_is_crossed_with_everything() -> None:
    made = Axes(
        method=(DEFAULT, "suffix", "ngram"),
        num_speculative_tokens=(2, 5),
        tree=("chain", "auto"),
        num_tree_nodes=(4, 8),
        policy=("fixed", "adaptive"),
    )
    settings = cross(made, "zoo").settings
    assert len(settings) == 2 + 2 * 2 * 3 * 2
    assert len({setting.name for setting in settings}) == len(settings)
    assert {method_of(setting.name) for setting in settings} == {DEFAULT, "suffix", "ngram"}
    assert {setting.config.policy for setting in settings} == {"auto", "fixed", "adaptive"}
    trees = {(s.config.tree, s.config.num_tree_nodes) for s in settings if s.config.tree}
    assert trees == {("auto", 4), ("auto", 8)}


def test_the_default_is_measured_warm_and_cold() -> None:
    crossed = cross(axes(DEFAULT), "zoo")
    assert [(s.name, s.cold) for s in crossed.settings] == [(DEFAULT, False), (COLD, True)]
    warm, cold = crossed.settings
    assert warm.config == cold.config
    assert method_of(COLD) == DEFAULT
    [note] = crossed.notes
    assert f"{COLD}: the first request on a new machine" in note
    assert "left on disk" in note
    assert not cross(axes("suffix"), "zoo").notes
    assert cross(axes(DEFAULT), "zoo", cold=False).settings == (warm,)


def test_what_cannot_be_crossed_is_said() -> None:
    crossed = cross(axes("layer_skip", "suffix", tree=("auto",)), "zoo")
    assert [setting.method for setting in crossed.settings] == ["suffix"]
    assert "layer_skip drafts chains only" in crossed.notes[0]


def test_options_go_to_the_methods_that_read_them() -> None:
    made = axes("suffix", "ngram", options={"prompt_lookup_max": 3})
    suffix, ngram = cross(made, "zoo").settings
    assert dict(suffix.config.options) == {}
    assert dict(ngram.config.options) == {"prompt_lookup_max": 3}
    drawn = cross(axes("suffix", "draft_model", common={"draft_sample_method": "greedy"}), "zoo")
    assert [s.config.draft_sample_method for s in drawn.settings] == ["auto", "greedy"]


def test_models_go_to_the_methods_that_they_are_for() -> None:
    made = axes("suffix", "draft_model", draft_model=("one/draft", "two/draft"))
    settings = cross(made, "target").settings
    assert [s.config.model for s in settings] == [None, "one/draft", "two/draft"]
    assert len({s.name for s in settings}) == 3, "folders of one name are told apart"
    assert likely_methods("target", ("one/draft",)) == (DEFAULT, "suffix", "ngram", "draft_model")
    assert "draft_model" in likely_methods("zoo", ())


@pytest.mark.parametrize(
    ("method", "more", "words"),
    [
        ("sufix", {}, "suffix"),
        ("suffix", {"policy": ("fast",)}, "adaptive"),
        ("suffix", {"options": {"prompt_lookup_max": 3}}, "prompt_lookup_max"),
        ("suffix", {"draft_model": ("a-model",)}, "no method of this run drafts with a-model"),
        ("draft_model", {}, "no draft model is known"),
        ("suffix", {"num_speculative_tokens": (0,)}, "num_speculative_tokens"),
    ],
)
def test_wrong_use_is_refused(method: str, more: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=words):
        cross(axes(method, **more), "somewhere/unknown")
