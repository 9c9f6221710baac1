"""Nodes that have one of the two offset filters, of which the specification asks for at least one (§8, ES-315)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from spark_streams.sources.amqp_events import connect

from spark_streams.client import AmqpClient, RangeRead
from spark_streams.client.amqp import range_reader as reader_module
from spark_streams.client.retry import Backoff
from spark_streams.endpoint import Endpoint, Secret
from spark_streams.errors import PositionLost, Refused, RemoteProtocolError
from spark_streams.filters.text import parse
from spark_streams.log import StreamConfig
from spark_streams.options.amqp_events import parse_source
from spark_streams.position import EARLIEST, After, At
from spark_streams.spark.source.batch_plan import plan_batch
from tests.client.amqp.fake_peer import FakePeer, Script
from tests.faults.proxy import TcpProxy
from tests.wire.amqp.messages import Data, Message, encode_message

ANNOTATIONS, SQL = 512, 513
LEAVES_OUT, REFUSES = None, ("amqp:not-implemented", "no such filter")
LOG = [(f"e{n:04d}", b"event %d" % n) for n in range(1_000)]
NAMES = [name for name, _ in LOG]


def client(port: int, timeout_ms: int = 120_000) -> AmqpClient:
    return AmqpClient(Endpoint("amqp", "127.0.0.1", port), timeout_ms=timeout_ms)


def fetched(there: AmqpClient, start: Any, end: str, max_rows: int = 65_536, **more: Any) -> list[str]:
    read = RangeRead("orders", "0", start, end, ("offset",), **more)
    return [o for batch in there.fetch(read, max_rows=max_rows) for o in batch.column("offset").to_pylist()]


def attaches(peer: FakePeer) -> list[Any]:
    return [each["filters"]["start"] for each in peer.attached if each["address"] == "orders"]


@pytest.fixture(params=[(ANNOTATIONS, LEAVES_OUT), (ANNOTATIONS, REFUSES), (SQL, LEAVES_OUT), (SQL, REFUSES)], ids=str)
def peer(request: pytest.FixtureRequest) -> Iterator[FakePeer]:
    takes, others = request.param
    with FakePeer(Script(events=LOG, takes=frozenset({takes}), refuses_others=others)) as peer:
        yield peer


@pytest.mark.parametrize("max_rows", [7, 65_536])
def test_every_start_has_its_rows(peer: FakePeer, max_rows: int) -> None:
    with client(peer.port) as there:
        assert fetched(there, EARLIEST, NAMES[99], max_rows) == NAMES[:100]
        assert fetched(there, After(NAMES[39]), NAMES[99], max_rows) == NAMES[40:100]
        for first in (0, 1, 40, 99):
            assert fetched(there, At(NAMES[first]), NAMES[99], max_rows) == NAMES[first:100]
        assert fetched(there, At(NAMES[-1]), NAMES[-1], max_rows) == NAMES[-1:]


def test_walks_go_on_from_every_start(peer: FakePeer) -> None:
    with client(peer.port) as there:
        for start, first in ((EARLIEST, 0), (After(NAMES[39]), 40), (At(NAMES[40]), 40), (At(NAMES[999]), 999)):
            walk = there.offsets("orders", "0", start, None)
            assert walk.take(3) + walk.take(5) == NAMES[first : first + 8]
            walk.close()


def test_a_filter_is_checked_in_full(peer: FakePeer) -> None:
    peer.script.full_sql, peer.script.echo_names = True, frozenset({"start"})  # of the others it checks nothing
    text = f"body_size = 8 AND publish_time >= 0 AND offset > '{NAMES[50]}'"  # events 10 to 99
    with client(peer.port) as there:
        assert fetched(there, At(NAMES[20]), NAMES[200], filter=parse(text)) == NAMES[51:100]
        assert there.pushdown("orders", parse(text)).residual is not None
        assert there.first_matching("orders", "0", parse(text)) == NAMES[51]


def test_an_instant_is_looked_up(peer: FakePeer) -> None:
    with client(peer.port) as there:  # all events have timestamp 1000
        for instant in (-(2**63), -386_380_800_000, 0, 1_000):
            assert there.first_at_time("orders", "0", instant) == NAMES[0]
        assert there.first_at_time("orders", "0", 1_001) is None


def test_what_the_peer_does_not_take_is_asked_for_once(peer: FakePeer) -> None:
    with client(peer.port) as there:
        for _ in range(3):
            assert fetched(there, After(NAMES[4]), NAMES[9]) == NAMES[5:10]
            assert fetched(there, At(NAMES[5]), NAMES[9]) == NAMES[5:10]
        assert len(attaches(peer)) == 7
        assert {isinstance(each, str) for each in attaches(peer)[2:]} == {SQL in peer.script.takes}


def test_an_inclusive_start_that_is_gone_is_a_loss(peer: FakePeer) -> None:
    peer.script.events = [each for each in LOG if each[0] != NAMES[40]]
    with client(peer.port) as there, pytest.raises(PositionLost, match=f"at '{NAMES[40]}', but .* '{NAMES[41]}'"):
        fetched(there, At(NAMES[40]), NAMES[99])


@pytest.mark.parametrize(
    "start",
    [
        '{"0": {"timestamp": 5}}',
        *(
            pytest.param(start, marks=pytest.mark.nightly)
            for start in ("earliest", '{"0": "e0039"}', '{"0": {"at": "e0040"}}')
        ),
    ],
)
def test_a_query_is_planned_and_read(peer: FakePeer, start: str) -> None:
    given = {"url": f"amqp://127.0.0.1:{peer.port}", "stream": "orders", "minPartitions": "3", "startingOffsets": start}
    if "timestamp" in start:
        given["startingOffsetsByTimestamp"] = given.pop("startingOffsets").replace('{"timestamp": 5}', "5")
    options = parse_source(given, streaming=False)
    first = 40 if "e00" in start else 0
    with client(peer.port) as there:
        reads = plan_batch(options, ("offset",), connect)
        assert len(reads) >= 3
        rows = [
            o for planned in reads for batch in there.fetch(planned.read) for o in batch.column("offset").to_pylist()
        ]
    assert rows == NAMES[first:]


@pytest.mark.parametrize(("others", "kind"), [(LEAVES_OUT, RemoteProtocolError), (REFUSES, Refused)])
def test_a_node_without_either_is_an_error(others: Any, kind: type[Exception]) -> None:
    with FakePeer(Script(events=LOG, takes=frozenset(), refuses_others=others)) as peer, client(peer.port) as there:
        for start in (EARLIEST, After(NAMES[4]), At(NAMES[4])):
            with pytest.raises(kind, match=r"did not take the filter that says where to start|no such filter"):
                fetched(there, start, NAMES[9])
        for instant in (0, -1):
            with pytest.raises(kind):
                there.first_at_time("orders", "0", instant)


@pytest.mark.parametrize("untaken", [ANNOTATIONS, SQL])
def test_what_each_filter_says_is_what_the_log_understands(log_server: Any, untaken: int) -> None:
    """The log has both; asked in the words of each alone, it begins at the same events."""
    partition = log_server.log.create_stream("orders", 1, StreamConfig(timestamp_type="create")).partitions["0"]
    partition.append([encode_message(Message(body=Data((b"x",)))) for _ in range(50)], None, [*range(1_000, 1_050)])
    endpoint = Endpoint("amqp", "127.0.0.1", int(log_server.urls["amqp"].rpartition(":")[2]), "guest", Secret("guest"))
    with AmqpClient(endpoint, timeout_ms=120_000) as there:
        there._untaken = {untaken}
        every = fetched(there, EARLIEST, f"{49:020d}")
        assert len(every) == 50
        assert fetched(there, After(every[9]), every[-1]) == every[10:]
        assert fetched(there, At(every[9]), every[-1]) == every[9:]
        assert there.offsets("orders", "0", At(every[9]), every[19]).take(99) == every[9:20]
        for instant, first in ((-(2**63), 0), (-5, 0), (0, 0), (1_020, 20), (1_049, 49)):
            assert there.first_at_time("orders", "0", instant) == every[first]
        assert there.first_at_time("orders", "0", 1_050) is None


# --- beginning earlier


@pytest.fixture
def annotations() -> Script:
    return Script(events=LOG, takes=frozenset({ANNOTATIONS}))


def test_events_before_the_start_are_dropped_and_said_so(annotations: Script, caplog: pytest.LogCaptureFixture) -> None:
    annotations.settled = False
    caplog.set_level("INFO", reader_module.__name__)
    with FakePeer(annotations) as peer, client(peer.port) as there:
        assert fetched(there, At(NAMES[0]), NAMES[9]) == NAMES[:10]
        assert not caplog.records
        assert fetched(there, At(NAMES[500]), NAMES[509], max_rows=100) == NAMES[500:510]
    assert len(caplog.records) == 1
    assert f"cannot begin at '{NAMES[500]}': what lies before comes too, and is dropped" in caplog.text


@pytest.mark.parametrize("read", [fetched, lambda there, at, end: there.offsets("orders", "0", at, end).take(10)])
def test_a_connection_that_breaks_while_events_are_dropped_is_progress(
    annotations: Script, read: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "LONG_BACKOFF", Backoff(3, 1, 1))
    with FakePeer(annotations) as peer, TcpProxy(peer.port, [20_000] * 20) as proxy, client(proxy.port) as there:
        assert read(there, At(NAMES[990]), NAMES[999]) == NAMES[990:]
    assert proxy.connections > 4


def test_an_event_before_the_start_of_another_partition_is_an_error(annotations: Script) -> None:
    annotations.source_partition = "1"
    with (
        FakePeer(annotations) as peer,
        client(peer.port) as there,
        pytest.raises(RemoteProtocolError, match="partition '1'"),
    ):
        fetched(there, At(NAMES[500]), NAMES[509])
