"""The writers: when a row counts as written, what its message-id is, and what is said when it fails."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql import datasource

from spark_streams.client.retry import retries
from spark_streams.errors import DeliveryFailed, OptionError, SparkStreamsError
from spark_streams.spark.sink import writer as module
from spark_streams.spark.sink.columns import identify, message_columns
from spark_streams.spark.sink.sink import TaskName
from spark_streams.spark.sink.writer import BatchWriter, SinkCommit, StreamWriter


@dataclass
class FakeOutlet:
    """Takes rows; refuses the one whose value is ``bad`` at the next call after it, as a real peer does."""

    sent: list[tuple[object, str | None]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    refused: str | None = None

    def send(self, columns: Mapping[str, pa.Array], label: Callable[[int], str]) -> None:
        self._raise()
        values = columns["value"].to_pylist()
        ids = columns["message_id"].to_pylist() if "message_id" in columns else [None] * len(values)
        self.sent += zip(values, ids, strict=True)
        self.calls.append(f"send {len(values)}")
        if "bad" in values:
            self.refused = label(values.index("bad"))

    def flush(self) -> None:
        self._raise()
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")

    def _raise(self) -> None:
        if self.refused is not None:
            raise DeliveryFailed("rejected", "amqp:not-found", "no partition '9'", self.refused, "orders")


@dataclass
class FakeSink:
    """A sink that identifies rows by message-ids, or leaves that to the log (``identifies`` is False)."""

    outlet: FakeOutlet = field(default_factory=FakeOutlet)
    opened: list[tuple[TaskName, bool]] = field(default_factory=list)
    identifies: bool = True
    needs_stable: bool = False
    options: ClassVar[Any] = SimpleNamespace(log_level="info")
    label: ClassVar = "amqp-events stream 'orders'"
    repeats_of_batch: ClassVar = "goes out again"
    repeats_of_stream: ClassVar = "is known by its ids"

    def columns(self, rows: pa.RecordBatch, name: TaskName, first_row: int) -> dict[str, pa.Array]:
        columns = message_columns(rows)
        if self.identifies:
            identify(columns, name.prefix, first_row)
        return columns

    def open(self, name: TaskName, streaming: bool) -> FakeOutlet:
        if self.needs_stable and streaming and not name.stable:
            raise SparkStreamsError("no stable name")
        self.opened.append((name, streaming))
        return self.outlet


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The local properties that Spark gives a task of partition 3."""
    properties: dict[str, str] = {
        "sql.streaming.queryId": "query",
        "streaming.sql.batchId": "7",
        "spark.job.description": "copies\nid = query\nrunId = run\nbatch = 7",
    }

    class Context:
        @staticmethod
        def get() -> type[Context]:
            return Context

        @staticmethod
        def partitionId() -> int:
            return 3

        @staticmethod
        def getLocalProperty(name: str) -> str | None:
            return properties.get(name)

    monkeypatch.setattr(module, "TaskContext", Context)
    return properties


def batches(*runs: list[str], key: bool = False) -> Iterator[pa.RecordBatch]:
    for run in runs:
        columns = {"value": pa.array(run, pa.string())}
        if key:
            columns["key"] = pa.array([f"key-{v}" for v in run])
        yield pa.record_batch(list(columns.values()), names=list(columns))


def test_a_task_is_done_after_the_peer_accepted_all(task: dict[str, str]) -> None:
    sink = FakeSink()
    done = StreamWriter(sink).write(batches(["a", "b"], ["c"]))
    assert done == SinkCommit(partition=3, rows=3, first_id="query/7/3/0", last_id="query/7/3/2")
    assert sink.outlet.sent == [("a", "query/7/3/0"), ("b", "query/7/3/1"), ("c", "query/7/3/2")]
    assert sink.outlet.calls == ["send 2", "send 1", "flush", "close"]


def test_a_task_without_rows_does_not_connect(task: dict[str, str]) -> None:
    sink = FakeSink()
    assert StreamWriter(sink).write(batches([])) == SinkCommit(3, 0, None, None)
    assert sink.opened == []


def test_a_repeated_micro_batch_repeats_its_ids_and_another_has_others(task: dict[str, str]) -> None:
    first, again, other = FakeSink(), FakeSink(), FakeSink()
    StreamWriter(first).write(batches(["a", "b"]))
    StreamWriter(again).write(batches(["a"], ["b"]))
    task["streaming.sql.batchId"] = "8"
    StreamWriter(other).write(batches(["a", "b"]))
    assert first.outlet.sent == again.outlet.sent
    assert not {i for _, i in first.outlet.sent} & {i for _, i in other.outlet.sent}


