"""The listener, with the progress that Spark 4.3 gave for a query."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace as Obj
from typing import Any

import pytest

from spark_streams.monitoring import DataLoss, PartitionProgress, Progress, StreamProgressListener

END = '{"version": 2, "stream": "orders", "partitions": {"0": {"after": "e9"}}, "incarnation": "i"}'
LOSS = {"partition": "1", "asked": "after 'e4'", "available": "the earliest event there is has offset 'e7'"}
NEWEST: dict[str, Any] = {
    "version": 1,
    "stream": "orders",
    "partitions": {"0": {"after": "e9"}},
    "lag": {"0": 12, "1": None},
    "planned": {"events": {"0": 60, "1": 30}, "bytes": {}},
    "metrics": {},
    "losses": [],
    "retries": 2,
    "format": "rabbitmq-stream",
}


class Row(dict[str, int]):
    """As Spark's."""

    def asDict(self) -> dict[str, int]:
        return dict(self)


def event(end: str, newest: str, name: str | None = "q", rate: float = 45.0, **more: Any) -> Obj:
    source = Obj(
        endOffset=end, latestOffset=newest, numInputRows=90, processedRowsPerSecond=rate, inputRowsPerSecond=rate
    )
    about = {
        "name": name,
        "id": "1-2-3",
        "batchId": 7,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "batchDuration": 2_000,
        "sources": [source],
        "observedMetrics": {},
        "sink": Obj(numOutputRows=-1),
        **more,
    }
    return Obj(progress=Obj(**about))


def told(*events: Obj) -> list[Progress]:
    out: list[Progress] = []
    listener = StreamProgressListener(out.append)
    for each in events:
        listener.onQueryProgress(each)
    return out


def test_a_batch_of_ours() -> None:
    (progress,) = told(event(END, json.dumps(NEWEST), sink=Obj(numOutputRows=80)))
    assert progress == Progress(
        query="q",
        batch=7,
        timestamp="2026-01-01T00:00:00.000Z",
        stream="orders",
        events=90,
        events_per_second=45.0,
        input_events_per_second=45.0,
        seconds=2.0,
        rows_written=80,
        partitions={"0": PartitionProgress(12, 60), "1": PartitionProgress(None, 30)},
        retries=2,
        format="rabbitmq-stream",
    )
    assert progress.lag == {"0": 12, "1": None}
    assert str(progress) == "query 'q' batch 7: 90 events of stream 'orders', 45 events/s, lag {0: 12, 1: ?}"
    assert json.loads(json.dumps(progress.to_json()))["partitions"]["0"] == {"lag": 12, "events": 60, "bytes": None}


def test_without_a_name_without_lag_without_rows() -> None:
    (progress,) = told(event(END, "null", None, float("nan")))
    assert (progress.query, progress.events_per_second, progress.rows_written) == ("1-2-3", 0.0, None)
    assert (progress.partitions, progress.lag, progress.bytes) == ({}, {}, None)
    assert str(progress) == "query '1-2-3' batch 7: 90 events of stream 'orders', 0 events/s"


def test_the_report_of_an_older_version_says_nothing_of_retries() -> None:
    older = {key: value for key, value in NEWEST.items() if key not in ("retries", "format")}
    (progress,) = told(event(END, json.dumps(older)))
    assert (progress.retries, progress.format, progress.lag) == (None, None, {"0": 12, "1": None})


def test_other_sources_are_none_of_our_business() -> None:
    assert told(event("17", "18"), event("not json", "x"), event('{"logOffset": 3}', "null")) == []


