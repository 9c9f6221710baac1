"""What a query tells of itself while it runs, the same for all three formats: progress, listener, log lines."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import DataFrame, SparkSession

from spark_streams.log import ReferenceLog, StreamConfig
from spark_streams.monitoring import Progress, PrometheusMetrics, StreamProgressListener, observed
from spark_streams.rows import MESSAGE_SCHEMA
from spark_streams.server import AmqpConfig, FeedConfig, RabbitConfig, ServerThread
from spark_streams.testing import eventually
from spark_streams.wire.amqp.columns.encode import encode_columns
from tests.e2e.by_day import FORMATS, by_day
from tests.faults.proxy import TcpProxy

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

WAIT_S = 240
SMALL = StreamConfig(segment_max_bytes=2_000, retention_max_bytes=2_000)


class Said:
    """The file of all that Spark's Python processes say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: dict[str, int] = {}

    def lines(self, pattern: str, number: int) -> None:
        """Wait until they have said so many lines that match, and check that they said no more."""
        eventually(lambda: self._count(pattern) >= number, f"{number} lines with {pattern}", WAIT_S)
        self._seen[pattern] = number
        assert self._count(pattern) == number

    def no_more(self) -> None:
        """Check once more, when much has been done since."""
        assert {pattern: self._count(pattern) for pattern in self._seen} == self._seen

    def _count(self, pattern: str) -> int:
        return len(re.findall(pattern, self.path.read_text()))


class Log:
    """A served log with a stream of two partitions, and what queries on it tell; ``said`` has the log lines."""

    def __init__(self, folder: Path, format: str, said: Said) -> None:
        self.format, self.said = format, said
        self.log = ReferenceLog(folder).__enter__()
        self.server = ServerThread(self.log, AmqpConfig(port=0), RabbitConfig(port=0), FeedConfig(port=0, page_size=5))
        self.server.start()
        self.stream = f"orders-of-{format}"
        self.log.create_stream(self.stream, 2, SMALL)
        self.log.create_stream("copies", 1)
        self.queries: set[str] = set()
        self.heard: list[Progress] = []
        self.figures = CollectorRegistry()
        self.listener = StreamProgressListener(self.heard.append, PrometheusMetrics(self.figures))

    def close(self) -> None:
        self.server.stop()
        self.log.close()

    @property
    def told(self) -> list[Progress]:
        """What queries on it told; Spark may still tell something of one that another test of the session ran."""
        return [progress for progress in self.heard if progress.query in self.queries]

    def figure(self, name: str, query: str, **labels: str) -> float | None:
        """What Prometheus would be told of a query on the stream; None for no series."""
        where = {"query": query, "stream": self.stream, **labels}
        return self.figures.get_sample_value(f"spark_streams_query_{name}", where)

    def append(self, partition: int, *values: str) -> None:
        types = pa.array([[("type", v[:1])] for v in values], MESSAGE_SCHEMA.field("application_properties").type)
        keys = pa.array([v[:1] for v in values])
        columns = {"value": pa.array([v.encode() for v in values]), "key": keys, "application_properties": types}
        self.server.call(
            lambda: self.log.stream(self.stream).partitions[str(partition)].append(encode_columns(columns))
        )

    def overflow(self) -> None:
        """Append to partition 0 until retention has removed its first 30 events."""
        for n in range(60):
            self.append(0, f"late-{n}-" + "x" * 200)
        self.server.call(self.log.enforce_retention)
        assert self.log.stream(self.stream).partitions["0"].first_offset > 30

    def source_line(self, query: str) -> str:
        """What the line of each micro-batch of a query on it matches."""
        label = f"query '{query}': {self.format} stream '{self.stream}'"
        return rf" spark_streams\.spark\.progress: {label}: batch of [0-9]+ events"

    def sink_line(self, query: str, stream: str, batch: int) -> str:
        """What the line of a micro-batch that a query has written matches."""
        label = f"query '{query}': {self.format} stream '{stream}'"
        return rf" spark_streams\.spark\.sink\.writer: {label}: batch {batch}: "

    def partition(self, number: int) -> str:
        return f"{self.stream}-{number}" if self.format == "rabbitmq-stream" else str(number)

    def options(self, stream: str | None = None, **more: str) -> dict[str, str]:
        stream = self.stream if stream is None else stream
        if self.format == "amqp-events":
            return {"url": self.server.amqp_url, "stream": stream, **more}
        if self.format == "rabbitmq-stream":
            which = "superStream" if stream == self.stream else "stream"
            return {"url": self.server.rabbit_url, which: stream, **more}
        return {"url": f"{self.server.feed_url}/{stream}", **more}


