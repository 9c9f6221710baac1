"""What docs/rabbitmq-stream*.md show is run as it stands, and what they list is what the code has."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from spark_streams.cli.log.config_file import read_configuration
from spark_streams.client.rabbitmq.open import open_connection
from spark_streams.endpoint import RABBITMQ_SCHEMES, parse_url
from spark_streams.options.names import OF_EVERY_FORMAT, OF_EVERY_READER
from spark_streams.options.positions import numbered_position
from spark_streams.options.rabbitmq_stream import FORMAT as OPTIONS
from spark_streams.options.rabbitmq_stream import parse_sink, parse_source
from spark_streams.position import EARLIEST, LATEST, After, At, AtTime, Matching
from spark_streams.server import Permissions
from spark_streams.wire.rabbitmq.frames import ResponseCode, code_name
from spark_streams.wire.rabbitmq.stream_commands import CreateSuperStream, CreateSuperStreamAnswer
from tests.cli.conftest import Doors, ServedHere, served_here, serving
from tests.docs.pages import ROOT, blocks, code_spans, tables, told
from tests.real_rabbitmq.by_hand import Peer

SOURCE, SINK, DOOR = "docs/rabbitmq-stream.md", "docs/rabbitmq-stream-sink.md", "docs/rabbitmq-stream-door.md"
URL = "rabbitmq-stream://guest:guest@localhost:5552"
FORMAT = "rabbitmq-stream"


Log = Callable[..., ServedHere]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Serve a log with these streams."""
    with ExitStack() as stack:
        yield lambda **streams: stack.enter_context(served_here(tmp_path / "log", **streams))


def url_of(served: Doors) -> str:
    return served.doors[FORMAT].replace("//", "//guest:guest@")


def run(block: str, names: dict[str, Any], url: str, folder: Path) -> None:
    """Run a block of a page on the served log."""
    code = block.replace(URL, url).replace("/data/checkpoints", str(folder)).replace("/etc/ssl", str(folder))
    exec(compile(code, "page", "exec"), names)


def write(frame: Any, url: str, **options: str) -> None:
    frame.write.format(FORMAT).options(url=url, **options).mode("append").save()


def read(spark: Any, url: str, **options: str) -> list[str]:
    rows = spark.read.format(FORMAT).options(url=url, **options).load().select("partition", "offset", "value").collect()
    return [bytes(row.value).decode() for row in sorted(rows)]


def read_now(frame: Any, folder: Path, *columns: str) -> list[Any]:
    """Run a stream to its end of now; returns its rows."""
    rows: list[Any] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.select(*columns).collect()))
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return sorted(rows)


# --- what the pages show


@pytest.mark.spark
def test_the_blocks_of_the_source_page(spark: Any, log: Log, tmp_path: Path) -> None:
    served = log(orders=4, sales=1)
    url = url_of(served)
    expected = [(f"orders-{p}", f"{n:020d}", f"{p}/{n}") for p in range(4) for n in range(5)]
    # Chunks of one message, and one of three: a range begins and ends inside of it.
    for some in ((0,), (1, 2, 3), (4,)):
        served.publish("orders", *([f"{p}/{n}" for n in some] for p in range(4)))
    regions = "element_at(array('eu', 'us', NULL), CAST(id % 3 + 1 AS INT)) AS region"
    sales = spark.range(0, 30, 1, 1).selectExpr("CAST(id AS STRING) AS value", regions)
    sales = sales.selectExpr("*", "IF(region IS NULL, NULL, map('region', region)) AS application_properties")
    write(sales, url, stream="sales", filterValueColumn="region")

    names: dict[str, Any] = {"spark": spark}
    for name in ("ca.pem", "client.pem", "client.key"):
        (tmp_path / name).write_text("")
    for block in blocks(SOURCE, "python"):
        run(block, names, url, tmp_path)

    def rows(frame: Any) -> list[tuple[str, str, str]]:
        return [(r.partition, r.offset, bytes(r.value).decode()) for r in frame]

    assert rows(read_now(names["orders"], tmp_path / "a", "partition", "offset", "value")) == expected
    assert names["fast"].columns == ["offset", "value"]
    assert len(read_now(names["fast"], tmp_path / "b", "value")) == 20
    assert len(read_now(names["lagging"], tmp_path / "c", "value")) == 20
    some = {("orders-0", 1), ("orders-0", 2), ("orders-1", 2), ("orders-1", 3), ("orders-3", 0)}
    some |= {("orders-2", n) for n in range(5)}
    assert {(r.partition, int(r.offset)) for r in names["some"].select("partition", "offset").collect()} == some
    assert sorted(int(r.value) for r in names["europe"].select("value").collect()) == list(range(0, 30, 3))
    large = [n for n in range(0, 30, 3) if n >= 10]  # of two digits
    assert sorted(int(r.value) for r in names["large"].select("value").collect()) == large
    secured = parse_source({**names["secured"], "stream": "orders"}, streaming=True).endpoint
    assert (secured.port, secured.username) == (5551, None)
    assert secured.tls is not None and secured.tls.cert_file == str(tmp_path / "client.pem")


