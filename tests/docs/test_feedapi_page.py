"""What docs/feedapi.md shows is run as it stands, and what it lists is what the code has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.log import ReferenceLog
from spark_streams.options.feedapi import FORMAT, parse_source
from spark_streams.options.names import OF_EVERY_FORMAT, OF_EVERY_READER
from spark_streams.server import FeedConfig, ServerThread
from spark_streams.spark.source.reader import HAS_ADMISSION_CONTROL
from spark_streams.wire.amqp.columns.encode import encode_columns
from tests.docs.pages import blocks, code_spans, tables, told

PAGE = "docs/feedapi.md"
BY_TIME = {
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
}


def read_now(frame: Any, folder: Path) -> list[bytes]:
    """Run a stream to its end of now; returns its events."""
    rows: list[Any] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.select("value").collect()))
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return sorted(bytes(row.value) for row in rows)


@pytest.mark.spark
def test_the_blocks_of_the_page(spark: Any, tmp_path: Path) -> None:
    if not HAS_ADMISSION_CONTROL:
        pytest.skip("streams of feeds need Spark 4.2")
    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, feed=FeedConfig(port=0)) as server:
        for number, partition in enumerate(log.create_stream("orders", 2).partitions.values()):
            partition.append(encode_columns({"value": pa.array([b'{"p":%d}' % number])}))
        names: dict[str, Any] = {"spark": spark}
        for block in blocks(PAGE, "python"):
            here = block.replace("http://localhost:8080", server.feed_url).replace("/data/", f"{tmp_path}/")
            exec(compile(here, "page", "exec"), names)
        assert read_now(names["orders"], tmp_path / "orders") == [b'{"p":0}', b'{"p":1}']
        assert (tmp_path / "spool").is_dir()
        assert read_now(names["some"], tmp_path / "some") == [b'{"p":0}']


def test_the_options_are_those_of_the_code() -> None:
    (rows,) = tables(PAGE, "Options")
    listed = {name for row in rows for name in code_spans(row[0])}
    known = {*OF_EVERY_FORMAT, *FORMAT.both, *OF_EVERY_READER, *FORMAT.reading} - BY_TIME
    assert listed == known | {"filter-<name>"}


def test_the_defaults_are_those_of_the_code() -> None:
    (rows,) = tables(PAGE, "Options")
    options = parse_source({"url": "http://host/feed"}, streaming=True)
    checked = 0
    for row in rows:
        for name in code_spans(row[0]):
            field = re.sub("([A-Z])", lambda m: "_" + m[1].lower(), name)
            value = getattr(options, field, getattr(options, f"{field}_ms", None))
            words = code_spans(row[2])
            if words and value is not None and words[0] not in ("latest", "15m"):
                assert str(value).lower() == words[0], name
                checked += 1
    assert checked >= 8


def test_the_messages_are_told_by_the_code() -> None:
    (rows,) = tables(PAGE, "When it fails")
    words = told("spark_streams", "sources") + "".join(f"status {n}\n" for n in (401, 403, 404))
    assert len(rows) >= 12
    for row in rows:
        for message in code_spans(row[0]):
            pieces = [piece.strip(" '") for piece in message.split("…")]
            for piece in pieces:
                assert piece in words, f"{message}: {piece}"
