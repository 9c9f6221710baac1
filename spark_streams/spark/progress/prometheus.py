"""The figures of queries for Prometheus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from spark_streams.errors import PackageMissing
from spark_streams.spark.progress.figures import COUNTERS, DURATION, DURATION_LIMITS, GAUGES, RunningQueries
from spark_streams.spark.progress.listener import Progress

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

ENDED_KEPT: Final = 100
"""How many ended queries keep their counters: the last batch of a query may end just before it, unseen by any scrape,
and a query that starts again counts on."""


class PrometheusMetrics(RunningQueries):
    """Shows the figures of all queries to Prometheus: a receiver of ``StreamProgressListener``.

    It registers itself; ``prometheus_client.start_http_server`` is one way to serve the registry. The lag of thousands
    of partitions is formatted at a scrape, and costs a batch nothing. The gauges of a query go when it ends; its
    counters stay while it is among the last 100 that ended. Thread-safe.

    Args:
        registry: where it registers itself; None for ``prometheus_client.REGISTRY``.

    Raises:
        PackageMissing: prometheus-client is not installed.
        ValueError: the registry has another ``PrometheusMetrics``.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__()
        if find_spec("prometheus_client") is None:
            raise PackageMissing("PrometheusMetrics needs prometheus-client: pip install prometheus-client")
        from prometheus_client import REGISTRY, Counter, Histogram

        self._counters = {each: Counter(each.name, each.meaning, each.labels, registry=None) for each in COUNTERS}
        limits = DURATION_LIMITS
        self._duration = Histogram(DURATION.name, DURATION.meaning, DURATION.labels, buckets=limits, registry=None)
        self._counted = defaultdict[str, set[str]](set)
        self._ended: dict[str, None] = {}
        found: Any = REGISTRY if registry is None else registry
        try:
            found.register(self)
        except ValueError as fault:
            raise ValueError(
                "the registry shows the figures of queries already: one PrometheusMetrics is enough for all listeners "
                "of a process; registry.unregister(…) takes one out"
            ) from fault

    def __call__(self, progress: Progress) -> None:
        """Take the progress of a batch."""
        super().__call__(progress)
        with self._lock:
            self._ended.pop(progress.query, None)
            self._counted[progress.query].add(progress.stream)
            for figure, counter in self._counters.items():
                for _, value in figure.values(progress):
                    counter.labels(progress.query, progress.stream).inc(value)
            self._duration.labels(progress.query, progress.stream).observe(progress.seconds)

    def query_ended(self, query: str) -> None:
        """Forget all of a query but its counters."""
        super().query_ended(query)
        with self._lock:
            self._ended[query] = None
            while len(self._ended) > ENDED_KEPT:
                oldest = next(iter(self._ended))
                del self._ended[oldest]
                for stream in self._counted.pop(oldest, ()):
                    for figure in (*self._counters.values(), self._duration):
                        with suppress(KeyError):  # before 0.21, where nothing was counted
                            figure.remove(oldest, stream)

    def describe(self) -> Iterator[Metric]:
        """Return the figures, for the registry's check of names."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Return the figures, for a scrape."""
        from prometheus_client.core import GaugeMetricFamily

        running = self._running()
        for figure in GAUGES:
            gauge = GaugeMetricFamily(figure.name, figure.meaning, labels=figure.labels)
            for progress in running:
                for partition, value in figure.values(progress):
                    gauge.add_metric((progress.query, progress.stream, *partition), value)
            yield gauge
        with self._lock:
            counted = [family for each in (*self._counters.values(), self._duration) for family in each.collect()]
        for family in counted:
            family.samples = [each for each in family.samples if not each.name.endswith("_created")]
            yield family