@pytest.mark.spark
def test_the_blocks_of_the_sink_page(spark: Any, log: Log, tmp_path: Path) -> None:
    served = log(**{"incoming": 1, "orders-enriched": 3, "totals": 1, "totals-by-region": 1})
    url = url_of(served)
    with open_connection(parse_url(url, schemes=RABBITMQ_SCHEMES), timeout_ms=10_000) as connection:
        sales = CreateSuperStream("sales", ("sales-amer", "sales-emea"), ("amer", "emea"))
        connection.request(sales, CreateSuperStreamAnswer, "create")
    served.publish("incoming", [f"c{n % 4}" for n in range(20)])
    incoming = spark.readStream.format(FORMAT).options(url=url, stream="incoming", startingOffsets="earliest").load()
    totals = spark.range(0, 6, 1, 1).selectExpr(
        "to_json(struct(id, element_at(array('eu', 'us'), CAST(id % 2 + 1 AS INT)) AS region)) AS value"
    )
    names: dict[str, Any] = {
        "spark": spark,
        "orders": incoming.selectExpr("string(value) AS customer", "offset"),
        "totals": totals,
    }
    for block in blocks(SINK, "python"):
        run(block, names, url, tmp_path)
        if "query" in names:
            query = names.pop("query")
            query.processAllAvailable()
            query.stop()

    enriched = spark.read.format(FORMAT).options(url=url, superStream="orders-enriched").load()
    found = enriched.selectExpr("partition", "key", "string(value) AS value").collect()
    assert Counter(row.key for row in found) == dict.fromkeys(["c0", "c1", "c2", "c3"], 5)
    assert len({(row.partition, row.key) for row in found}) == 4, "equal keys are in one partition"
    values = [row.value for row in totals.collect()]
    assert read(spark, url, stream="totals") == values * 2, "alone, and in sub-entry batches"
    assert read(spark, url, stream="sales-emea") == values
    assert read(spark, url, stream="sales-amer") == []
    taken_from = {"filterValueFrom": "application_properties.region", "filterValues": "us"}
    assert read(spark, url, stream="totals-by-region", **taken_from) == values[1::2]


