"""What docs/feedapi-sink.md shows is run as it stands, and what it lists is what the code has."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from spark_streams.log import ReferenceLog
from spark_streams.options.feedapi import FORMAT, parse_sink
from spark_streams.options.names import OF_EVERY_FORMAT
from spark_streams.server import FeedConfig, ServerThread
from tests.docs.pages import blocks, code_spans, tables, told

PAGE = "docs/feedapi-sink.md"


def events(log: ReferenceLog, name: str, spark: Any, url: str) -> list[Any]:
    rows = spark.read.format("feedapi").option("url", f"{url}/{name}").load().collect()
    return [(json.loads(bytes(row.value)), row.key) for row in rows]


@pytest.mark.spark
def test_the_programs(spark: Any, tmp_path: Path) -> None:
    streaming, directory, pointer = blocks(PAGE, "python")
    (tmp_path / "in").mkdir()
    rows = spark.sql(
        "SELECT 7L AS id, 'anna' AS customer, 1.5D AS amount, timestamp'2024-02-29 12:00:00Z' AS placed_at"
    )
    rows.write.mode("append").parquet(str(tmp_path / "in"))
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("totals", 1)
    totals = spark.sql("SELECT 'all' AS name, 17 AS total")
    exec(directory.replace("/var/lib/spark-streams", str(tmp_path / "log")), {"totals": totals})
    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, feed=FeedConfig(port=0)) as server:
        log.create_stream("orders", 1)

        def here(program: str) -> str:
            return program.replace("http://localhost:8080", server.feed_url).replace("/data/", f"{tmp_path}/")

        orders = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
        names: dict[str, Any] = {"orders": orders}
        exec(here(streaming), names)
        try:
            names["query"].processAllAvailable()
        finally:
            names["query"].stop()
        expected = {"id": 7, "amount": 1.5, "placed_at": "2024-02-29T12:00:00Z"}
        assert events(log, "orders", spark, server.feed_url) == [(expected, "anna")]
        exec(here(pointer), {"orders": spark.sql("SELECT struct('c-1' AS id) AS customer, 2.0D AS amount")})
        last = events(log, "orders", spark, server.feed_url)[-1]
        assert last == ({"customer": {"id": "c-1"}, "amount": 2.0}, "c-1")
        assert events(log, "totals", spark, server.feed_url) == [({"name": "all", "total": 17}, None)]


def test_every_option_is_listed() -> None:
    (table,) = tables(PAGE, "Options")
    listed = Counter(name for row in table for name in code_spans(row[0]))
    assert listed == Counter((*OF_EVERY_FORMAT, *FORMAT.both, *FORMAT.writing))
    shown = next(row[2] for row in table if row[0] == "`requestTimeout`")
    assert shown == f"`{parse_sink({'url': 'http://host/orders'}).request_timeout_ms}`"


def test_the_messages_are_those_of_the_code() -> None:
    texts = told("spark_streams", "sources", "sinks")
    (table,) = tables(PAGE, "When it fails")
    pieces = [piece.strip() for row in table for span in code_spans(row[0]) for piece in span.split("…")]
    wanted = [piece for piece in pieces if not piece.startswith("status ")]
    assert len(wanted) > 10
    assert [piece for piece in wanted if piece not in texts] == []
