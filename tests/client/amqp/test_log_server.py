"""The client against the reference log's own door: the same calls, the real peer."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark_streams.sources.amqp_events import connect

from spark_streams.client import AmqpClient, RangeRead, retry
from spark_streams.endpoint import Endpoint, Secret, Tls
from spark_streams.errors import (
    AuthenticationFailed,
    ConnectFailed,
    ConnectionLost,
    DeliveryFailed,
    NotFound,
    OptionError,
    OwnershipLost,
    PositionLost,
)
from spark_streams.filters.text import parse
from spark_streams.log import ReferenceLog, StreamConfig
from spark_streams.options.amqp_events import parse_source
from spark_streams.position import EARLIEST, LATEST, After, At
from spark_streams.rows import FULL_MESSAGE_SCHEMA, MESSAGE_SCHEMA
from spark_streams.server import AmqpConfig, Redirect, ServerThread
from spark_streams.server.amqp.info_link import Descriptions
from spark_streams.spark.source.batch_plan import plan_batch
from spark_streams.spark.source.micro_batch import MicroBatches
from spark_streams.wire.amqp.columns.encode import encode_columns
from tests.faults.proxy import Break, TcpProxy


def client(
    server: Any, *, port: int | None = None, password: str = "guest", timeout_ms: int = 120_000, **more: Any
) -> AmqpClient:
    port = port if port is not None else int(server.urls["amqp"].rpartition(":")[2])
    return AmqpClient(Endpoint("amqp", "127.0.0.1", port, "guest", Secret(password)), timeout_ms=timeout_ms, **more)


def publish(sender: AmqpClient, stream: str, values: list[bytes], partition: str | None = None, **columns: Any) -> None:
    """Publish on a link bound to ``partition``; columns beside value are ``c_<name>``."""
    link = sender.publisher(stream, partition=partition)
    arrays = {"value": pa.array(values, pa.binary()), **{n[2:]: c for n, c in columns.items()}}
    link.send(encode_columns(arrays), lambda row: f"row {row}")
    link.flush()
    link.close()


def values(reader: AmqpClient, read: RangeRead, **more: int) -> list[bytes]:
    return [v for batch in reader.fetch(read, **more) for v in batch.column("value").to_pylist()]


def rows(stream: str, end: str | None, start: Any = EARLIEST, partition: str = "0", **more: Any) -> RangeRead:
    assert end is not None
    return RangeRead(stream, partition, start, end, ("value", "offset"), **more)


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("position", ['"5"', '{"at": "5"}', '{"after": "@latest"}', '{"at": "' + "9" * 20 + '"}'])
def test_an_offset_that_no_event_of_the_log_can_have_is_refused(log_server: Any, option: str, position: str) -> None:
    log_server.log.create_stream("orders", 2)
    given = {"url": log_server.urls["amqp"], "username": "guest", "password": "guest", "stream": "orders"}
    given[option] = '{"0": {"at": "00000000000000000005"}, "1": ' + position + "}"
    refused = pytest.raises(OptionError, match=rf"'{option}': partition '1': .* expected 20 decimal digits")
    with refused:
        plan_batch(parse_source(given, streaming=False), ("offset",), connect)
    if option == "startingOffsets":
        with refused:
            MicroBatches(parse_source(given, streaming=True), ("offset",), connect).initial()


def test_what_is_published_is_described_and_fetched(log_server: Any) -> None:
    log_server.log.create_stream("orders", 3)
    sent = [b"event %d" % n for n in range(5_000)]
    with client(log_server) as there:
        empty = there.describe("orders")
        assert set(empty.partitions) == {"0", "1", "2"}
        assert empty.incarnation == log_server.log.stream("orders").incarnation
        assert {b.earliest for b in empty.partitions.values()} == {None}
        publish(there, "orders", sent, partition="1")
        bounds = there.describe("orders").partitions["1"]
        assert bounds.earliest is not None and bounds.latest is not None and bounds.truncated is None
        assert values(there, rows("orders", bounds.latest, partition="1")) == sent
        walk = there.offsets("orders", "1", EARLIEST, None)
        offsets = walk.take(10_000)
        walk.close()
        assert len(offsets) == 5_000 and offsets == sorted(offsets)
        assert (offsets[0], offsets[-1]) == (bounds.earliest, bounds.latest)
        assert values(there, rows("orders", offsets[19], After(offsets[9]), "1"), max_rows=3) == sent[10:20]
        assert values(there, rows("orders", offsets[19], At(offsets[9]), "1")) == sent[9:20]
        assert there.remaining("orders", {"1": After(offsets[999]), "0": EARLIEST}) == {"1": 4_000, "0": 0}


def test_keys_route_and_rows_carry_what_was_sent(log_server: Any) -> None:
    log_server.log.create_stream("orders", 3)
    keys = pa.array([f"customer-{n % 7}" for n in range(70)])
    with client(log_server) as there:
        publish(there, "orders", [b"%d" % n for n in range(70)], c_key=keys)
        seen: dict[str, str] = {}
        count = 0
        for partition, bounds in there.describe("orders").partitions.items():
            if bounds.latest is None:
                continue
            read = RangeRead("orders", partition, EARLIEST, bounds.latest, tuple(FULL_MESSAGE_SCHEMA.names))
            for batch in there.fetch(read):
                assert batch.schema == FULL_MESSAGE_SCHEMA
                count += batch.num_rows
                for row in batch.to_pylist():
                    assert seen.setdefault(row["key"], row["partition"]) == partition
                    assert b"event-streams-offset" not in row["message"]
    assert count == 70 and len(seen) == 7


def described_by(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The partitions that each message about a stream has from now on; some messages nobody waits for any more."""
    messages: list[list[str]] = []
    message, entry = Descriptions.describe, Descriptions._partition

    def describe(descriptions: Descriptions, *given: Any, **named: Any) -> bytes:
        messages.append([])
        return message(descriptions, *given, **named)

    def partition(descriptions: Descriptions, there: Any, *given: Any) -> bytes:
        messages[-1].append(there.id)
        return entry(descriptions, there, *given)

    monkeypatch.setattr(Descriptions, "describe", describe)
    monkeypatch.setattr(Descriptions, "_partition", partition)
    return messages