@pytest.fixture(scope="module")
def said(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Said]:
    """The file of all that Spark's Python processes say, in place of this process's stderr.

    Spark takes the stderr of Java for a process when it starts that. The daemons of other modules' tests run on, with
    what that was before: a setting that goes into a daemon's environment has Spark start others.
    """
    path = tmp_path_factory.mktemp("said") / "stderr"
    java = spark._jvm.java
    setting = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
    before, was = java.lang.System.err, spark.conf.get(setting)
    spark.conf.set(setting, "false" if was == "true" else "true")
    java.lang.System.setErr(java.io.PrintStream(java.io.FileOutputStream(str(path), True), True))
    said = Said(path)
    yield said
    spark.conf.set(setting, was)
    java.lang.System.setErr(before)
    said.no_more()


@pytest.fixture(params=FORMATS)
def log(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, rate_limits: bool, said: Said
) -> Iterator[Log]:
    if request.param == "feedapi" and not rate_limits:
        pytest.skip("streams of feeds need Spark 4.2")
    made = Log(tmp_path / "log", request.param, said)
    spark.streams.addListener(made.listener)
    yield made
    spark.streams.removeListener(made.listener)
    made.close()


def commits(folder: Path) -> set[int]:
    """The micro-batches that are done, by the checkpoint."""
    return {int(path.name) for path in (folder / "checkpoint" / "commits").glob("[0-9]*")}


def run(spark: SparkSession, log: Log, folder: Path, name: str, look: Callable[[Any], Any], **more: str) -> Any:
    """Read what there is now; return the query once its listener was told of all batches, and a line of each came."""
    log.queries.add(name)
    more, before = {"queryName": name, **more}, commits(folder)
    frame = look(spark.readStream.format(log.format).options(**log.options(**more)).load()).select("value", "key")
    if name == "figures":
        writer = frame.writeStream.format(log.format).options(**log.options("copies"))
    else:
        writer = frame.writeStream.format("noop")
    writer = writer.queryName(name).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_S)
    batches = {progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]}
    eventually(
        lambda: batches <= {told.batch for told in log.told if told.query == name}, "the listener was told", WAIT_S
    )
    done = commits(folder) - before
    log.said.lines(log.source_line(name), len(done))
    if name == "figures":
        for batch in done:
            log.said.lines(log.sink_line(name, "copies", batch), 1)
    eventually(
        lambda: log.figure("last_trigger_timestamp_seconds", name) is None, "the listener was told of the end", WAIT_S
    )
    assert log.figure("events_total", name) == sum(told.events for told in log.told if told.query == name)
    return query


@by_day("log", "rabbitmq-stream", "feedapi")
def test_lag_rates_and_bytes(spark: SparkSession, log: Log, tmp_path: Path, rate_limits: bool) -> None:
    zero, one = log.partition(0), log.partition(1)
    log.append(0, *(f"a{n}" for n in range(10)))
    log.append(1, *(f"b-{n:03d}" for n in range(10)))
    limit = {"maxOffsetsPerTrigger": "10"} if rate_limits else {}
    query = run(
        spark,
        log,
        tmp_path,
        "figures",
        lambda frame: observed(frame, log.stream, [zero, one]),
        startingOffsets="earliest",
        **limit,
    )
    told = [progress for progress in log.told if progress.events]
    assert sum(progress.events for progress in told) == 20
    assert {(progress.query, progress.stream) for progress in told} == {("figures", log.stream)}
    assert sum(progress.bytes or 0 for progress in told) == 10 * 2 + 10 * 5
    assert len(told) > 1 or not rate_limits
    for progress in told:
        assert progress.events <= 10 or not rate_limits
        assert progress.events_per_second > 0
        assert progress.rows_written == progress.events
        assert progress.bytes_per_second == pytest.approx((progress.bytes or 0) / progress.seconds)
    assert (log.figure("rows_written_total", "figures"), log.figure("bytes_total", "figures")) == (20, 10 * 2 + 10 * 5)
    if not rate_limits:
        assert told[0].partitions == {}, "Spark asks the source for more from 4.2 on"
        return
    assert {(progress.format, progress.retries) for progress in told} == {(log.format, 0)}
    assert (log.figure("retries_total", "figures"), log.figure("losses_total", "figures")) == (0, 0)
    read = dict.fromkeys((zero, one), 0)
    for progress in told:
        assert progress.partitions.keys() == {zero, one}
        assert sum(each.bytes or 0 for each in progress.partitions.values()) == progress.bytes
        for name, each in progress.partitions.items():
            assert each.events is not None
            read[name] += each.events
            assert each.bytes == each.events * {zero: 2, one: 5}[name]
            # A feed does not say how much it has: its lag is known once its end was seen.
            assert each.lag == 10 - read[name] or (log.format == "feedapi" and each.lag is None)
        lags = [each.lag for each in progress.partitions.values() if each.lag is not None]
        if len(lags) < 2:
            assert progress.metrics == {}
            continue
        assert progress.metrics == {
            "minOffsetsBehindLatest": str(min(lags)),
            "maxOffsetsBehindLatest": str(max(lags)),
            "avgOffsetsBehindLatest": str(sum(lags) / 2),
        }
    assert read == {zero: 10, one: 10}
    last = json.loads([p for p in query.recentProgress if p["numInputRows"]][-1]["sources"][0]["latestOffset"])
    assert sum(last["planned"]["events"].values()) == told[-1].events
    if log.format == "feedapi":
        assert sum(last["planned"]["bytes"].values()) > (told[-1].bytes or 0), "of whole lines"
        assert last["fetched"] == {zero: 0, one: 0}
    else:
        assert last["lag"] == {zero: 0, one: 0}