def test_task_retries_of_a_batch_write_share_ids_and_writes_do_not(task: dict[str, str]) -> None:
    # inside foreachBatch a batch write sees the streaming query's properties, and must not use them
    planned = BatchWriter(FakeSink())
    attempts = [pickle.loads(pickle.dumps(planned)) for _ in range(2)]
    ids = [attempt.write(batches(["a"])).first_id for attempt in attempts]
    assert ids[0] == ids[1]
    assert ids[0].endswith("/0/3/0")
    assert "query" not in ids[0]
    assert BatchWriter(FakeSink()).write(batches(["a"])).first_id != ids[0]


def test_without_a_query_id_ids_are_unique_and_a_warning_tells(
    task: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    task.clear()
    writers = [StreamWriter(FakeSink()), StreamWriter(FakeSink())]
    ids = [w.write(batches(["a"])).first_id for w in (*writers, writers[0])]
    assert ids[0] == ids[2] != ids[1]
    assert "no query id" in caplog.text


def test_the_sink_knows_the_task_and_whether_its_name_is_kept_over_restarts(task: dict[str, str]) -> None:
    streaming, hidden, batch = FakeSink(), FakeSink(), FakeSink()
    StreamWriter(streaming).write(batches(["a"]))
    assert streaming.opened == [(TaskName("query", "7", 3, stable=True), True)]
    BatchWriter(batch).write(batches(["a"]))
    task.clear()
    StreamWriter(hidden).write(batches(["a"]))
    for sink, is_stream in ((hidden, True), (batch, False)):
        ((name, told),) = sink.opened
        assert (told, name.stable, name.partition) == (is_stream, False, 3)


def test_a_sink_may_refuse_a_name_that_a_restart_changes(task: dict[str, str]) -> None:
    StreamWriter(FakeSink(needs_stable=True)).write(batches(["a"]))
    task.clear()
    with pytest.raises(SparkStreamsError, match="no stable name"):
        StreamWriter(FakeSink(needs_stable=True)).write(batches(["a"]))


def test_a_sink_that_needs_no_message_ids(task: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    sink = FakeSink(identifies=False)
    done = StreamWriter(sink).write(batches(["a", "b"]))
    assert done == SinkCommit(3, 2, None, None)
    assert sink.outlet.sent == [("a", None), ("b", None)]
    with pytest.raises(DeliveryFailed, match=r"^row 1 of Spark partition 3 \(key 'key-bad'\) was rejected"):
        StreamWriter(FakeSink(identifies=False)).write(batches(["a", "bad"], key=True))
    StreamWriter(sink).abort([done, None], 5)
    assert "delivered; Spark partition 3: 2 rows; the other 1 tasks" in caplog.text


def test_a_refused_row_fails_the_task_and_is_named(task: dict[str, str]) -> None:
    sink = FakeSink()
    with pytest.raises(DeliveryFailed) as caught:
        StreamWriter(sink).write(batches(["a"], ["b", "bad"], key=True))
    assert str(caught.value) == (
        "row 2 of Spark partition 3 (key 'key-bad', message-id 'query/7/3/2') was rejected by stream 'orders': "
        "amqp:not-found: no partition '9'"
    )
    assert sink.outlet.calls == ["send 1", "send 2", "close"]


def test_a_long_key_is_cut_in_the_error(task: dict[str, str]) -> None:
    sink = FakeSink()
    rows = pa.record_batch([pa.array(["bad"]), pa.array(["k" * 10_000])], names=["value", "key"])
    with pytest.raises(DeliveryFailed) as caught:
        StreamWriter(sink).write(iter([rows]))
    assert "k" * 100 + "…'" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_rows_that_fail_upstream_close_the_connection(task: dict[str, str]) -> None:
    def upstream() -> Iterator[pa.RecordBatch]:
        yield from batches(["a"])
        raise RuntimeError("a UDF failed")

    sink = FakeSink()
    with pytest.raises(RuntimeError, match="a UDF failed"):
        StreamWriter(sink).write(upstream())
    assert sink.outlet.calls == ["send 1", "close"]


def test_abort_tells_what_may_have_been_delivered(caplog: pytest.LogCaptureFixture) -> None:
    StreamWriter(FakeSink()).abort([SinkCommit(0, 2, "q/5/0/0", "q/5/0/1"), None], 5)
    assert "batch 5 failed: 2 rows of 1 finished tasks were delivered" in caplog.text
    assert "Spark partition 0: 2 rows, 'q/5/0/0' to 'q/5/0/1'" in caplog.text
    words = "the other 1 tasks may have delivered some of theirs. What is written again is known by its ids"
    assert words in caplog.text
    caplog.clear()
    BatchWriter(FakeSink()).abort([None, None])
    assert "0 rows of 0 finished tasks" in caplog.text
    assert "What is written again goes out again" in caplog.text


def test_what_a_task_tried_again_is_in_the_line_of_its_micro_batch(
    task: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    class Twice(FakeOutlet):
        def flush(self) -> None:
            retries.add()
            super().flush()

    retries.add()  # by an earlier task of this process
    sink = FakeSink()
    sink.outlet = Twice()
    done = StreamWriter(sink).write(batches(["a"]))
    assert done.retries == 1
    with caplog.at_level(logging.INFO, "spark_streams.spark.sink.writer"):
        StreamWriter(sink).commit([done, done, SinkCommit(0, 2, "a", "b")], 7)
        StreamWriter(sink).commit([SinkCommit(0, 2, "a", "b")], 8)
    tried, not_tried = caplog.messages
    assert tried.endswith(" s, retries: 2")
    assert "retries" not in not_tried


def test_commit_counts_rows(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        StreamWriter(FakeSink()).commit([SinkCommit(0, 2, "a", "b"), SinkCommit(1, 3, "c", "d")], 9)
    assert "batch 9: 5 rows delivered" in caplog.text


@pytest.mark.parametrize("messages", [[None], [None, SinkCommit(1, 3, "c", "d"), None]], ids=["none", "some"])
def test_a_commit_without_a_tasks_message_is_an_error(messages: list[SinkCommit | None]) -> None:
    """As with a continuous trigger, which never calls ``write``."""
    told = rf"option 'trigger': {messages.count(None)} of {len(messages)} tasks have no commit message"
    with pytest.raises(OptionError, match=rf"{told}.*continuous.*stop it, and start it with processingTime"):
        StreamWriter(FakeSink()).commit(messages, 9)
    with pytest.raises(OptionError, match=told):
        BatchWriter(FakeSink()).commit(messages)


def test_the_end_of_a_micro_batch_tells_rates(caplog: pytest.LogCaptureFixture) -> None:
    # The clocks of the executors differ: the second task ended before the first one began.
    tasks = [
        SinkCommit(0, 300, "a", "b", 900, 100.0, 103.0),
        SinkCommit(1, 0, None, None),
        SinkCommit(2, 3, "c", "d", 9, 98.5, 99.0),
    ]
    with caplog.at_level(logging.INFO, "spark_streams.spark.sink.writer"):
        StreamWriter(FakeSink()).commit(tasks, 9)
        StreamWriter(FakeSink()).commit([], 10)
    assert [record.getMessage() for record in caplog.records] == [
        "amqp-events stream 'orders': batch 9: 303 rows delivered, 67 rows/s, 909 bytes, 202 bytes/s, "
        "by 2 tasks in 4.500 s",
        "amqp-events stream 'orders': batch 10: 0 rows delivered",
    ]


@pytest.mark.parametrize(
    ("described", "query"),
    [
        ("copies\nid = 3f-2\nrunId = run\nbatch = 7", "copies"),
        ("copies<br/>id = 3f-2<br/>runId = run<br/>batch = 7", "copies"),
        ("id = 3f-2\nrunId = run\nbatch = 7", "query"),
        ("what the user calls this job", "query"),
        (None, "query"),
    ],
)
def test_the_line_names_the_query_the_format_and_the_stream(
    task: dict[str, str], caplog: pytest.LogCaptureFixture, described: str | None, query: str
) -> None:
    task.pop("spark.job.description")
    if described is not None:
        task["spark.job.description"] = described
    with caplog.at_level(logging.INFO, "spark_streams.spark.sink.writer"):
        for kind in (StreamWriter, BatchWriter):  # the second one in foreachBatch
            writer = pickle.loads(pickle.dumps(kind(FakeSink())))
            done = writer.write(batches(["a"]))
            writer.commit([done], *([7] if kind is StreamWriter else []))
            writer.abort([None, done], *([7] if kind is StreamWriter else []))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    named = f"query '{query}': amqp-events stream 'orders': batch 7"
    assert [line.startswith(f"{named}: 1 rows delivered") for line in lines] == [True, False, True, False]
    assert [line.startswith(f"{named} failed: 1 rows of 1 finished") for line in lines] == [False, True, False, True]


def test_bytes_are_those_of_values(task: dict[str, str]) -> None:
    done = StreamWriter(FakeSink()).write(batches(["a", "bü"], ["ccc"], key=True))
    assert (done.rows, done.bytes) == (3, 7)
    assert done.began_at <= done.ended_at


def test_spark_hands_both_writers_arrow_batches() -> None:
    # Spark 4.0 knows no Arrow stream writer: there a stream's writer must be a DataSourceArrowWriter (tests/e2e)
    arrow = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceArrowWriter)
    assert issubclass(StreamWriter, arrow)
    assert issubclass(StreamWriter, datasource.DataSourceStreamWriter)
    assert issubclass(BatchWriter, datasource.DataSourceArrowWriter)