def test_events_are_told_from_others_at_their_offset(log_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log_server.log.create_stream("orders", 2)
    log_server.log.create_stream("others", 1)
    with client(log_server) as there:
        publish(there, "orders", [b"a"], partition="0")
        publish(there, "orders", [b"b"], partition="1")
        publish(there, "others", [b"b"], partition="0")
        first, second = f"{0:020d}", f"{1:020d}"
        told = there.log_identity("orders", {"0": first, "1": first})
        assert told == there.log_identity("orders", {"0": first, "1": first})
        assert (
            None not in told.values()
            and len({*told.values(), *there.log_identity("others", {"0": first}).values()}) == 3
        )
        assert there.log_identity("orders", {"0": second, "1": "0", "7": first}) == {"0": None, "1": None, "7": None}
        assert there.log_identity("orders", {"7": first}) == {"7": None}
    log_server.log.create_stream("many", 150)
    with client(log_server) as there:
        for partition in range(150):
            log_server.log.stream("many").partitions[str(partition)].append(
                [b"\x00\x53\x75\xa0\x01%d" % (partition % 10)]
            )
        described = described_by(monkeypatch)
        told = there.log_identity("many", {str(partition): first for partition in range(150)})
    assert len(told) == 150 and None not in told.values()
    assert len(described) >= 3 and max(map(len, described)) == 64, "no answer is about all partitions"
    assert {name for each in described for name in each} == {str(partition) for partition in range(150)}


def test_what_remains_of_more_partitions_than_one_attach_can_name(
    log_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attach is one frame, and the door takes frames of 32 KiB."""
    count = 1_200
    stream = log_server.log.create_stream("many", count)
    for partition in ("0", "700", str(count - 1)):
        stream.partitions[partition].append([b"\x00\x53\x75\xa0\x01%d" % n for n in range(5)])
    described = described_by(monkeypatch)
    positions = {str(partition): EARLIEST for partition in range(count)}
    positions |= {"700": After(f"{1:020d}"), str(count - 1): At(f"{1:020d}"), "9999": EARLIEST}
    with client(log_server) as there:
        left = there.remaining("many", positions)
        assert max(map(len, described)) <= 256, "no answer is about all partitions"
        assert {name for each in described for name in each} == {str(partition) for partition in range(count)}
        assert left.keys() == positions.keys()
        assert {p: n for p, n in left.items() if n != 0} == {"0": 5, "700": 3, str(count - 1): 4, "9999": None}
        assert there.remaining("many", {"9999": EARLIEST}) == {"9999": None}
        assert there.remaining("many", {"3": LATEST}) == {"3": 0}


@pytest.mark.parametrize("loss", [True, False])
def test_a_log_that_is_gone_when_its_range_is_read(
    log_server: Any, loss: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is waited for; created again and shorter, it has lost the range, and it may never come back."""
    pauses: list[float] = []

    def create_again(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            log_server.log.create_stream("orders", 1)

    log_server.log.create_stream("orders", 1)
    with client(log_server) as there:
        publish(there, "orders", [b"%d" % n for n in range(100)])
        read = rows("orders", there.describe("orders").partitions["0"].latest, fail_on_data_loss=loss)
        for act, fault in ((create_again, PositionLost), (pauses.append, NotFound)):
            log_server.log.delete_stream("orders")
            monkeypatch.setattr(retry, "_pause", act)
            pauses.clear()
            caplog.clear()
            with pytest.raises(fault) if loss else contextlib.nullcontext():
                assert values(there, read) == []
            assert loss or "going on with what is left" in caplog.text
    assert 35 < sum(pauses) < 45


def test_wrong_password_and_unknown_stream(log_server: Any) -> None:
    with client(log_server, password="wrong-secret") as there, pytest.raises(AuthenticationFailed) as failed:
        there.describe("orders")
    assert "wrong-secret" not in str(failed.value) and "check options 'username' and 'password'" in str(failed.value)
    with client(log_server) as there:
        with pytest.raises(NotFound, match=r"attach to 'nope' at 127.0.0.1:\d+: amqp:not-found"):
            there.describe("nope")
        with pytest.raises(NotFound, match="attach to 'nope'"):
            there.publisher("nope")
        log_server.log.create_stream("orders", 1)
        with pytest.raises(NotFound, match="partition '7'"):
            values(there, rows("orders", "1", partition="7"))


def test_a_row_for_an_unknown_partition_is_rejected_by_its_label(log_server: Any) -> None:
    log_server.log.create_stream("orders", 2)
    partitions = pa.array(["0", "1", "9", "0"])
    with (
        client(log_server) as there,
        pytest.raises(DeliveryFailed, match=r"^row 2 was rejected by stream 'orders': amqp:"),
    ):
        publish(there, "orders", [b""] * 4, c_partition=partitions)


def test_a_time_is_looked_up_before_1970_too(log_server: Any) -> None:
    stream = log_server.log.create_stream("history", 1, StreamConfig(timestamp_type="create"))
    times = [-386_380_800_000, -1, 0, 5, 3]
    message = bytes(encode_columns({"value": pa.array([b"x"], pa.binary())})[0].as_py())
    stream.partitions["0"].append([message] * 5, None, times)
    with client(log_server) as there:
        offsets = there.offsets("history", "0", EARLIEST, None).take(10)
        for asked, index in [(-(2**63) + 1, 0), (-386_380_800_000, 0), (-2, 1), (-1, 1), (0, 2), (1, 3), (4, 3)]:
            assert there.first_at_time("history", "0", asked) == offsets[index], asked
        assert there.first_at_time("history", "0", 6) is None
        assert there.first_matching("history", "0", parse("publish_time > -1")) == offsets[2]
        assert there.first_matching("history", "0", parse(f"offset > '{offsets[3]}'")) == offsets[4]
        assert there.first_matching("history", "0", parse("publish_time > 5")) is None


def test_a_cut_connection_in_mid_fetch_gives_exactly_the_same_rows(log_server: Any) -> None:
    log_server.log.create_stream("orders", 1)
    sent = [b"%06d" % n + b"x" * 100 for n in range(20_000)]
    port = int(log_server.urls["amqp"].rpartition(":")[2])
    with client(log_server) as there, TcpProxy(port, [700_000, 4_000, 900_000, 600]) as proxy:
        publish(there, "orders", sent)
        end = there.describe("orders").partitions["0"].latest
        with client(log_server, port=proxy.port) as reader:
            assert values(reader, rows("orders", end), max_rows=1_000) == sent
        assert proxy.connections == 5


def test_a_new_owner_with_a_higher_epoch_is_named(log_server: Any) -> None:
    log_server.log.create_stream("orders", 1)
    with client(log_server, consumer_group="g", epoch=1) as there:
        publish(there, "orders", [b"x" * 1_000] * 20_000)
        end = there.describe("orders").partitions["0"].latest
        batches = there.fetch(rows("orders", end), max_rows=100)
        assert next(batches).num_rows
        with client(log_server, consumer_group="g", epoch=5) as thief:
            theft = thief.fetch(rows("orders", end), max_rows=100)
            assert next(theft).num_rows
            with pytest.raises(OwnershipLost, match="amqp:link:stolen") as stolen:
                list(batches)
            assert stolen.value.epoch == 5
            theft.close()


def test_renegotiation_in_mid_fetch_gives_exactly_the_same_rows_es_108(log_server: Any) -> None:
    log_server.log.create_stream("orders", 1)
    sent = [b"%06d" % n for n in range(20_000)]
    with client(log_server, consumer_group="g") as there:
        publish(there, "orders", sent)
        end = there.describe("orders").partitions["0"].latest
        batches = there.fetch(rows("orders", end), max_rows=1_000)
        seen = list(next(batches).column("value").to_pylist())
        log_server.call(lambda: log_server.server.renegotiate("orders", "g"))
        for batch in batches:
            seen += batch.column("value").to_pylist()
    assert seen == sent


def test_removed_events_are_noticed(tmp_path: Any) -> None:
    config = StreamConfig(segment_max_bytes=20_000, retention_max_bytes=60_000)
    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, AmqpConfig(port=0)) as server:
        partition = log.create_stream("orders", 1, config).partitions["0"]
        message = bytes(encode_columns({"value": pa.array([b"x" * 500], pa.binary())})[0].as_py())
        for _ in range(40):
            partition.append([message] * 10)
        with client(server) as there:
            before = there.offsets("orders", "0", EARLIEST, None).take(1_000)
            log.enforce_retention()
            bounds = there.describe("orders").partitions["0"]
            assert bounds.truncated is not None and bounds.truncated > before[5]
            with pytest.raises(PositionLost, match="failOnDataLoss"):
                values(there, rows("orders", before[-1], After(before[4])))
            kept = [o for o in before if o > bounds.truncated]
            assert len(values(there, rows("orders", before[-1], After(bounds.truncated)))) == len(kept)
            got = values(there, rows("orders", before[-1], After(before[4]), fail_on_data_loss=False))
            assert len(got) == len(kept)


def test_a_walk_sees_what_is_appended_later(log_server: Any) -> None:
    log_server.log.create_stream("orders", 1)
    with client(log_server) as there, client(log_server) as sender:
        walk = there.offsets("orders", "0", EARLIEST, None)
        assert walk.take(5) == []
        publish(sender, "orders", [b""] * 7)
        assert len(walk.take(5)) == 5
        assert len(walk.take(5)) == 2


def test_memory_columns_and_threads_do_not_mix(log_server: Any) -> None:
    """Two clients in two threads read the same range, each with its own connection."""
    log_server.log.create_stream("orders", 1)
    sent = [b"%d" % n for n in range(5_000)]
    with client(log_server) as there:
        publish(there, "orders", sent)
        end = there.describe("orders").partitions["0"].latest
    results: list[list[bytes]] = []

    def run() -> None:
        with client(log_server) as own:
            results.append(values(own, rows("orders", end), max_rows=500))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert results == [sent, sent]


def test_the_end_of_a_range_is_recognised_and_not_waited_for(log_server: Any) -> None:
    log_server.log.create_stream("orders", 1)
    with client(log_server, timeout_ms=3_600_000) as there:
        publish(there, "orders", [b"one"])
        end = there.describe("orders").partitions["0"].latest
        assert values(there, rows("orders", end)) == [b"one"]
        (batch,) = there.fetch(RangeRead("orders", "0", EARLIEST, str(end), tuple(MESSAGE_SCHEMA.names)))
        assert batch.schema == MESSAGE_SCHEMA


def test_tls_and_a_client_certificate(certificates: Path, tmp_path: Path) -> None:
    pem = {name: str(certificates / f"{name}.pem") for name in ("ca", "server", "client")}
    config = AmqpConfig(port=0, tls_cert=pem["server"], tls_key=pem["server"], tls_client_ca=pem["ca"])
    sent = [b"%d" % n + b"x" * 1_000 for n in range(3_000)]
    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, config) as server:
        log.create_stream("orders", 1)
        port = int(server.urls["amqp"].rpartition(":")[2])
        by_password = Endpoint("amqps", "127.0.0.1", port, "guest", Secret("guest"), Tls(pem["ca"]))
        with AmqpClient(by_password, timeout_ms=120_000) as sender:
            publish(sender, "orders", sent)
        by_certificate = Endpoint("amqps", "127.0.0.1", port, None, None, Tls(pem["ca"], pem["client"]))
        with AmqpClient(by_certificate, timeout_ms=120_000) as reader:
            end = reader.describe("orders").partitions["0"].latest
            assert values(reader, rows("orders", end), max_rows=1_000) == sent
        nobody = Endpoint("amqps", "127.0.0.1", port, None, None, Tls(pem["ca"]))
        with AmqpClient(nobody, timeout_ms=120_000) as stranger, pytest.raises(AuthenticationFailed, match="PLAIN"):
            stranger.describe("orders")
        plain = Endpoint("amqp", "127.0.0.1", port, "guest", Secret("guest"))
        with AmqpClient(plain, timeout_ms=120_000) as wrong, pytest.raises(ConnectFailed, match="write amqps://"):
            wrong.describe("orders")


def test_tls_to_the_plain_door(log_server: Any) -> None:
    port = int(log_server.urls["amqp"].rpartition(":")[2])
    endpoint = Endpoint("amqps", "127.0.0.1", port, "guest", Secret("guest"), Tls())
    with AmqpClient(endpoint, timeout_ms=120_000) as wrong, pytest.raises(ConnectFailed, match="write amqp:// instead"):
        wrong.describe("orders")


def test_a_redirect_to_another_door(log_server: Any, tmp_path: Path) -> None:
    log_server.log.create_stream("moved", 1)
    port = int(log_server.urls["amqp"].rpartition(":")[2])
    redirects = {("orders", "0"): Redirect("elsewhere", "127.0.0.1", port, "moved")}
    config = AmqpConfig(port=0, redirects=redirects)
    with ReferenceLog(tmp_path / "here") as here, ServerThread(here, config) as server, client(server) as there:
        here.create_stream("orders", 1)
        publish(there, "orders", [b"one", b"two"], partition="0")
        bounds = log_server.log.stream("moved").partitions["0"]
        assert bounds.next_offset == 2
        assert there.offsets("orders", "0", EARLIEST, None).take(5) == [f"{n:020d}" for n in range(2)]
        assert here.stream("orders").partitions["0"].next_offset == 0


def test_a_slow_reader_outlives_the_doors_idle_timeout(tmp_path: Path) -> None:
    sent = [b"%d" % n for n in range(10_000)]
    config = AmqpConfig(port=0, idle_timeout_ms=300)
    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, config) as server, client(server) as there:
        log.create_stream("orders", 1).partitions["0"].append(encode_columns({"value": pa.array(sent, pa.binary())}))
        seen: list[bytes] = []
        for number, batch in enumerate(there.fetch(rows("orders", f"{9_999:020d}"), max_rows=4_000)):
            seen += batch.column("value").to_pylist()
            time.sleep(0.8 if number == 0 else 0)
        assert seen == sent
        time.sleep(0.8)
        assert there.describe("orders").partitions["0"].latest == f"{9_999:020d}"


def test_a_change_whose_answer_is_lost_is_not_made_again(tmp_path: Path) -> None:
    """A second request would find what the first has done: a stream that is there already, or one that is not."""
    with ReferenceLog(tmp_path) as log, ServerThread(log, AmqpConfig(port=0)) as server:
        port = int(server.urls["amqp"].rpartition(":")[2])
        with TcpProxy(port) as proxy, client(server, port=proxy.port) as changing:
            proxy.order(Break("cut", within=b"it was created"))
            with pytest.raises(ConnectionLost):
                changing.create("orders", 2, {})
            assert len(log.stream("orders").partitions) == 2
            assert changing.create("orders", 2, {}) is False, "the client goes on"
            proxy.order(Break("cut", within=b"it was deleted"))
            with pytest.raises(ConnectionLost):
                changing.delete("orders")
            assert log.find("orders") is None
            with pytest.raises(NotFound):
                changing.delete("orders")
            assert proxy.pending == 0
