"""Formats a monitor's counts in Prometheus' text format (0.0.4)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from forerun.errors import ConfigError, shown
from forerun.monitor.snapshot import Snapshot

POSITION = "position"
_PREFIX, _LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*"), re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True)
class Metric:
    """A metric with one sample, or one sample for each position of a draft. Counters only rise."""

    name: str
    text: str
    value: float | None = None
    kind: str = "counter"
    by_position: list[int] = field(default_factory=list)


def exposition(
    run: Snapshot, newest: Snapshot, disable: bool, prefix: str, labels: Mapping[str, str]
) -> str:
    """All metrics as text, without those that are not known yet.

    Raises:
        ConfigError: for a prefix or labels that Prometheus does not allow.
    """
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ConfigError(f"prefix is {shown(prefix)}; use letters, digits and underscores.")
    for name in labels:
        if name == POSITION or not _LABEL.fullmatch(name):
            raise ConfigError(
                f"a label is called {shown(name)}; use letters, digits and underscores, not two of them "
                f"first, and not {POSITION!r}."
            )
    lines: list[str] = []
    for metric in (*_counters(run), *_gauges(run, newest, disable)):
        samples = [(labels, metric.value)]
        if metric.by_position:
            samples = [({**labels, POSITION: str(k)}, n) for k, n in enumerate(metric.by_position)]
        name = f"{prefix}:spec_decode_{metric.name}" + "_total" * (metric.kind == "counter")
        shown_samples = [
            f"{name}{_braced(own)} {value!r}" for own, value in samples if value is not None
        ]
        if shown_samples:
            lines += [f"# HELP {name} {metric.text}", f"# TYPE {name} {metric.kind}"]
            lines += shown_samples
    return "\n".join(lines) + "\n"


def _counters(run: Snapshot) -> Iterator[Metric]:
    stats = run.stats
    yield Metric("num_drafts", "Rounds that drafted, by request.", stats.num_drafts)
    yield Metric("num_draft_tokens", "Drafted tokens.", stats.num_draft_tokens)
    yield Metric("num_accepted_tokens", "Accepted tokens.", stats.num_accepted_tokens)
    yield Metric(
        "num_accepted_tokens_per_pos",
        "Accepted tokens by position in the draft.",
        by_position=stats.num_accepted_tokens_per_pos,
    )
    yield Metric("num_plain_rounds", "Rounds that drafted nothing.", stats.num_plain_rounds)
    yield Metric("num_emitted_tokens", "Tokens of the output.", stats.num_emitted_tokens)
    yield Metric("num_untimed_rounds", "Rounds without usable times.", run.num_untimed_rounds)
    yield Metric("draft_seconds", "Time of drafting.", stats.draft_seconds)
    verifying = stats.target_seconds + stats.verify_seconds
    yield Metric("verify_seconds", "Time of target forwards and acceptance.", verifying)
    yield Metric("seconds", "Time of all timed rounds.", stats.seconds)


def _gauges(run: Snapshot, newest: Snapshot, disable: bool) -> Iterator[Metric]:
    rate, length = newest.stats.acceptance_rate, newest.stats.mean_acceptance_length
    yield Metric(
        "seconds_saved", "Time saved against plain decoding.", run.seconds_saved, kind="gauge"
    )
    yield Metric("speedup", "Plain time / time, newest rounds.", newest.speedup, kind="gauge")
    yield Metric("acceptance_rate", "Accepted / drafted, newest rounds.", rate, kind="gauge")
    yield Metric("acceptance_length", "Tokens a draft, newest rounds.", length, kind="gauge")
    yield Metric("should_disable", "1 where speculation loses.", int(disable), kind="gauge")


def _braced(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
