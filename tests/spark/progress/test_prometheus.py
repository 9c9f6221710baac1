"""What Prometheus is told of queries: by the text that it scrapes, and that its own parser reads."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from spark_streams.errors import PackageMissing
from spark_streams.monitoring import PrometheusMetrics
from spark_streams.spark.progress.figures import COUNTERS, DURATION, FIGURES, GAUGES
from spark_streams.spark.progress.prometheus import ENDED_KEPT
from tests.spark.progress.batches import batch


class Scraped:
    """A registry with the figures of queries, and what a scrape of it finds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = PrometheusMetrics(self.registry)

    @property
    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def __call__(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the values of one name's series, by the values of their labels."""
        families = text_string_to_metric_families(self.text)
        samples = (sample for family in families for sample in family.samples)
        name = f"spark_streams_query_{name}"
        return {tuple(sample.labels.values()): sample.value for sample in samples if sample.name == name}


def test_a_batch_as_text() -> None:
    scraped = Scraped()
    scraped.metrics(batch(lag={"0": 12, "1": None, "2": 0}, bytes=400, rows_written=80, losses=1, retries=3))
    lines = [line for line in scraped.text.splitlines() if not line.startswith("#") and "_bucket" not in line]
    where = '{query="q",stream="orders"}'
    assert lines == [
        'spark_streams_query_lag_events{partition="0",query="q",stream="orders"} 12.0',
        'spark_streams_query_lag_events{partition="2",query="q",stream="orders"} 0.0',
        f"spark_streams_query_input_events_per_second{where} 30.0",
        f"spark_streams_query_processed_events_per_second{where} 45.0",
        f"spark_streams_query_last_trigger_timestamp_seconds{where} 100.5",
        f"spark_streams_query_events_total{where} 90.0",
        f"spark_streams_query_bytes_total{where} 400.0",
        f"spark_streams_query_rows_written_total{where} 80.0",
        f"spark_streams_query_losses_total{where} 1.0",
        f"spark_streams_query_retries_total{where} 3.0",
        f"spark_streams_query_batch_duration_seconds_count{where} 1.0",
        f"spark_streams_query_batch_duration_seconds_sum{where} 2.0",
    ]
    told = {line.split()[2]: line.split()[3] for line in scraped.text.splitlines() if line.startswith("# TYPE")}
    kinds = {**dict.fromkeys(GAUGES, "gauge"), **dict.fromkeys(COUNTERS, "counter"), DURATION: "histogram"}
    assert told == {figure.name: kinds[figure] for figure in FIGURES}


def test_what_is_not_known_is_no_series_and_not_0() -> None:
    scraped = Scraped()
    scraped.metrics(batch(lag={}, retries=None))
    for name in ("lag_events", "bytes_total", "rows_written_total", "losses_total", "retries_total"):
        assert scraped(name) == {}, name
    assert scraped("events_total") == {("q", "orders"): 90}


def test_counters_add_up_and_gauges_are_the_last() -> None:
    scraped = Scraped()
    for lag, seconds in ((12, 0.05), (7, 0.2), (3, 700.0)):
        scraped.metrics(batch(lag={"0": lag}, seconds=seconds, losses=1, retries=2))
    scraped.metrics(batch(stream="carts", lag={"0": 5}))
    assert scraped("lag_events") == {("0", "q", "orders"): 3, ("0", "q", "carts"): 5}
    assert scraped("events_total") == {("q", "orders"): 270, ("q", "carts"): 90}
    assert scraped("losses_total") == {("q", "orders"): 3, ("q", "carts"): 0}
    assert scraped("retries_total") == {("q", "orders"): 6, ("q", "carts"): 0}
    buckets = {labels: n for labels, n in scraped("batch_duration_seconds_bucket").items() if "orders" in labels}
    by_limit = {labels[0]: count for labels, count in buckets.items()}
    assert by_limit == {
        "0.05": 1,
        "0.1": 1,
        "0.25": 2,
        "0.5": 2,
        "1.0": 2,
        "2.5": 2,
        "5.0": 2,
        "10.0": 2,
        "30.0": 2,
        "60.0": 2,
        "120.0": 2,
        "300.0": 2,
        "600.0": 2,
        "+Inf": 3,
    }
    assert scraped("batch_duration_seconds_sum")["q", "orders"] == pytest.approx(700.25)


def test_a_partition_that_is_gone_has_no_lag_any_more() -> None:
    scraped = Scraped()
    scraped.metrics(batch(lag={"0": 12, "1": 3}))
    scraped.metrics(batch(lag={"1": 2, "2": None}))
    assert scraped("lag_events") == {("1", "q", "orders"): 2}


def test_a_query_that_has_ended_has_no_lag_and_no_rate_and_counts_on_when_it_starts_again() -> None:
    scraped = Scraped()
    scraped.metrics(batch())
    scraped.metrics(batch("other"))
    scraped.metrics.query_ended("q")
    assert scraped("lag_events") == {("0", "other", "orders"): 12}
    for name in ("input_events_per_second", "processed_events_per_second", "last_trigger_timestamp_seconds"):
        assert scraped(name).keys() == {("other", "orders")}
    assert scraped("events_total") == {("q", "orders"): 90, ("other", "orders"): 90}
    scraped.metrics(batch())
    assert scraped("events_total")["q", "orders"] == 180


def test_of_many_queries_that_have_ended_the_last_are_kept() -> None:
    scraped = Scraped()
    scraped.metrics(batch("again"))
    for number in range(ENDED_KEPT + 1):
        scraped.metrics(batch(f"run-{number}"))
        scraped.metrics.query_ended("again")
        scraped.metrics(batch("again"))
        scraped.metrics.query_ended(f"run-{number}")
    kept = {query for query, _ in scraped("events_total")}
    assert kept == {"again", *(f"run-{number}" for number in range(1, ENDED_KEPT + 1))}
    assert {query for query, _ in scraped("input_events_per_second")} == {"again"}


def test_while_nothing_comes_the_rates_are_0_and_the_trigger_is_told() -> None:
    scraped = Scraped()
    scraped.metrics(batch())
    scraped.metrics.query_idle("q", "1970-01-01T00:03:20.000Z")
    scraped.metrics.query_idle("unknown", "1970-01-01T00:03:20.000Z")
    assert scraped("input_events_per_second") == scraped("processed_events_per_second") == {("q", "orders"): 0}
    assert scraped("last_trigger_timestamp_seconds") == {("q", "orders"): 200}
    assert scraped("lag_events") == {("0", "q", "orders"): 12}


def test_one_registry_has_the_figures_once() -> None:
    scraped = Scraped()
    with pytest.raises(ValueError, match="one PrometheusMetrics is enough"):
        PrometheusMetrics(scraped.registry)
    scraped.registry.unregister(scraped.metrics)
    PrometheusMetrics(scraped.registry)


def test_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    without: Any = None
    monkeypatch.setitem(sys.modules, "prometheus_client", without)
    with pytest.raises(PackageMissing, match="pip install prometheus-client"):
        PrometheusMetrics()
