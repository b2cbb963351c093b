"""Texts that are quoted change the speed alone: on the packaged pair, outputs are plain decoding's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import forerun
from forerun import SamplingParams
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.files import CACHE_VARIABLE

PROMPTS = ["class Stack:\n    def __init__(self):\n", "import os\n\n\ndef read_lines(path):\n"]
SAMPLERS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=48),
    "seeded": SamplingParams(temperature=0.8, seed=7, max_tokens=48),
}
METHODS: dict[str, dict[str, Any]] = {
    "picked": {},
    "suffix": {"method": "suffix"},
    "suffix-tree": {"method": "suffix", "tree": "auto"},
    "cascade": {"method": "cascade", "cascade": ["suffix", "draft_model:3"]},
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _kept_here(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))


@pytest.fixture(scope="module")
def plain() -> Engine:
    return forerun.load("zoo", False, max_context=256)


def load(corpus: Any, **values: Any) -> Engine:
    speculative = {"policy": "fixed", "corpus": corpus, **values}
    return forerun.load("zoo", speculative, max_context=256)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("method", METHODS)
def test_outputs_are_plain_decodings(
    plain: Engine, tmp_path: Path, method: str, sampler: str
) -> None:
    params = SAMPLERS[sampler]
    expected = plain.generate(PROMPTS, params)
    # Its own greedy answers, and what is like them up to a point.
    (tmp_path / "quoted").mkdir()
    for number, prompt in enumerate(PROMPTS):
        text = prompt + plain.generate([prompt], SAMPLERS["greedy"])[0].text
        (tmp_path / "quoted" / f"{number}.py").write_text(text)
        (tmp_path / "quoted" / f"{number}-other.py").write_text(text[:99].swapcase() + text[:60])
    engine = load(tmp_path / "quoted", **METHODS[method])
    found = engine.generate(PROMPTS, params)
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    if sampler == "greedy":
        # Nothing of it is in the prompt: a draft has to be quoted.
        assert sum(one.stats.num_accepted_tokens for one in found) > 48


def test_a_corpus_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load([tmp_path / "missing"])
    with pytest.raises(ConfigError, match="is empty"):
        load([tmp_path])
    with pytest.raises(ConfigError, match=r"corpus\[0\] is 3"):
        load([3])
    with pytest.raises(ConfigError, match="not read by method 'draft_model'"):
        load([tmp_path], method="draft_model")