def test_bytes_are_those_that_were_planned_or_observed() -> None:
    newest = {**NEWEST, "planned": {"events": {"0": 90}, "bytes": {"0": 4_000}}, "fetched": {"0": 0}}
    (planned,) = told(event(END, json.dumps(newest)))
    assert (planned.bytes, planned.bytes_per_second) == (4_000, 2_000.0)
    assert planned.partitions["0"].bytes == 4_000
    assert ", 4000 bytes, 2000 bytes/s, lag" in str(planned)
    seen = Row({"events": 90, "bytes": 300, "bytes of 1": 100})
    (alone,) = told(event(END, json.dumps(newest), observedMetrics={"spark-streams": seen}))
    (named,) = told(event(END, json.dumps(newest), observedMetrics={"spark-streams orders": seen, "mine": Row()}))
    for progress in (alone, named):
        assert (progress.bytes, progress.bytes_per_second) == (300, 150.0)
        assert (progress.partitions["0"].bytes, progress.partitions["1"].bytes) == (None, 100)
    (others,) = told(event(END, json.dumps(newest), observedMetrics={"spark-streams carts": seen}))
    assert others.bytes == 4_000


def test_with_two_streams_an_observation_needs_a_name() -> None:
    both = event(END, json.dumps(NEWEST), observedMetrics={"spark-streams": Row(events=1, bytes=2)})
    both.progress.sources *= 2
    assert [progress.bytes for progress in told(both)] == [None, None]


def test_filters_and_metrics_are_passed_on() -> None:
    pushdown = {"filter": "key = 'a' AND x = 1", "pushed": "a=a", "residual": "x = 1"}
    metrics = {"minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "4", "avgOffsetsBehindLatest": "2.0"}
    (progress,) = told(event(END, json.dumps({**NEWEST, "pushdown": pushdown, "metrics": metrics})))
    assert (progress.filter, progress.pushed_filter) == (pushdown["filter"], "a=a")
    assert (progress.residual_filter, progress.metrics) == ("x = 1", metrics)


def test_losses_are_warned_of_and_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "spark_streams.monitoring"):
        (progress,) = told(event(END, json.dumps({**NEWEST, "losses": [LOSS]})))
    assert progress.losses == (DataLoss(**LOSS),)
    line, warning = caplog.records
    assert (line.levelno, warning.levelno) == (logging.INFO, logging.WARNING)
    assert warning.getMessage() == (
        "query 'q' batch 7: stream 'orders' '1': reading was to go on after 'e4', but the earliest event there is has "
        "offset 'e7'"
    )
    assert warning.context == {"stream": "orders", **LOSS}  # type: ignore[attr-defined]


def test_a_function_that_fails_is_logged_and_keeps_no_other_from_its_report(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def report(progress: Progress) -> None:
        calls.append(progress.batch)
        raise RuntimeError("no room")

    others: list[Progress] = []
    listener = StreamProgressListener(report, others.append)
    for _ in range(2):
        listener.onQueryProgress(event(END, json.dumps(NEWEST)))
    assert (calls, [progress.batch for progress in others]) == ([7, 7], [7, 7])
    assert caplog.text.count("RuntimeError: no room") == 2


def test_who_wants_to_know_is_told_of_queries_of_ours_that_wait_and_end() -> None:
    heard: list[tuple[str, ...]] = []

    class Watcher:
        def __call__(self, progress: Progress) -> None:
            heard.append(("batch", progress.query))

        def query_idle(self, query: str, timestamp: str) -> None:
            heard.append(("idle", query, timestamp))

        def query_ended(self, query: str) -> None:
            heard.append(("ended", query))
            raise RuntimeError("no room")

    listener = StreamProgressListener(lambda progress: None, Watcher())
    idle, ended = Obj(id="1-2-3", timestamp="2026-01-01T00:00:10.000Z"), Obj(id="1-2-3")
    listener.onQueryIdle(idle)
    listener.onQueryTerminated(ended)
    assert heard == [], "it has had no batch of ours"
    listener.onQueryProgress(event(END, json.dumps(NEWEST)))
    listener.onQueryIdle(idle)
    for _ in range(2):
        listener.onQueryTerminated(ended)
    assert heard == [("batch", "q"), ("idle", "q", "2026-01-01T00:00:10.000Z"), ("ended", "q")]
