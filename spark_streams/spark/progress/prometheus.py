"""The figures of queries for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import accumulate
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


@dataclass
class _Totals:
    """The counters of one stream of one query."""

    counters: dict[str, float] = field(default_factory=dict)
    batches: list[int] = field(default_factory=lambda: [0] * (len(DURATION_LIMITS) + 1))
    seconds: float = 0.0

    def add(self, progress: Progress) -> None:
        for figure in COUNTERS:
            for _, value in figure.values(progress):
                self.counters[figure.name] = self.counters.get(figure.name, 0) + value
        for _, seconds in DURATION.values(progress):
            self.batches[bisect_left(DURATION_LIMITS, seconds)] += 1
            self.seconds += seconds


class PrometheusMetrics(RunningQueries):
    """Shows the figures of all queries to Prometheus: a receiver of ``StreamProgressListener``.

    It registers itself; ``prometheus_client.start_http_server`` is one way to serve the registry. The lag of thousands
    of partitions is put into words at a scrape, and costs a batch nothing. The gauges of a query go when it ends; its
    counters stay while it is among the last 100 that ended. Thread-safe.

    Args:
        registry: where it registers itself; None for ``prometheus_client.REGISTRY``.

    Raises:
        PackageMissing: prometheus-client is not installed.
        ValueError: the registry has another one of these.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__()
        if find_spec("prometheus_client") is None:
            raise PackageMissing("PrometheusMetrics needs prometheus-client: pip install prometheus-client")
        import prometheus_client

        self._totals: dict[tuple[str, str], _Totals] = {}
        self._ended: dict[str, None] = {}
        found: Any = prometheus_client.REGISTRY if registry is None else registry
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
            self._totals.setdefault((progress.query, progress.stream), _Totals()).add(progress)

    def query_ended(self, query: str) -> None:
        """Forget all of a query but its counters."""
        super().query_ended(query)
        with self._lock:
            self._ended[query] = None
            while len(self._ended) > ENDED_KEPT:
                oldest = next(iter(self._ended))
                del self._ended[oldest]
                for key in [key for key in self._totals if key[0] == oldest]:
                    del self._totals[key]

    def describe(self) -> Iterable[Metric]:
        """Return the figures without values, for the registry's check of names."""
        return self._families([], {})

    def collect(self) -> Iterable[Metric]:
        """Return the figures, for a scrape."""
        with self._lock:
            totals = {
                key: _Totals(dict(each.counters), list(each.batches), each.seconds)
                for key, each in self._totals.items()
            }
        return self._families(self._running(), totals)

    @staticmethod
    def _families(running: list[Progress], totals: dict[tuple[str, str], _Totals]) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for figure in GAUGES:
            gauge = GaugeMetricFamily(figure.name, figure.meaning, labels=figure.labels)
            for progress in running:
                for partition, value in figure.values(progress):
                    gauge.add_metric((progress.query, progress.stream, *partition), value)
            yield gauge
        for figure in COUNTERS:
            counter = CounterMetricFamily(figure.name, figure.meaning, labels=figure.labels)
            for key, each in totals.items():
                if figure.name in each.counters:
                    counter.add_metric(key, each.counters[figure.name])
            yield counter
        histogram = HistogramMetricFamily(DURATION.name, DURATION.meaning, labels=DURATION.labels)
        limits = [*(str(limit) for limit in DURATION_LIMITS), "+Inf"]
        for key, each in totals.items():
            histogram.add_metric(key, list(zip(limits, accumulate(each.batches), strict=True)), each.seconds)
        yield histogram
