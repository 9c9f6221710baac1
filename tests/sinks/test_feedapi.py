"""The sink of feeds without Spark: its promises, and the check before a write."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from spark_streams.sinks.feedapi import MAX_PARTITIONS, FeedSink

from spark_streams.errors import NotFound, OptionError
from spark_streams.log import ReferenceLog
from spark_streams.options.feedapi import parse_sink
from spark_streams.spark.sink.sink import TaskName


def sink_of(folder: Path, stream: str = "orders") -> FeedSink:
    return FeedSink(parse_sink({"url": str(folder), "stream": stream, "requestTimeout": "100"}))


def name(partition: int = 3, batch: int = 7, *, stable: bool = True) -> TaskName:
    return TaskName("query", str(batch), partition, stable)


def write(sink: FeedSink, task: TaskName, streaming: bool) -> None:
    outlet = sink.open(task, streaming)
    try:
        columns = sink.columns(pa.record_batch({"value": pa.array(["a", "b"])}), task, 0)
        outlet.send(columns, str)
        outlet.flush()
    finally:
        outlet.close()


def test_a_stream_is_written_once_and_a_batch_each_time(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        log.create_stream("orders", 1)
    sink: FeedSink = pickle.loads(pickle.dumps(sink_of(tmp_path)))
    for _ in range(2):
        write(sink, name(), True)
    write(sink, name(batch=8), True)
    write(sink, name(partition=4), True)
    with ReferenceLog(tmp_path) as log:
        assert log.stream("orders").partitions["0"].next_offset == 6
    for _ in range(2):
        write(sink, name(), False)
    with ReferenceLog(tmp_path) as log:
        assert log.stream("orders").partitions["0"].next_offset == 10
    batch, stream = sink.repeats_of_batch, sink.repeats_of_stream
    assert "dropped by the log" in stream and "at least once" in batch


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (name(stable=False), "Spark tells this task neither its query nor its micro-batch"),
        (
            name(MAX_PARTITIONS),
            f"this is Spark partition {MAX_PARTITIONS}, and exactly once works for {MAX_PARTITIONS}",
        ),
    ],
)
def test_a_promise_that_cannot_be_kept(tmp_path: Path, task: TaskName, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        sink_of(tmp_path).open(task, True)
    sink_of(tmp_path).open(task, False).close()


def test_the_check_before_a_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ReferenceLog(tmp_path) as log:
        log.create_stream("orders", 1)
        sink_of(tmp_path).check()
        with pytest.raises(NotFound, match="no such stream"):
            sink_of(tmp_path, "no-such").check()
    FeedSink(parse_sink({"url": "http://127.0.0.1:9/orders"})).check()
    assert "feed 'orders' could not be checked before the write" in caplog.text, "the network is left to the tasks"
