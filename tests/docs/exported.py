"""Runs the page's blocks that export the figures of queries, and asks what came out: by a scrape, and by OTLP."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import requests
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

OTLP = "opentelemetry.exporter.otlp.proto.http.metric_exporter"


class Exporter(MetricExporter):
    """Stands for the exporter by OTLP, which is no dependency: it keeps what the SDK hands over to be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[MetricsData] = []

    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **_: Any) -> MetricExportResult:
        self.sent.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:
        pass


class Figures:
    """What has come out of query 'orders'."""

    def __init__(self, names: dict[str, Any], exporters: list[Exporter]) -> None:
        self._names = names
        self._exporters = exporters

    @property
    def ended(self) -> bool:
        """Whether both tell the events of the query, and both say no more how fast it is, as it has ended."""
        scraped, sent = self._scraped(), self._sent()
        counted = scraped.get("spark_streams_query_events_total", 0), sent.get("messaging.client.consumed.messages", 0)
        rates = "spark_streams_query_input_events_per_second" in scraped, "spark_streams.query.input.rate" in sent
        return counted[0] == counted[1] > 0 and rates == (False, False)

    def _scraped(self) -> dict[str, float]:
        port = self._names["server"].server_port
        text = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {sample.name: sample.value for sample in samples if sample.labels.get("query") == "orders"}

    def _sent(self) -> dict[str, float]:
        self._names["provider"].force_flush()
        (exporter,) = self._exporters
        points = [
            (metric.name, point)
            for resource in exporter.sent[-1].resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        ]
        return {name: point.value for name, point in points if hasattr(point, "value")}


@contextmanager
def exported(
    spark: Any, names: dict[str, Any], run: Callable[[str], None], prometheus: str, opentelemetry: str
) -> Iterator[Figures]:
    """Run the blocks with a free port and an exporter of ours; they end with the context.

    Args:
        spark: the session.
        names: the names that the blocks define.
        run: runs a block with these names.
        prometheus: the block for Prometheus.
        opentelemetry: the block for OpenTelemetry.
    """
    exporters: list[Exporter] = []
    listeners: list[Any] = []

    class Kept(Exporter):
        def __init__(self) -> None:
            super().__init__()
            exporters.append(self)

    stand_in = ModuleType(OTLP)
    stand_in.OTLPMetricExporter = Kept  # type: ignore[attr-defined]
    above = {OTLP.rsplit(".", depth)[0]: ModuleType("above") for depth in range(1, 5)}
    add = spark.streams.addListener
    with (
        patch.dict(sys.modules, {**above, OTLP: stand_in}),
        patch.object(
            type(spark.streams), "addListener", lambda _, listener: (listeners.append(listener), add(listener))
        ),
    ):
        serving = 'server, thread = start_http_server(0, "127.0.0.1")'
        assert "start_http_server(9400)" in prometheus
        run(prometheus.replace("start_http_server(9400)", serving))
        run(opentelemetry)
    try:
        yield Figures(names, exporters)
    finally:
        for listener in listeners:
            spark.streams.removeListener(listener)
        names["provider"].shutdown()
        names["server"].shutdown()
        names["server"].server_close()
        names["thread"].join()
        REGISTRY.unregister(names["metrics"])
