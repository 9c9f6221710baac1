"""Tasks of one worker, one after another: how many connections a door sees of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from spark_streams.sinks.amqp_events import AmqpSink
from spark_streams.sinks.feedapi import FeedSink
from spark_streams.sinks.rabbitmq_stream import RabbitSink

from spark_streams.client.kept_connections import KeptConnections
from spark_streams.errors import DeliveryFailed, NotFound
from spark_streams.log import ReferenceLog
from spark_streams.options.amqp_events import parse_sink as parse_sink_options
from spark_streams.options.feedapi import parse_sink as parse_feed_sink
from spark_streams.options.rabbitmq_stream import parse_sink as parse_rabbit_sink
from spark_streams.server import AmqpConfig, RabbitConfig, ServerThread
from spark_streams.server.admission import Admission
from spark_streams.server.feed.config import FeedConfig
from spark_streams.spark.sink import sink
from spark_streams.spark.sink.sink import Sink, TaskName

ROWS = pa.record_batch({"key": pa.array([f"{n}" for n in range(20)]), "value": pa.array([b"x"] * 20, pa.binary())})
TASKS = 6


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ReferenceLog]:
    with ReferenceLog(tmp_path / "log") as opened:
        opened.create_stream("orders", 2)
        for number in range(6):
            opened.create_stream(f"s{number}", 1)
        yield opened


@pytest.fixture
def server(log: ReferenceLog) -> Iterator[ServerThread]:
    with ServerThread(log, AmqpConfig(port=0), RabbitConfig(port=0), FeedConfig(port=0)) as started:
        yield started


@pytest.fixture
def established(monkeypatch: pytest.MonkeyPatch) -> list[Admission]:
    seen: list[Admission] = []
    establish = Admission.establish

    def counted(self: Admission, user: str | None = None) -> bool:
        if self not in seen:
            seen.append(self)
        return establish(self, user)

    monkeypatch.setattr(Admission, "establish", counted)
    return seen


@pytest.fixture(params=["reused", "not reused"])
def reused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether this process counts as a worker that Spark reuses."""
    kept = KeptConnections[object](600.0)
    monkeypatch.setattr(sink, "_kept", kept)
    if request.param == "reused":
        monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    else:
        monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    yield request.param == "reused"
    for connection, _ in kept._idle.values():
        connection.close()


SINKS: dict[str, Callable[[dict[str, str]], Sink]] = {
    "rabbitmq-stream": lambda options: RabbitSink(parse_rabbit_sink(options)),
    "amqp-events": lambda options: AmqpSink(parse_sink_options(options)),
    "feedapi": lambda options: FeedSink(parse_feed_sink(options)),
}


def run(form: str, url: str, batch: int, rows: pa.RecordBatch = ROWS, **options: str) -> None:
    """One task, as the writer does it."""
    options = {"url": url, "requestTimeout": "120000", **options}
    chosen = SINKS[form](options)
    name = TaskName("0e8ab4d2", str(batch), batch % 2, stable=True)
    columns = chosen.columns(rows, name, 0)
    outlet = chosen.open(name, True)
    try:
        outlet.send(columns, lambda row: f"row {row}")
        outlet.flush()
    finally:
        outlet.close()


@pytest.mark.parametrize(
    ("form", "door", "options"),
    [
        ("rabbitmq-stream", "rabbitmq-stream", {"superStream": "orders"}),
        ("rabbitmq-stream", "rabbitmq-stream", {"stream": "orders-0"}),
        ("amqp-events", "amqp", {"stream": "orders"}),
        ("feedapi", "feedapi", {}),
    ],
)
def test_a_worker_that_is_reused_connects_once(
    log: ReferenceLog,
    server: ServerThread,
    established: list[Admission],
    reused: bool,
    form: str,
    door: str,
    options: dict[str, str],
) -> None:
    for batch in range(TASKS):
        run(form, server.url(door) + ("/orders" if form == "feedapi" else ""), batch, **options)
    assert len(established) == (1 if reused else TASKS)
    stored = sum(partition.next_offset for partition in log.stream("orders").partitions.values())
    assert stored == TASKS * len(ROWS), "and no row is lost, or there twice"


@pytest.mark.parametrize("reused", ["reused"], indirect=True)
def test_a_task_with_many_links_ends_them_with_its_connection(
    server: ServerThread, established: list[Admission], reused: bool
) -> None:
    names = pa.array([f"s{n % 6}" for n in range(len(ROWS))])
    for batch in range(3):
        run("amqp-events", server.url("amqp"), batch, ROWS.append_column("stream", names))
    assert len(established) == 3
    few = pa.array([f"s{n % 2}" for n in range(len(ROWS))])
    for batch in range(3):
        run("amqp-events", server.url("amqp"), batch, ROWS.append_column("stream", few))
    assert len(established) == 4


@pytest.mark.parametrize("reused", ["reused"], indirect=True)
@pytest.mark.parametrize(("form", "door"), [("rabbitmq-stream", "rabbitmq-stream"), ("amqp-events", "amqp")])
def test_a_task_that_fails_closes_its_connection(
    server: ServerThread, established: list[Admission], reused: bool, form: str, door: str
) -> None:
    run(form, server.url(door), 0, stream="s0")
    with pytest.raises((NotFound, DeliveryFailed)):
        run(form, server.url(door), 1, stream="nowhere")
    run(form, server.url(door), 2, stream="s0")
    assert len(established) == 2
