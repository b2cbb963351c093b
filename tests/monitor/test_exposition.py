"""What Prometheus scrapes is in its format, and says what the snapshot says."""

from __future__ import annotations

import json
import re
import sys

import pytest

from forerun import Monitor
from forerun.errors import ConfigError

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\n"])*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (-?[0-9.e+-]+)")
_PAIR = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}


def parse(text: str) -> tuple[Samples, dict[str, str]]:
    """Samples by name and labels, and the type of each metric; strict about the format 0.0.4."""
    samples: Samples = {}
    kinds: dict[str, str] = {}
    helped = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped = line.split(" ")[2]
            assert helped not in kinds, "a metric's lines stand together"
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == helped
            assert kind in ("counter", "gauge")
            kinds[name] = kind
        else:
            match = _SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] == helped
            pairs = tuple(
                (name, re.sub(r"\\.", lambda escape: _ESCAPES[escape[0]], value))
                for name, value in _PAIR.findall(match[2] or "")
            )
            assert (match[1], pairs) not in samples
            samples[match[1], pairs] = float(match[3])
    assert set(kinds) == {name for name, _ in samples}
    return samples, kinds


def used() -> Monitor:
    monitor = Monitor()
    monitor.record_plain(1.0, tokens=20)
    for accepted in (3, 0, 1, 2):
        monitor.record_round(3, accepted, draft_seconds=0.25, verify_seconds=0.5)
    return monitor


def test_it_says_what_the_snapshot_says() -> None:
    monitor = used()
    samples, kinds = parse(monitor.prometheus())
    stats = monitor.snapshot().stats
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "seconds"):
        full = f"forerun:spec_decode_{name}_total"
        assert samples[full, ()] == getattr(stats, name)
        assert kinds[full] == "counter"
    for position, count in enumerate(stats.num_accepted_tokens_per_pos):
        labels = (("position", str(position)),)
        assert samples["forerun:spec_decode_num_accepted_tokens_per_pos_total", labels] == count
    saved = "forerun:spec_decode_seconds_saved"
    assert samples[saved, ()] == monitor.snapshot().seconds_saved
    assert kinds[saved] == "gauge"
    assert samples["forerun:spec_decode_should_disable", ()] == 0


@pytest.mark.parametrize("value", ["smollm2", 'a "b"', "a\\b", "two\nlines", "ä, {x=1}"])
def test_labels_come_back(value: str) -> None:
    samples, _ = parse(used().prometheus(prefix="vllm", labels={"model_name": value}))
    assert all(("model_name", value) in labels for _, labels in samples)
    assert all(name.startswith("vllm:spec_decode_") for name, _ in samples)


@pytest.mark.parametrize("name", ["", "a b", "1a", "__a", "position", "ä"])
def test_labels_that_prometheus_does_not_allow_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="label"):
        used().prometheus(labels={name: "x"})


@pytest.mark.parametrize("prefix", ["", "a:b", "1", "a b", "a\n"])
def test_prefixes_that_prometheus_does_not_allow_are_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        used().prometheus(prefix=prefix)


def test_without_the_library_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'forerun\[metrics\]'"):
        used().prometheus()


def test_an_empty_monitor_can_be_scraped_and_dumped() -> None:
    monitor = Monitor()
    parse(monitor.prometheus())
    assert json.loads(json.dumps(monitor.as_dict()))["should_disable"] is False


def test_the_figures_are_ready_for_json() -> None:
    assert json.loads(json.dumps(used().as_dict()))["run"]["speedup"] == pytest.approx(1 / 6)
