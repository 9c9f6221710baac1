"""What only the embedded door has: one log with other doors and other ways in, TLS, restarts, older brokers to play."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_streams.errors import StreamExists
from spark_streams.log import LogConfig, ReferenceLog, StreamConfig
from spark_streams.server import RabbitConfig, ServerThread
from tests.certificate_authority import Authority
from tests.real_rabbitmq.by_hand import (
    CLOSE,
    CREATE_SUPER_STREAM,
    EXCHANGE_COMMAND_VERSIONS,
    FIRST,
    METADATA,
    METADATA_UPDATE,
    NEXT,
    OPEN,
    PARTITIONS,
    PEER_PROPERTIES,
    PUBLISH_ERROR,
    QUERY_OFFSET,
    QUERY_PUBLISHER_SEQUENCE,
    ROUTE,
    SASL_HANDSHAKE,
    STORE_OFFSET,
    STREAM_STATS,
    Peer,
    array,
    chunk,
    filtered,
    pairs,
    plain,
    text,
)
from tests.server.rabbitmq.beside import until


def update(stream: str) -> bytes:
    return struct.pack(">H", 6) + text(stream)


def names(body: bytes) -> list[str]:
    """The streams of an answer to Route or Partitions that says OK."""
    code, count = struct.unpack_from(">HI", body)
    assert code == 1
    found, at = [], 6
    for _ in range(count):
        (length,) = struct.unpack_from(">H", body, at)
        found.append(body[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return found


def partitions(peer: Peer, name: str) -> list[str]:
    return names(peer.ask(PARTITIONS, text(name)).body)


def create_super(peer: Peer, name: str, streams: list[str], keys: list[str], **arguments: str) -> int:
    words = array([text(s) for s in streams]) + array([text(k) for k in keys])
    return peer.ask(CREATE_SUPER_STREAM, text(name) + words + pairs(arguments)).code


def exists(peer: Peer, stream: str) -> bool:
    return peer.ask(STREAM_STATS, text(stream)).code == 1


# --- names


def test_logs_of_other_doors_have_names(door: Any) -> None:
    door.log.create_stream("plain")
    door.log.create_stream("wide", 3)
    peer = door.peer()
    assert exists(peer, "plain") and not exists(peer, "plain-0") and not exists(peer, "wide")
    assert partitions(peer, "wide") == ["wide-0", "wide-1", "wide-2"]
    assert all(exists(peer, f"wide-{n}") for n in range(3))
    for wrong in ("wide-3", "wide-03", "wide--1", "wide-", "wide-x", "wide-１"):
        assert not exists(peer, wrong)
    assert names(peer.ask(ROUTE, text("2") + text("wide")).body) == ["wide-2"]
    assert peer.ask(PARTITIONS, text("plain")).code == 2
    assert peer.create("wide-1") == 5 and peer.delete("wide-1") == 0x11, "it goes with its super stream only"


def test_partitions_that_are_added(door: Any) -> None:
    """Default names for what comes later; and a plain stream that becomes several is another thing, and says so."""
    door.log.create_stream("wide", 2)
    door.log.create_stream("narrow")
    peer = door.peer()
    assert create_super(peer, "named", ["eu", "us"], ["e", "u"]) == 1
    assert peer.declare(1, "narrow") == peer.declare(2, "wide-0") == peer.subscribe(1, "eu", NEXT) == 1
    for name in ("wide", "narrow", "named"):
        door.log.add_partitions(name, 1)
    assert peer.expect(METADATA_UPDATE).body == update("narrow")
    assert partitions(peer, "wide") == ["wide-0", "wide-1", "wide-2"]
    assert partitions(peer, "narrow") == ["narrow-0", "narrow-1"]
    assert partitions(peer, "named") == ["eu", "us", "named-2"]
    assert names(peer.ask(ROUTE, text("2") + text("named")).body) == ["named-2"]
    assert not list(peer.take(METADATA_UPDATE)), "the others are what they were"
    peer.publish(2, [plain(1, b"x")])
    assert peer.confirmed(1) == [1]


def test_a_partition_that_was_split_and_closed(door: Any) -> None:
    """It is read like before, publishers are refused, and its binding key leads nowhere."""
    peer = door.peer()
    assert create_super(peer, "sales", ["eu", "us"], ["e", "u"]) == 1
    assert peer.declare(1, "eu", "r") == peer.declare(2, "us") == 1
    peer.publish(1, [plain(1, b"old")])
    assert peer.confirmed(1) == [1]
    door.log.split_partition("sales", "0")
    assert partitions(peer, "sales") == ["eu", "us", "sales-2", "sales-3"]
    routes = {key: names(peer.ask(ROUTE, text(key) + text("sales")).body) for key in ("e", "u", "2", "3", "0")}
    assert routes == {"e": [], "u": ["us"], "2": ["sales-2"], "3": ["sales-3"], "0": []}
    peer.publish(1, [plain(2, b"late")])
    refused = peer.expect(PUBLISH_ERROR).body
    assert struct.unpack(">BIQH", refused) == (1, 1, 2, 0x11)
    assert peer.declare(3, "eu") == 0x11 and peer.declare(4, "sales-2") == 1
    peer.publish(4, [plain(1, b"new")])
    assert peer.confirmed(1) == [1]
    for number, (stream, message) in enumerate({"eu": b"old", "sales-2": b"new"}.items()):
        assert peer.subscribe(number, stream, FIRST) == 1
        assert chunk(peer.expect(8)).rest.endswith(message)
    assert not list(peer.take(METADATA_UPDATE))


def test_a_partition_whose_history_was_redistributed(door: Any) -> None:
    """It is gone, of which those who used it are told; its messages and publishing ids are on the others."""
    door.log.create_stream("wide", 2)
    peer = door.peer()
    assert peer.declare(1, "wide-0", "r") == peer.declare(2, "wide-1") == peer.subscribe(1, "wide-0", NEXT) == 1
    peer.publish(1, [plain(n, b"%d" % n) for n in (1, 2, 3, 4)])
    assert sorted(peer.confirmed(4)) == [1, 2, 3, 4]
    door.log.split_partition("wide", "0", history=True)
    assert peer.expect(METADATA_UPDATE).body == update("wide-0")
    assert partitions(peer, "wide") == ["wide-1", "wide-2", "wide-3"] and not exists(peer, "wide-0")
    assert peer.declare(1, "wide-0", "r") == 2
    assert names(peer.ask(ROUTE, text("0") + text("wide")).body) == []
    peer.publish(2, [plain(1, b"x")])
    assert peer.confirmed(1) == [1], "the others are what they were"
    for number, stream in ((3, "wide-2"), (4, "wide-3")):
        assert peer.stats(stream)[1]["committed_offset"] == 1, "two of four: those without a key go in turn"
        assert peer.declare(number, stream, "r") == 1
        sequence = peer.ask(QUERY_PUBLISHER_SEQUENCE, text("r") + text(stream)).body
        assert struct.unpack(">HQ", sequence) == (1, 4)
    assert not list(peer.take(METADATA_UPDATE))


@pytest.mark.parametrize("count", [0, 4])
def test_how_many_partitions_a_super_stream_may_have(doors: Callable[..., Any], count: int) -> None:
    peer = doors(max_super_stream_partitions=3).peer()
    every = [str(n) for n in range(count)]
    assert create_super(peer, "sales", every, every) == 0x11
    assert create_super(peer, "sales", ["0", "1", "2"], ["0", "1", "2"]) == 1


def test_one_partition_may_be_a_super_stream(door: Any) -> None:
    peer = door.peer()
    assert create_super(peer, "single", ["single-0"], ["key"]) == 1
    assert partitions(peer, "single") == ["single-0"] and exists(peer, "single-0") and not exists(peer, "single")
    assert create_super(peer, "single", ["x"], ["x"]) == 5 and peer.create("single") == 5


@pytest.mark.parametrize(
    "arguments", [{"max_age": "7"}, {"max_age": "-1D"}, {"max_length_bytes": "x"}, {"max_age": ""}]
)
def test_values_that_cannot_be_used(door: Any, arguments: dict[str, str]) -> None:
    """Brokers take some of these, and some of these take the broker down (3.10)."""
    assert door.peer().create("orders", **arguments) == 0x11


@pytest.mark.parametrize("name", ["line\nbreak", "x" * 300])
def test_names_that_the_log_cannot_take(door: Any, name: str) -> None:
    assert door.peer().create(name) == 0x11


def test_arguments_are_settings_of_the_log(door: Any) -> None:
    arguments = {"max_age": "2h", "max_length_bytes": "5000", "stream_max_segment_size_bytes": "1000"}
    assert door.peer().create("orders", **arguments) == 1
    config = door.log.stream("orders").config
    assert (config.retention_max_age_ms, config.retention_max_bytes, config.segment_max_bytes) == (
        7_200_000,
        5_000,
        1_000,
    )


def test_a_stream_of_another_door_is_there_already(door: Any) -> None:
    """Clients create what may be there: a stream of other settings is refused only where they contradict."""
    door.log.create_stream("orders", 1, StreamConfig(timestamp_type="create", retention_max_age_ms=86_400_000))
    peer = door.peer()
    assert peer.create("orders") == peer.create("orders", max_age="24h") == 5
    assert peer.create("orders", max_age="25h") == 0x11
    assert peer.create("orders", stream_filter_size_bytes="32") == 0x11


# --- what happens to streams behind the door


def test_streams_that_go_behind_the_door(door: Any) -> None:
    for name, count in (("orders", 1), ("wide", 2), ("other", 1)):
        door.log.create_stream(name, count)
    peer = door.peer()
    assert peer.declare(1, "orders") == peer.subscribe(1, "wide-0", NEXT) == peer.subscribe(2, "other", NEXT) == 1
    door.log.delete_stream("orders")
    door.log.delete_stream("wide")
    told = {peer.expect(METADATA_UPDATE).body for _ in range(2)}
    assert told == {update("orders"), update("wide-0")}
    assert not exists(peer, "orders") and peer.ask(6, b"\1").code == 0x12 and peer.ask(12, b"\1").code == 4
    assert peer.ask(12, b"\2").code == 1


def test_a_stream_that_was_deleted_and_created_again_at_once(door: Any) -> None:
    door.log.create_stream("orders")
    peer = door.peer()
    assert peer.declare(1, "orders", "r") == 1
    peer.publish(1, [plain(9, b"x")])
    assert peer.confirmed(1) == [9]
    peer.send(STORE_OFFSET, text("app") + text("orders") + struct.pack(">Q", 3))
    assert peer.ask(QUERY_OFFSET, text("app") + text("orders")).body == struct.pack(">HQ", 1, 3)
    door.log.delete_stream("orders")
    door.log.create_stream("orders")
    assert peer.expect(METADATA_UPDATE).body == update("orders")
    assert peer.declare(1, "orders", "r") == 1
    assert peer.ask(QUERY_OFFSET, text("app") + text("orders")).code == 0x13
    peer.publish(1, [plain(1, b"new")])
    assert peer.confirmed(1) == [1]
    assert peer.stats("orders")[1]["committed_offset"] == 0, "stored: no id of the old one counts"


def test_names_of_a_super_stream_that_another_door_replaced(door: Any) -> None:
    peer = door.peer()
    assert create_super(peer, "sales", ["eu", "us"], ["e", "u"]) == 1
    door.log.delete_stream("sales")
    door.log.create_stream("sales", 2)
    assert partitions(peer, "sales") == ["sales-0", "sales-1"] and not exists(peer, "eu")
    assert peer.create("eu") == 1


def test_stats_of_a_log_that_retention_has_cut(doors: Callable[..., Any]) -> None:
    now = [1_000_000]
    door = doors(clock=lambda: now[0])
    door.log.create_stream("orders", 1, StreamConfig(segment_max_bytes=1, retention_max_age_ms=100))
    partition = door.partition("orders")
    for _ in range(3):
        partition.append([b"x", b"y"])
        now[0] += 90
    door.log.enforce_retention()
    peer = door.peer()
    assert peer.stats("orders")[1] == {
        "first_chunk_id": 4, "last_chunk_id": 4, "committed_chunk_id": 4, "committed_offset": 5
    }  # fmt: skip
    now[0] += 1_000
    door.log.enforce_retention()
    told = peer.stats("orders")[1]
    assert (told["first_chunk_id"], told["committed_offset"]) == (6, 5), "nothing is left, and it goes on at 6"


def test_stats_count_chunks_as_they_are_delivered(door: Any) -> None:
    door.log.create_stream("orders")
    door.partition("orders").append([b"x"] * 40_000)
    peer = door.peer()
    assert peer.subscribe(1, "orders", FIRST, credit=10) == 1
    ids = [chunk(frame).first for frame in peer.barrier("orders")]
    assert peer.stats("orders")[1]["last_chunk_id"] == ids[-1] > 0


def test_no_stream_takes_the_place_of_a_partition(door: Any) -> None:
    peer = door.peer()
    door.log.create_stream("orders", 2)
    assert create_super(peer, "sales", ["eu", "us"], ["e", "u"]) == 1
    for name in ("orders-0", "orders-1", "eu", "sales"):
        assert peer.create(name) == 5
        with pytest.raises(StreamExists):
            door.log.create_stream(name)
    assert create_super(peer, "more", ["orders-1", "more-1"], ["a", "b"]) == 5
    assert peer.create("late-1") == peer.create("/late") == 1
    assert create_super(peer, "late", ["late-0", "late-1"], ["a", "b"]) == 5
    assert create_super(peer, "late", ["late-0", "late-2"], ["a", "b"]) == 5, "an AMQP address may mean either"
    assert partitions(peer, "orders") == ["orders-0", "orders-1"] and partitions(peer, "sales") == ["eu", "us"]


# --- durable


def test_what_is_known_after_a_restart(tmp_path: Path) -> None:
    def served() -> tuple[Any, Any, Peer]:
        log = ReferenceLog(tmp_path / "log").__enter__()
        server = ServerThread(log, rabbit=RabbitConfig(port=0))
        server.start()
        return log, server, Peer(server.rabbit_url).open()

    log, server, peer = served()
    assert create_super(peer, "sales", ["eu", "us"], ["e", "u"], **{"stream-filter-size-bytes": "64"}) == 1
    assert peer.create("orders", max_age="7D") == 1
    peer.send(STORE_OFFSET, text("app") + text("orders") + struct.pack(">Q", 12))
    peer.send(STORE_OFFSET, text("app") + text("us") + struct.pack(">Q", 13))
    peer.ask(METADATA, array([]))
    peer.close()
    server.stop()
    log.close()
    log, server, peer = served()
    assert partitions(peer, "sales") == ["eu", "us"]
    assert names(peer.ask(ROUTE, text("u") + text("sales")).body) == ["us"]
    assert peer.create("orders", max_age="7D") == 5 and peer.create("orders", max_age="8D") == 0x11
    for stream, offset in (("orders", 12), ("us", 13)):
        assert peer.ask(QUERY_OFFSET, text("app") + text(stream)).body == struct.pack(">HQ", 1, offset)
    peer.close()
    server.stop()
    # While the door is shut the streams go: what it knew of them goes too.
    log.delete_stream("orders")
    log.delete_stream("sales")
    log.create_stream("sales", 2)
    log.close()
    log, server, peer = served()
    assert partitions(peer, "sales") == ["sales-0", "sales-1"]
    assert log.state.items("rabbitmq-streams") == []
    until(lambda: log.state.items("rabbitmq-offsets") == [])  # removed beside the loop
    peer.close()
    server.stop()
    log.close()


def test_the_server_says_why_it_closes(door: Any) -> None:
    peer, waiting = door.peer(), door.connect()
    waiting.ask(PEER_PROPERTIES, pairs({}))
    door.server.stop()
    frame = peer.expect(CLOSE)
    assert frame.body == struct.pack(">H", 1) + text("the server stops")
    with pytest.raises((EOFError, ConnectionError)):
        waiting.read()


# --- TLS


def authority(folder: Path) -> Authority:
    return Authority(folder, "authority")


def over_tls(door: Any, ca: Authority, certificate: tuple[str, str] | None = None) -> Peer:
    peer: Peer = door.connect()
    peer.stream.close()
    peer.socket = ca.context(certificate).wrap_socket(peer.socket, server_hostname="localhost")
    peer.stream = peer.socket.makefile("rb")
    return peer


def test_external_over_tls(doors: Callable[..., Any], tmp_path: Path) -> None:
    ca = authority(tmp_path)
    certificate, key = ca.issue("server")
    door = doors(tls_cert=certificate, tls_key=key, tls_client_ca=str(ca.file), authentication_delay_ms=10)
    assert door.server.urls["rabbitmq-stream"].startswith("rabbitmq-stream+tls://")
    peer = over_tls(door, ca, ca.issue("ann"))
    peer.ask(PEER_PROPERTIES, pairs({}))
    assert peer.ask(SASL_HANDSHAKE).body == struct.pack(">HI", 1, 2) + text("EXTERNAL") + text("PLAIN")
    assert peer.authenticate("EXTERNAL", None).code == 1
    peer.tune()
    assert peer.ask(OPEN, text("/")).code == 1
    assert peer.create("orders") == 1
    users = door.server.call(lambda: {each.user for each in door.server.server.door("rabbitmq-stream").connections})
    assert "ann" in users


def test_without_a_certificate_there_is_no_external(doors: Callable[..., Any], tmp_path: Path) -> None:
    ca = authority(tmp_path)
    certificate, key = ca.issue("server")
    door = doors(tls_cert=certificate, tls_key=key, tls_client_ca=str(ca.file))
    peer = over_tls(door, ca)
    peer.ask(PEER_PROPERTIES, pairs({}))
    assert peer.ask(SASL_HANDSHAKE).body == struct.pack(">HI", 1, 1) + text("PLAIN")
    assert peer.authenticate("EXTERNAL", b"").code == 7
    over_tls(door, ca).open()


def test_a_certificate_of_somebody_else_is_not_taken(doors: Callable[..., Any], tmp_path: Path) -> None:
    ca, other = authority(tmp_path), Authority(tmp_path, "somebody")
    certificate, key = ca.issue("server")
    door = doors(tls_cert=certificate, tls_key=key, tls_client_ca=str(ca.file))
    with pytest.raises((OSError, EOFError)):
        over_tls(door, ca, other.issue("eve")).ask(PEER_PROPERTIES, pairs({}))


# --- settings


def test_where_clients_are_told_to_connect(doors: Callable[..., Any]) -> None:
    door = doors(advertised_host="log.example.com", advertised_port=5999)
    door.log.create_stream("orders")
    peer = door.peer()
    wanted = struct.pack(">IH", 1, 0) + text("log.example.com") + struct.pack(">I", 5999)
    assert peer.ask(METADATA, array([text("orders")])).body.startswith(wanted)


def test_older_brokers_can_be_played(doors: Callable[..., Any]) -> None:
    door = doors(without=frozenset({STREAM_STATS, 0x1F}), filtering=False, committed_offset=False, version="3.10.8")
    stream = door.stream()
    peer = door.connect()
    assert text("3.10.8") in peer.ask(PEER_PROPERTIES, pairs({})).body
    peer.ask(SASL_HANDSHAKE)
    peer.authenticate()
    peer.tune()
    peer.ask(OPEN, text("/"))
    listed = peer.ask(EXCHANGE_COMMAND_VERSIONS, array([])).body
    assert struct.pack(">HHH", 2, 1, 1) in listed and struct.pack(">HHH", STREAM_STATS, 1, 1) not in listed
    peer.send(STREAM_STATS, struct.pack(">I", 1) + text(stream))
    assert peer.expect(CLOSE).code == 0x0D
    peer = door.peer()
    assert peer.declare(1, stream) == 1
    peer.publish(1, [filtered(1, "x", b"y")], version=2)
    assert peer.expect(CLOSE).code == 0x0D
    lacking = doors(committed_offset=False, folder="other")
    assert set(lacking.peer().stats(lacking.stream())[1]) == {"first_chunk_id", "last_chunk_id", "committed_chunk_id"}


def test_everything_waits_for_the_disk(doors: Callable[..., Any]) -> None:
    """With fsync policy always an answer comes after what the connection published before it."""
    door = doors(log_config=LogConfig(fsync="always"))
    stream, peer = door.stream(), door.peer()
    assert peer.declare(1, stream, "r") == 1
    peer.publish(1, [plain(n, b"x") for n in range(1, 6)])
    assert sorted(peer.confirmed(5)) == [1, 2, 3, 4, 5]
    assert peer.stats(stream)[1]["committed_offset"] == 4


def test_the_servers_of_both_doors(doors: Callable[..., Any]) -> None:
    door = doors(amqp=True)
    assert list(door.server.urls) == ["amqp", "rabbitmq-stream"]
    assert door.server.rabbit_url == door.server.urls["rabbitmq-stream"].replace("//", "//guest:guest@")
