"""The listener, with the progress that Spark 4.3 gave for a query."""

from __future__ import annotations

from types import SimpleNamespace as Obj

from spark_streams.spark.progress import Progress, StreamProgressListener

END = '{"version": 1, "stream": "orders", "partitions": {"0": {"after": "e9"}}, "incarnation": "i"}'
NEWEST = '{"version": 1, "stream": "orders", "partitions": {"0": {"after": "e9"}}, "lag": {"0": 12, "1": null}}'


def event(end: str, newest: str, name: str | None = "q", rate: float = 45.0) -> Obj:
    source = Obj(endOffset=end, latestOffset=newest, numInputRows=90, processedRowsPerSecond=rate)
    return Obj(progress=Obj(name=name, id="1-2-3", batchId=7, sources=[source]))


def told(*events: Obj) -> list[Progress]:
    out: list[Progress] = []
    listener = StreamProgressListener(out.append)
    for each in events:
        listener.onQueryProgress(each)
    return out


def test_a_batch_of_ours() -> None:
    (progress,) = told(event(END, NEWEST))
    assert progress == Progress("q", 7, "orders", 90, 45.0, {"0": 12, "1": None})
    assert str(progress) == "query 'q' batch 7: 90 events of stream 'orders', 45 events/s, lag {0: 12, 1: ?}"


def test_without_a_name_without_lag_without_rows() -> None:
    (progress,) = told(event(END, END, None, float("nan")))
    assert progress == Progress("1-2-3", 7, "orders", 90, 0.0, {})


def test_other_sources_are_none_of_our_business() -> None:
    assert told(event("17", "18"), event("not json", "x"), event('{"logOffset": 3}', "null")) == []
