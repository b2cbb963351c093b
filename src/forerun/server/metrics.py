"""/metrics for Prometheus: requests, times and tokens, and what speculation did."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.responses import Response

from forerun.core import Stats
from forerun.monitor.exposition import counters
from forerun.server.service import AnswerJob, EngineService, Update
from forerun.server.state import ServerState

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# Bounds in seconds, those of vLLM where it has them.
_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0),
)
_BETWEEN = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_WHOLE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0)
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def routes(state: ServerState, prefix: str) -> APIRouter:
    router, registry = APIRouter(), CollectorRegistry()
    Watch(state.service, registry, prefix)
    collector = _Engine(state.service, prefix)
    registry.register(collector)

    @router.get("/metrics")
    async def metrics() -> Response:
        """Metrics in Prometheus' text format."""
        collector.stats = await state.service.ask(lambda engine: engine.stats)
        return Response(generate_latest(registry), media_type=_TYPE)

    return router


class Watch:
    """Counts what goes out, in the event loop and not in the round.

    Args:
        service: calls it with every update.
        registry: takes its metrics.
        prefix: of their names.
    """

    def __init__(self, service: EngineService, registry: CollectorRegistry, prefix: str) -> None:
        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            return Histogram(f"{prefix}:{name}", text, buckets=bounds, registry=registry)

        self._first = histogram(
            "time_to_first_token_seconds", "From request to first token.", _FIRST
        )
        self._between = histogram("inter_token_latency_seconds", "Between two tokens.", _BETWEEN)
        self._whole = histogram("e2e_request_latency_seconds", "From request to its end.", _WHOLE)
        self._ended = Counter(
            f"{prefix}:request_success", "Requests by end.", ["finished_reason"], registry=registry
        )
        self._last: dict[tuple[int, int], float] = {}
        service.on_update = self.see

    def see(self, job: AnswerJob, update: Update) -> None:
        """Count an update; all its tokens come at once, so all but the first wait no time."""
        now, place = perf_counter(), (id(job), update.index)
        if update.events:
            before = self._last.get(place)
            if before is None:
                self._first.observe(now - job.started)
            else:
                self._between.observe(now - before)
            for _ in update.events[1:]:
                self._between.observe(0.0)
            self._last[place] = now
        if update.completion is not None:
            self._last.pop(place, None)
            self._whole.observe(now - job.started)
            self._ended.labels(str(update.completion.finish_reason)).inc()


class _Engine:
    """Collector of the engine's counters; they are read when Prometheus asks."""

    def __init__(self, service: EngineService, prefix: str) -> None:
        self._service, self._prefix = service, prefix
        self.stats = Stats()

    def collect(self) -> Iterator[Metric]:
        """The metrics, as the library asks for them."""
        service, prefix, engine = self._service, self._prefix, self._service.engine
        if engine is None:
            return
        running = min(service.open, engine.max_batch_size)
        for name, text, value in (
            ("num_requests_running", "Requests in rows.", running),
            ("num_requests_waiting", "Requests in the queue.", service.open - running),
            (
                "kv_cache_usage_perc",
                "Share of the cache's rows in use.",
                running / engine.max_batch_size,
            ),
        ):
            yield GaugeMetricFamily(f"{prefix}:{name}", text, value=value)
        stats = self.stats
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens.", stats.prompt_tokens),
            ("generation_tokens", "Tokens of the output.", stats.num_emitted_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up.", stats.prompt_tokens),
            ("prefix_cache_hits", "Prompt tokens found in the cache.", stats.num_cached_tokens),
        ):
            yield CounterMetricFamily(f"{prefix}:{name}", text, value=value)
        reasons = stats.num_plain_rounds_by_reason
        text = "Rounds without a draft, by the policy's or another reason."
        plain = CounterMetricFamily(f"{prefix}:plain_rounds", text, labels=["reason"])
        for reason, count in reasons.items():
            plain.add_metric([reason], count)
        yield plain
        yield from counters(stats, f"{prefix}:spec_decode_", {})
