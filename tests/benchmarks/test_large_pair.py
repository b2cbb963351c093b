"""The report of the benchmark of a large pair adds up, whatever the times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from benchmarks.large_pair import Request, main, measure, report
from benchmarks.shapes import RANDOM_SHAPES, build
from forerun import _native
from forerun.costs.shapes import ModelShape
from forerun.errors import ConfigError, UnknownNameError

pytestmark = pytest.mark.skipif(not _native.AVAILABLE, reason="no compiled kernels")

TINY = ModelShape(2, 64, 4, 2, 16, 128, 96, tied=True, name="qwen3-tiny")
REQUEST = Request("tiny", "int8", "tiny-draft", "int4", num_speculative_tokens=3, tokens=9)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(RANDOM_SHAPES, "tiny", TINY)
    monkeypatch.setitem(
        RANDOM_SHAPES, "tiny-draft", replace(TINY, hidden_size=32, head_dim=8, num_layers=1)
    )
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_what_is_measured() -> None:
    heard: list[str] = []
    result = measure(REQUEST, 1, heard.append)
    assert heard[0] == "loading tiny int8"
    assert heard[-1] == "pair 2 of 2"
    assert result.target.packed_megabytes == build("tiny", "int8").weight_bytes / 1e6
    assert result.draft.packed_megabytes < result.target.packed_megabytes
    assert result.identical
    assert len(result.pairs) == REQUEST.pairs
    for pair in result.pairs:
        assert pair.round == pytest.approx(pair.draft + pair.target + pair.host)
        assert min(pair.plain_token, pair.draft, pair.target, pair.host) > 0
        assert 1 <= pair.tokens_per_round <= 4
        assert 0 <= pair.acceptance <= 1
    assert "identical to plain decoding: yes" in report(result)


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    """Nine tokens in rounds of four: all of them full, the first not counted."""
    result = measure(replace(REQUEST, draft="tiny", draft_precision="int8", pairs=1), 1)
    (pair,) = result.pairs
    assert (pair.rounds, pair.tokens_per_round, pair.acceptance) == (2, 4.0, 1.0)
    assert pair.identical


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["--target", "tiny", "--draft", "tiny-draft", "--tokens", "4", "--threads", "1"]
    main([*names, "--json", "--pairs", "1"])
    content = json.loads(capsys.readouterr().out)
    assert content["request"]["target_precision"] == "int8"
    assert content["request"]["draft_precision"] == "int4"
    assert content["identical"] is True
    assert len(content["pairs"]) == 1
    main(names)
    printed = capsys.readouterr().out
    assert "MB packed" in printed
    assert "pair 2" in printed


def test_bad_requests() -> None:
    with pytest.raises(ConfigError, match="tokens is 1"):
        Request(tokens=1)
    with pytest.raises(UnknownNameError, match="tiniest"):
        measure(replace(REQUEST, target="tiniest"), 1)