def test_the_command_and_the_names_of_the_door_page(tmp_path: Path) -> None:
    (command,) = blocks(DOOR, "bash")
    words = command.replace("--rabbitmq-stream 5552", "--rabbitmq-stream 0").split()
    assert words[:3] == ["spark-streams", "log", "serve"]
    with serving(tmp_path) as start:
        served = start("--amqp", "0", *words[3:])
        with open_connection(parse_url(url_of(served), schemes=RABBITMQ_SCHEMES), timeout_ms=10_000) as connection:
            from spark_streams.wire.rabbitmq.stream_commands import Partitions, PartitionsAnswer, Route, RouteAnswer

            answer = connection.request(Partitions("orders"), PartitionsAnswer, "partitions")
            assert answer.streams == ("orders-0", "orders-1", "orders-2", "orders-3")
            assert connection.request(Route("3", "orders"), RouteAnswer, "route").streams == ("orders-3",)
        with closing(Peer(url_of(served)).open()) as peer:
            assert peer.stats("plain")[0] == ResponseCode.OK
            assert peer.stats("orders")[0] == ResponseCode.STREAM_DOES_NOT_EXIST


def test_the_settings_of_the_door_page(tmp_path: Path) -> None:
    first, second = blocks(DOOR, "toml")
    (tmp_path / "log.toml").write_text(first)
    (tmp_path / "tls.toml").write_text(second)
    settings = read_configuration(tmp_path / "log.toml").doors["rabbitmq-stream"]
    assert settings.permissions == {"reader": Permissions("", "", "orders.*")}
    assert read_configuration(tmp_path / "tls.toml").doors["rabbitmq-stream"].tls_client_ca == str(
        tmp_path / "clients-ca.pem"
    )
    with serving(tmp_path) as start:
        served = start("--config", "log.toml", "--rabbitmq-stream", "0")
        url = served.doors[FORMAT]
        with closing(Peer(url.replace("//", "//reader:another%20secret@"))) as peer:
            peer.password = "another secret"
            peer.open()
            assert peer.stats("orders-3")[0] == ResponseCode.OK
            assert peer.create("mine") == ResponseCode.ACCESS_REFUSED
            assert peer.declare(1, "orders-0") == ResponseCode.ACCESS_REFUSED
        with closing(Peer(url.replace("//", "//writer:secret@")).open()) as peer:
            assert peer.declare(1, "orders-0") == ResponseCode.OK


def test_the_program_of_the_door_page() -> None:
    (program,) = blocks(DOOR, "python")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"rabbitmq-stream://127\.0\.0\.1:\d+\n", done.stdout)


# --- what the pages list


def test_the_positions_that_are_shown() -> None:
    import json

    (shown,) = blocks(SOURCE, "json")
    assert [numbered_position("startingOffsets", p, value) for p, value in json.loads(shown).items()] == [
        At(f"{42:020d}"),
        After(f"{41:020d}"),
        EARLIEST,
        AtTime(-386380800000),
    ]
    meanings = {
        "with offset 42": At(f"{42:020d}"),
        "after offset 42": After(f"{42:020d}"),
        "with the first message there is": EARLIEST,
        "after the last one; not allowed in a batch": LATEST,
        "with the first chunk that is not older": AtTime(1585672841000),
        "with the first message that matches": Matching("key = 'a'"),
    }
    (table,) = tables(SOURCE, "Positions")
    assert {row[1] for row in table} == meanings.keys()
    for written, meaning, _ in table:
        for value in code_spans(written):
            assert numbered_position("startingOffsets", "p", json.loads(value)) == meanings[meaning]


@pytest.mark.parametrize(
    ("page", "more"), [(SOURCE, (*OF_EVERY_READER, *OPTIONS.reading)), (SINK, OPTIONS.writing)], ids=["source", "sink"]
)
def test_every_option_is_listed(page: str, more: tuple[str, ...]) -> None:
    (table,) = tables(page, "Options")
    listed = Counter(name for row in table for name in code_spans(row[0]))
    assert listed == Counter((*OF_EVERY_FORMAT, *OPTIONS.both, *more))


