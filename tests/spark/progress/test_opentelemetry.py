"""What OpenTelemetry is told of queries: by what its SDK's reader in memory finds."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from spark_streams.errors import PackageMissing
from spark_streams.monitoring import OpenTelemetryMetrics
from spark_streams.spark.progress.figures import DURATION_LIMITS, FIGURES
from tests.spark.progress.batches import batch


class Collected:
    """A provider with the figures of queries, and what it collects."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.metrics = OpenTelemetryMetrics(MeterProvider([self.reader], shutdown_on_exit=False))

    def all(self) -> dict[str, Any]:
        """Return all metrics that have points, by their names."""
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.data.data_points
        }

    def __call__(self, name: str) -> dict[tuple[Any, ...], float]:
        """Return the values of one metric, by query, stream and partition."""
        metric = self.all().get(name)
        points = [] if metric is None else metric.data.data_points
        names = ("spark_streams.query", "messaging.destination.name", "messaging.destination.partition.id")
        return {tuple(p.attributes[n] for n in names if n in p.attributes): p.value for p in points}


def test_a_batch() -> None:
    collected = Collected()
    collected.metrics(batch(bytes=400, rows_written=80, losses=1, retries=3))
    found = collected.all()
    assert {name: metric.unit for name, metric in found.items()} == {f.instrument: f.unit for f in FIGURES}
    values = {name: collected(name) for name in found if name != "messaging.process.duration"}
    assert values == {
        "spark_streams.query.lag": {("q", "orders", "0"): 12},
        "spark_streams.query.input.rate": {("q", "orders"): 30.0},
        "spark_streams.query.processing.rate": {("q", "orders"): 45.0},
        "spark_streams.query.last_trigger.time": {("q", "orders"): 100.5},
        "messaging.client.consumed.messages": {("q", "orders"): 90},
        "spark_streams.query.bytes": {("q", "orders"): 400},
        "spark_streams.query.rows_written": {("q", "orders"): 80},
        "spark_streams.query.losses": {("q", "orders"): 1},
        "spark_streams.query.retries": {("q", "orders"): 3},
    }
    (took,) = found["messaging.process.duration"].data.data_points
    assert (took.count, took.sum, tuple(took.explicit_bounds)) == (1, 2.0, DURATION_LIMITS)


@pytest.mark.parametrize(("format", "system"), [("rabbitmq-stream", "rabbitmq"), ("feedapi", "feedapi"), (None, None)])
def test_the_attributes_that_the_conventions_want(format: str | None, system: str | None) -> None:
    collected = Collected()
    collected.metrics(batch(format=format))
    found = collected.all()
    wanted = {"messaging.destination.name": "orders", "spark_streams.query": "q"}
    if system is not None:
        wanted["messaging.system"] = system
    for name, operation in (
        ("messaging.client.consumed.messages", {"messaging.operation.name": "receive"}),
        ("messaging.process.duration", {"messaging.operation.name": "process"}),
        ("spark_streams.query.retries", {}),
    ):
        (point,) = found[name].data.data_points
        assert dict(point.attributes) == wanted | operation


def test_what_is_not_known_is_not_told() -> None:
    collected = Collected()
    collected.metrics(batch(lag={}, retries=None))
    unknown = {f"spark_streams.query.{name}" for name in ("lag", "bytes", "rows_written", "losses", "retries")}
    assert collected.all().keys() == {figure.instrument for figure in FIGURES} - unknown


def test_what_is_gone_is_told_no_more() -> None:
    collected = Collected()
    collected.metrics(batch(lag={"0": 12, "1": 3}))
    collected.metrics(batch("other", lag={"0": 5}))
    assert len(collected("spark_streams.query.lag")) == 3
    collected.metrics(batch(lag={"1": 2}))
    assert collected("spark_streams.query.lag") == {("q", "orders", "1"): 2, ("other", "orders", "0"): 5}
    collected.metrics.query_ended("q")
    assert collected("spark_streams.query.lag") == {("other", "orders", "0"): 5}
    assert collected("spark_streams.query.input.rate") == {("other", "orders"): 30.0}
    assert collected("messaging.client.consumed.messages") == {("q", "orders"): 180, ("other", "orders"): 90}
    collected.metrics.query_idle("other", "1970-01-01T00:03:20.000Z")
    assert collected("spark_streams.query.input.rate") == {("other", "orders"): 0}


def test_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    without: Any = None
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", without)
    with pytest.raises(PackageMissing, match=r"pip install 'spark-streams\[opentelemetry\]'"):
        OpenTelemetryMetrics()
