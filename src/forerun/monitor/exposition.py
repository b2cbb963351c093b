"""A monitor's counts as Prometheus scrapes them, written by its own library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from forerun.core import Stats
from forerun.errors import ConfigError, shown
from forerun.monitor.snapshot import Snapshot

if TYPE_CHECKING:
    from prometheus_client.core import Metric

POSITION = "position"
_PREFIX, _LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*"), re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


def exposition(
    run: Snapshot, newest: Snapshot, disable: bool, prefix: str, labels: Mapping[str, str]
) -> str:
    """All metrics in Prometheus' text format, without those that are not known yet.

    Raises:
        ConfigError: for a prefix or labels that Prometheus does not allow, and without its library.
    """
    check_prefix(prefix)
    for name in labels:
        if name == POSITION or not _LABEL.fullmatch(name):
            raise ConfigError(
                f"a label is called {shown(name)}; use letters, digits and underscores, not two of them "
                f"first, and not {POSITION!r}."
            )
    try:
        from prometheus_client import generate_latest
    except ImportError:
        raise ConfigError(
            "metrics are written by prometheus_client; run pip install 'forerun[metrics]'."
        ) from None
    metrics = partial(_metrics, run, newest, disable, f"{prefix}:spec_decode_", labels)
    collector: Any = SimpleNamespace(collect=metrics)
    return generate_latest(collector).decode()


def check_prefix(prefix: Any) -> None:
    """Refuse a prefix of metrics that Prometheus does not allow.

    Raises:
        ConfigError: for that.
    """
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ConfigError(f"prefix is {shown(prefix)}; use letters, digits and underscores.")


def counters(stats: Stats, prefix: str, labels: Mapping[str, str]) -> Iterator[Metric]:
    """Counters of speculation under the names that serving engines share."""
    from prometheus_client.core import CounterMetricFamily

    names, values = [*labels], [*labels.values()]
    verifying = stats.target_seconds + stats.verify_seconds
    for name, text, count in (
        ("num_drafts", "Rounds that drafted, by request.", stats.num_drafts),
        ("num_draft_tokens", "Drafted tokens.", stats.num_draft_tokens),
        ("num_accepted_tokens", "Accepted tokens.", stats.num_accepted_tokens),
        ("num_plain_rounds", "Rounds that drafted nothing.", stats.num_plain_rounds),
        ("num_emitted_tokens", "Tokens of the output.", stats.num_emitted_tokens),
        ("draft_seconds", "Time of drafting.", stats.draft_seconds),
        ("verify_seconds", "Time of target forwards and acceptance.", verifying),
        ("seconds", "Time of all timed rounds.", stats.seconds),
    ):
        counter = CounterMetricFamily(prefix + name, text, labels=names)
        counter.add_metric(values, count)
        yield counter
    if by_position := stats.num_accepted_tokens_per_pos:
        name, text = "num_accepted_tokens_per_pos", "Accepted tokens by position in the draft."
        counter = CounterMetricFamily(prefix + name, text, labels=[*names, POSITION])
        for position, count in enumerate(by_position):
            counter.add_metric([*values, str(position)], count)
        yield counter


def _metrics(
    run: Snapshot, newest: Snapshot, disable: bool, prefix: str, labels: Mapping[str, str]
) -> Iterator[Metric]:
    """Metrics of a monitor. Counters only rise."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    names, values = [*labels], [*labels.values()]
    yield from counters(run.stats, prefix, labels)
    text = "Rounds without usable times."
    counter = CounterMetricFamily(prefix + "num_untimed_rounds", text, labels=names)
    counter.add_metric(values, run.num_untimed_rounds)
    yield counter
    for name, text, value in (
        ("seconds_saved", "Time saved against plain decoding.", run.seconds_saved),
        ("speedup", "Plain time / time, newest rounds.", newest.speedup),
        ("acceptance_rate", "Accepted / drafted, newest.", newest.stats.acceptance_rate),
        ("acceptance_length", "Tokens a draft, newest.", newest.stats.mean_acceptance_length),
        ("should_disable", "1 where speculation loses.", int(disable)),
    ):
        if value is not None:
            gauge = GaugeMetricFamily(prefix + name, text, labels=names)
            gauge.add_metric(values, value)
            yield gauge