def test_the_defaults_are_those_of_the_code() -> None:
    common = {"url": "rabbitmq-stream://host", "stream": "orders"}
    source = parse_source(common, streaming=True)
    sink = parse_sink(common)
    numbers = {
        "pollInterval": source.poll_interval_ms,
        "requestTimeout": source.request_timeout_ms,
        "maxTriggerDelay": f"{source.max_trigger_delay_ms // 60_000}m",
        "failOnDataLoss": str(source.fail_on_data_loss).lower(),
        "singleActiveConsumer": str(source.single_active_consumer).lower(),
        "storeOffsets": str(source.store_offsets).lower(),
        "timestampOverflow": source.timestamp_overflow,
        "routing": sink.routing,
        "compression": sink.compression,
        "subEntrySize": sink.sub_entry_size,
        "maxInFlight": sink.max_in_flight,
    }
    shown = {
        name: row[2].strip("`")
        for page in (SOURCE, SINK)
        for table in tables(page, "Options")
        for row in table
        for name in code_spans(row[0])
        if name in numbers
    }
    assert shown == {name: str(value) for name, value in numbers.items()}


@pytest.mark.parametrize("page", [SOURCE, SINK])
def test_the_messages_are_those_of_the_code(page: str) -> None:
    texts = told("spark_streams", "sources", "sinks") + "\n".join(code_name(code) for code in ResponseCode)
    (table,) = tables(page, "When it fails")
    pieces = [piece.strip() for row in table for span in code_spans(row[0]) for piece in span.split("…")]
    assert len(pieces) > 15
    assert [piece for piece in pieces if piece not in texts] == []


# --- what the pages claim, and no other test shows


@pytest.mark.spark
def test_a_start_beyond_the_offset_that_is_next_is_a_loss(spark: Any, log: Log) -> None:
    served = log(orders=1)
    url = url_of(served)
    served.publish("orders", [str(n) for n in range(5)])
    with pytest.raises(Exception, match=r"PositionLost.*Events may have been lost"):
        read(spark, url, stream="orders", startingOffsets='{"orders": 6}')
    assert read(spark, url, stream="orders", startingOffsets='{"orders": 5}') == []
    assert read(spark, url, stream="orders", startingOffsets='{"orders": "4"}') == []


@pytest.mark.spark
@pytest.mark.parametrize(
    ("target", "again", "said"),
    [
        ("copies", "concat(value, 'x') AS value", "has written other rows, or the same ones in another order"),
        pytest.param(
            *("copy", "concat(value, 'x') AS value", "has written other rows, or the same ones in another order"),
            marks=pytest.mark.nightly,  # tests/client/rabbitmq has them all without Spark
        ),
        pytest.param(
            *("copy", "value WHERE id < 900", "has written it, and now the task has 900 rows"),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_rows_that_differ_on_a_retry(spark: Any, log: Log, tmp_path: Path, target: str, again: str, said: str) -> None:
    """All of them in one window of the digest, in a stream and in a super stream."""
    served = log(orders=1, copy=1, copies=2)
    url = url_of(served)
    served.publish("orders", [str(n) for n in range(1000)])
    orders = spark.readStream.format(FORMAT).options(url=url, stream="orders", startingOffsets="earliest").load()
    orders.selectExpr("string(value) AS value", "int(string(value)) AS id").createOrReplaceTempView("source")
    where = {"superStream": target} if target == "copies" else {"stream": target}

    def copy(what: str) -> None:
        columns, _, condition = what.partition(" WHERE ")
        rows = spark.sql(f"SELECT {columns}, 'k' || id AS key FROM source WHERE {condition or 'true'}").coalesce(1)
        query = rows.writeStream.format(FORMAT).options(url=url, **where).option("checkpointLocation", str(tmp_path))
        query.trigger(availableNow=True).start().awaitTermination(120)

    copy("value")
    for file in (tmp_path / "commits").iterdir():
        file.unlink()  # as if the driver had died before Spark noted the commit
    copy("value")
    for file in (tmp_path / "commits").iterdir():
        file.unlink()
    with pytest.raises(Exception, match="rows-differ.*" + re.escape(said)):
        copy(again)
    assert len(read(spark, url, **where)) == 1000
