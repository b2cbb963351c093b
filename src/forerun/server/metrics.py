"""/metrics for Prometheus: requests, times and tokens, and what speculation did."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.responses import Response

from forerun.core import Stats
from forerun.monitor.exposition import counters
from forerun.server.service import AnswerJob, EngineService, Update
from forerun.server.state import ServerState

# Bounds of all times in seconds.
_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 1.5),
    *(2.5, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0),
)
# Times between tokens that wait to be counted.
_MOST_WAITS = 1000
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def add_routes(app: FastAPI, state: ServerState, prefix: str) -> None:
    registry = CollectorRegistry()
    watch = Watch(state.service, registry, prefix)
    collector = _Engine(state.service, prefix)
    registry.register(collector)

    content = {"text/plain": {"schema": {"type": "string"}}}

    @app.get("/metrics", response_class=Response, responses={200: {"content": content}})
    async def metrics() -> Response:
        """Metrics in Prometheus' text format."""
        watch.observe_waits()
        collector.stats = await state.service.ask(lambda engine: engine.stats)
        return Response(generate_latest(registry), media_type=_TYPE)


class Watch:
    """Counts what goes out, in the event loop and not in the round.

    Times between tokens are kept until there are many: in the middle of a round one by one they cost
    more than all the rest.

    Args:
        service: calls it with every update.
        registry: takes its metrics.
        prefix: of their names.
    """

    def __init__(self, service: EngineService, registry: CollectorRegistry, prefix: str) -> None:
        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"{prefix}:{name}", text, buckets=_BOUNDS, registry=registry)

        self._first = histogram("time_to_first_token_seconds", "From request to first token.")
        self._waits = list[float]()
        self._between = histogram("inter_token_latency_seconds", "Between two tokens.")
        self._whole = histogram("e2e_request_latency_seconds", "From request to its end.")
        self._ended = Counter(
            f"{prefix}:request_success", "Requests by end.", ["finished_reason"], registry=registry
        )
        service.on_update = self.see

    def see(self, job: AnswerJob, update: Update) -> None:
        """Count an update; all its tokens come at once, so all but the first wait no time."""
        now = perf_counter()
        if update.events:
            before = job.newest.get(update.index)
            if before is None:
                self._first.observe(now - job.started)
            else:
                self._waits.append(now - before)
            self._waits += [0.0] * (len(update.events) - 1)
            if len(self._waits) >= _MOST_WAITS:
                self.observe_waits()
            job.newest[update.index] = now
        if update.completion is not None:
            self._whole.observe(now - job.started)
            self._ended.labels(str(update.completion.finish_reason)).inc()

    def observe_waits(self) -> None:
        """Bring the histogram of times between tokens up to date."""
        for wait in self._waits:
            self._between.observe(wait)
        self._waits.clear()


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
        share, stats = running / engine.max_batch_size, self.stats
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        for kind, name, text, value in (
            (gauge, "num_requests_running", "Requests in rows.", running),
            (gauge, "num_requests_waiting", "Requests in the queue.", service.open - running),
            (gauge, "kv_cache_usage_perc", "Share of the cache's rows in use.", share),
            (counter, "prompt_tokens", "Prompt tokens.", stats.prompt_tokens),
            (counter, "generation_tokens", "Tokens of the output.", stats.num_emitted_tokens),
            (counter, "prefix_cache_queries", "Prompt tokens looked up.", stats.prompt_tokens),
            (counter, "prefix_cache_hits", "Prompt tokens in the cache.", stats.num_cached_tokens),
        ):
            yield kind(f"{prefix}:{name}", text, value=value)
        text = "Rounds without a draft, by the policy's or another reason."
        plain = CounterMetricFamily(f"{prefix}:plain_rounds", text, labels=["reason"])
        for reason, count in stats.num_plain_rounds_by_reason.items():
            plain.add_metric([reason], count)
        yield plain
        yield from counters(stats, f"{prefix}:spec_decode_", {})