@by_day("log", "amqp-events")
def test_filters_and_losses(
    spark: SparkSession, log: Log, tmp_path: Path, rate_limits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    name = "key" if log.format == "feedapi" else "type"
    more = {"startingOffsets": "earliest", "filter": f"{name} = 'a' OR {name} = 'l'", "failOnDataLoss": "false"}
    log.append(0, "a1", "b2", "a3")
    run(spark, log, tmp_path, "first", lambda frame: frame, **more)
    log.overflow()
    with caplog.at_level(logging.WARNING, "spark_streams.monitoring"):
        limit = {"maxOffsetsPerTrigger": "3"} if rate_limits else {}
        run(spark, log, tmp_path, "second", lambda frame: frame, **more, **limit)
    first, *later = (progress for progress in log.told if progress.events)
    assert len(later) > 1 or not rate_limits
    assert first.events == 2
    assert sum(progress.events for progress in later) == 60 - (
        log.log.stream(log.stream).partitions["0"].first_offset - 3
    )
    if not rate_limits:
        assert first.filter is None
        return
    assert first.partitions[log.partition(0)].events == 3, "before what the tasks check"
    assert first.filter == more["filter"]
    assert first.residual_filter == first.filter
    if log.format == "amqp-events":
        assert first.pushed_filter is not None and first.pushed_filter.startswith("SQL: ")
    else:
        assert first.pushed_filter is None
    assert first.losses == ()
    (loss,) = [loss for progress in later for loss in progress.losses]
    assert loss.partition == log.partition(0)
    assert loss.asked.startswith("after ")
    said = [record for record in caplog.records if record.name == "spark_streams.monitoring"]
    (warning,) = {record.getMessage() for record in said}  # of each listener that the session has
    assert loss.available in warning
    assert log.stream in warning
    assert (log.figure("losses_total", "first"), log.figure("losses_total", "second")) == (0, 1)


@by_day("log", "feedapi", of=FORMATS[1:])
def test_filters_that_are_pushed(spark: SparkSession, log: Log, tmp_path: Path, rate_limits: bool) -> None:
    """By the filter values of messages, and to a filter that the feed's discovery offers; SQL is pushed above."""
    more = {"startingOffsets": "earliest", "filter": "key = 'a'"}
    if log.format == "rabbitmq-stream":
        more = {"startingOffsets": "earliest", "filter": "type = 'a'", "filterValueFrom": "application_properties.type"}
        for kind in ("a", "b"):
            frame = spark.range(0, 2, 1, 1).selectExpr(
                f"'{kind}' AS key",
                f"concat('{kind}', id) AS value",
                f"map('type', '{kind}') AS application_properties",
            )
            sink = frame.write.format(log.format).options(**log.options(filterValueColumn="key"))
            sink.mode("append").save()
    else:
        log.append(0, "a0", "b0", "a1", "b1")
    run(spark, log, tmp_path, "pushed", lambda frame: frame, **more)
    told = [progress for progress in log.told if progress.events]
    assert sum(progress.events for progress in told) == 2
    if not rate_limits:
        assert told[0].filter is None
        return
    assert {progress.filter for progress in told} == {more["filter"]}
    pushed, residual = {progress.pushed_filter for progress in told}, {progress.residual_filter for progress in told}
    if log.format == "feedapi":
        assert (pushed, residual) == ({"filter-key=a"}, {None})
    else:
        assert (pushed, residual) == ({"filter values 'a'"}, {more["filter"]}), "other values may pass a bloom filter"


@pytest.mark.nightly  # 12 runs, some seconds each
@pytest.mark.parametrize("log", FORMATS, indirect=True)
def test_each_micro_batch_of_many_runs_has_its_lines_in_foreach_batch_into_two_sinks_too(
    spark: SparkSession, log: Log, tmp_path: Path, rate_limits: bool
) -> None:
    log.log.create_stream("others", 1)
    limit = {"maxOffsetsPerTrigger": "8"} if rate_limits else {}
    options = log.options(startingOffsets="earliest", queryName="many", **limit)
    frame = spark.readStream.format(log.format).options(**options).load().select("value", "key")

    def into_two(rows: DataFrame, _: int) -> None:
        for stream in ("copies", "others"):
            rows.write.format(log.format).options(**log.options(stream)).mode("append").save()

    for _ in range(12):
        before = commits(tmp_path)
        log.append(0, *(f"a{n}" for n in range(13)))
        log.append(1, *(f"b{n}" for n in range(7)))
        writer = frame.writeStream.queryName("many").option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.foreachBatch(into_two).trigger(availableNow=True).start().awaitTermination(WAIT_S)
        done = commits(tmp_path)
        assert len(done - before) > 1 or not rate_limits
        log.said.lines(log.source_line("many"), len(done))
        for batch in done - before:
            for stream in ("copies", "others"):
                log.said.lines(log.sink_line("many", stream, batch), 1)


@pytest.mark.nightly  # a query that waits for its source's pauses
@pytest.mark.parametrize("log", FORMATS, indirect=True)
def test_what_a_source_tried_again_and_how_a_query_that_waits_stands(
    spark: SparkSession, log: Log, tmp_path: Path, rate_limits: bool
) -> None:
    if not rate_limits:
        pytest.skip("Spark asks the source for more from 4.2 on")
    log.queries.add("tried")
    options = log.options(startingOffsets="earliest", queryName="tried")
    with TcpProxy(urlsplit(options["url"]).port) as proxy:
        through = {"loadBalancer": "true"} if log.format == "rabbitmq-stream" else {}
        frame = spark.readStream.format(log.format).options(**options | {"url": proxy.url(options["url"])} | through)
        log.append(0, "a1", "a2")
        writer = frame.load().writeStream.format("noop").queryName("tried")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            eventually(lambda: log.figure("events_total", "tried") == 2, "the first batch was told", WAIT_S)
            assert log.figure("retries_total", "tried") == 0
            assert log.figure("lag_events", "tried", partition=log.partition(0)) in (0, None)
            eventually(
                lambda: log.figure("processed_events_per_second", "tried") == 0,
                "Spark tells that nothing comes",
                WAIT_S,
            )
            before = log.said.path.read_text().count("; trying again in")
            proxy.refuse()
            proxy.cut()
            eventually(lambda: log.said.path.read_text().count("; trying again in") > before, "a retry", WAIT_S)
            proxy.accept()
            log.append(0, "a3")
            eventually(lambda: log.figure("events_total", "tried") == 3, "the next batch was told", WAIT_S)
            tried = log.figure("retries_total", "tried")
            assert tried == sum(progress.retries or 0 for progress in log.told) > 0
            assert log.figure("input_events_per_second", "tried") == log.told[-1].input_events_per_second > 0
        finally:
            query.stop()
    eventually(lambda: log.figure("input_events_per_second", "tried") is None, "the end was told", WAIT_S)
    assert log.figure("retries_total", "tried") == tried


@by_day("log", "amqp-events")
def test_what_tasks_log_is_a_table_of_sparks(spark: SparkSession, log: Log) -> None:
    if not hasattr(spark.tvf, "python_worker_logs"):
        pytest.skip("Spark collects what Python loggers say from 4.1 on")
    where = (log.stream, log.partition(0))

    def mine() -> list[Any]:
        said = spark.tvf.python_worker_logs().where("logger LIKE 'spark_streams.%'").orderBy("ts").collect()
        return [row for row in said if (row.context.get("stream"), row.context.get("partition")) == where]

    def counted() -> list[Any]:
        return [row.context for row in mine() if row.logger == "spark_streams.spark.tasks"]

    log.append(0, "a1", "a22")
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        frame = spark.read.format(log.format).options(**log.options(failOnDataLoss="false")).load().select("value")
        assert len(frame.collect()) == 2
        log.overflow()
        # The tasks of a frame are planned once: by now their events are gone.
        assert not {b"a1", b"a22"} & {bytes(row.value) for row in frame.collect()}
        # Spark stores it some time after the task has ended.
        eventually(lambda: len(counted()) >= 2, "Spark has stored what both tasks said")
        assert (counted()[0]["events"], counted()[0]["bytes"]) == ("2", "5")
        lost = [row.msg for row in mine() if row.level == "WARNING" and "Events may have been lost" in row.msg]
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    # A feed that is read from its beginning says nothing of what was there before.
    assert lost == [] if log.format == "feedapi" else lost != []
