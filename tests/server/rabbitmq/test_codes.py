"""Every response code of the protocol's table, and the two that brokers added (S-151), is provoked by a test.

A test whose name has a code, as ``test_0x05_…`` or ``test_0x10_0x11_…``, is one that provokes it.
"""

from __future__ import annotations

import errno
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_streams.server import Permissions
from tests.real_rabbitmq.by_hand import (
    CLOSE,
    CREATE_SUPER_STREAM,
    DELETE_PUBLISHER,
    DELETE_SUPER_STREAM,
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
    pairs,
    plain,
    text,
)


def test_every_code_has_a_test() -> None:
    tested = set()
    for file in Path(__file__).parent.glob("test_*.py"):
        for name in re.findall(r"^def test_((?:0x[0-9a-f]{2}_)+)", file.read_text(), re.MULTILINE):
            tested |= {int(code, 16) for code in name.split("_") if code}
    assert tested == set(range(0x01, 0x16)) - {0x0A}, "a challenge: no mechanism of the door has one"


embedded = pytest.mark.parametrize("broker", ["embedded"], indirect=True)
"""A real broker takes three seconds for these: test_opening.py asks it for them all at once."""


def introduced(broker: Any) -> Peer:
    """A connection that may authenticate now."""
    peer: Peer = broker.connect()
    assert peer.ask(PEER_PROPERTIES, pairs({})).code == peer.ask(SASL_HANDSHAKE).code == 1
    return peer


def closed(peer: Peer) -> bool:
    """Say whether the connection ends without another frame."""
    try:
        peer.read()
    except (EOFError, ConnectionError):
        return True
    return False


def test_0x01_ok(broker: Any) -> None:
    assert broker.peer().create(f"{broker.prefix}-ok") == 1
    assert broker.peer().delete(f"{broker.prefix}-ok") == 1


def test_0x02_stream_does_not_exist(broker: Any) -> None:
    peer, missing = broker.peer(), f"{broker.prefix}-missing"
    answers = [peer.ask(QUERY_OFFSET, text("r") + text(missing)), peer.ask(STREAM_STATS, text(missing))]
    answers += [
        peer.ask(DELETE_SUPER_STREAM, text(missing)),
        peer.ask(QUERY_PUBLISHER_SEQUENCE, text("r") + text(missing)),
    ]
    assert [answer.code for answer in answers] == [2] * 4
    assert peer.delete(missing) == peer.declare(1, missing) == peer.subscribe(1, missing, NEXT) == 2


def test_0x05_stream_already_exists(broker: Any) -> None:
    assert broker.peer().create(broker.stream()) == 5


def test_0x06_stream_not_available(broker: Any) -> None:
    """The code of MetadataUpdate."""
    stream, peer = broker.stream(), broker.peer()
    assert peer.subscribe(1, stream, NEXT) == 1
    assert broker.peer().delete(stream) == 1
    assert peer.expect(METADATA_UPDATE).code == 6


def test_0x07_mechanism_not_supported(broker: Any) -> None:
    peer = introduced(broker)
    assert peer.authenticate("EXTERNAL", b"").code == 7 and closed(peer)


@embedded
def test_0x08_authentication_failure(broker: Any) -> None:
    peer = introduced(broker)
    assert peer.authenticate(secret=b"\0guest\0wrong").code == 8 and closed(peer)


def test_0x09_sasl_error(broker: Any) -> None:
    peer = introduced(broker)
    assert peer.authenticate(secret=b"guest").code == 9 and closed(peer)


def from_address(url: str, host: str) -> Peer:
    """Connect from another of this machine's addresses."""
    peer = Peer(url)
    port = peer.socket.getpeername()[1]
    peer.close()
    peer.socket = socket.create_connection(("127.0.0.1", port), timeout=120, source_address=(host, 0))
    peer.stream = peer.socket.makefile("rb")
    return peer


def test_0x0b_loopback_users(doors: Callable[..., Any]) -> None:
    door = doors(
        users={"guest": "guest", "ann": "secret"},
        loopback_users=frozenset({"guest"}),
        loopback=frozenset({"127.0.0.1"}),
        authentication_delay_ms=10,
    )
    assert door.peer().ask(METADATA, array([])).body == bytes(8)
    for secret, code in ((b"\0guest\0guest", 0x0B), (b"\0guest\0wrong", 8), (b"\0ann\0secret", 1)):
        remote = from_address(door.url, "127.0.0.2")
        remote.ask(PEER_PROPERTIES, pairs({}))
        remote.ask(SASL_HANDSHAKE)
        assert remote.authenticate(secret=secret).code == code
        remote.close()
    default = doors(folder="default", loopback=frozenset({"127.0.0.1"}), authentication_delay_ms=10)
    remote = from_address(default.url, "127.0.0.2")
    remote.ask(PEER_PROPERTIES, pairs({}))
    remote.ask(SASL_HANDSHAKE)
    assert remote.authenticate().code == 0x0B, "guest is one unless it is said otherwise, as at brokers"
    remote.close()
    everywhere = doors(loopback_users=frozenset({"guest"}), folder="other")
    insecure = doors(loopback=frozenset({"127.0.0.1"}), insecure=True, folder="insecure")
    for open_to in (everywhere, insecure):
        local = from_address(open_to.url, "127.0.0.2")
        local.open()
        local.close()


@embedded
def test_0x0c_virtual_host_access_failure(broker: Any) -> None:
    peer = introduced(broker)
    peer.authenticate()
    peer.tune()
    assert peer.ask(OPEN, text("nowhere")).code == 0x0C and closed(peer)


def test_0x0d_unknown_frame(broker: Any) -> None:
    peer = broker.peer()
    peer.send(0x70, b"garbage")
    frame = peer.expect(CLOSE)
    assert frame.code == 0x0D and len(frame.body) > 4, "with a reason"


def test_0x0e_frame_too_large(broker: Any) -> None:
    peer = broker.peer()
    peer.socket.sendall(struct.pack(">I", 1 << 24))
    assert peer.expect(CLOSE).code == 0x0E


def test_0x0f_internal_error(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full: what was published is refused, and so is creating streams."""
    stream, peer = door.stream(), door.peer()
    assert peer.declare(1, stream) == 1

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(door.partition(stream), "append", full)
    peer.publish(1, [plain(1, b"x")])
    assert peer.expect(PUBLISH_ERROR).body == struct.pack(">BIQH", 1, 1, 1, 0x0F)
    monkeypatch.setattr(door.log, "create_stream", full)
    assert peer.create("more") == 0x0F


def test_0x10_access_refused(doors: Callable[..., Any]) -> None:
    everything = Permissions()
    door = doors(
        users={"guest": "guest", "reader": "r", "writer": "w", "maker": "m"},
        permissions={
            "guest": everything,
            "reader": Permissions(configure="", write="", read="orders"),
            "writer": Permissions(configure="", write="orders", read=""),
            "maker": Permissions(configure="made.*", write="", read=""),
        },
    )
    door.log.create_stream("orders")
    door.log.create_stream("orders2")

    def signed_in(user: str, password: str) -> Peer:
        peer: Peer = door.connect()
        peer.user, peer.password = user, password
        return peer.open()

    def codes(peer: Peer, stream: str) -> list[int]:
        declared, subscribed = peer.declare(1, stream), peer.subscribe(1, stream, NEXT)
        asked = peer.ask(QUERY_OFFSET, text("r") + text(stream)).code
        sequence = peer.ask(QUERY_PUBLISHER_SEQUENCE, text("r") + text(stream)).code
        return [declared, subscribed, asked, sequence, peer.ask(STREAM_STATS, text(stream)).code]

    reader, writer, maker = signed_in("reader", "r"), signed_in("writer", "w"), signed_in("maker", "m")
    assert codes(reader, "orders") == [0x10, 1, 0x13, 1, 1]
    assert codes(writer, "orders") == [1, 0x10, 0x10, 0x10, 0x10]
    assert codes(reader, "orders2") == codes(maker, "orders2") == [0x10] * 5, "the whole name has to match"
    reader.send(STORE_OFFSET, text("r") + text("orders") + struct.pack(">Q", 4))
    assert reader.ask(QUERY_OFFSET, text("r") + text("orders")).code == 0x13, "dropped without a word"
    writer.send(STORE_OFFSET, text("r") + text("orders") + struct.pack(">Q", 4))
    writer.ask(METADATA, array([]))
    assert reader.ask(QUERY_OFFSET, text("r") + text("orders")).body == struct.pack(">HQ", 1, 4)
    assert maker.create("made") == 1 and maker.create("orders3") == reader.create("made") == 0x10
    assert reader.delete("made") == writer.delete("made") == 0x10 and maker.delete("made") == 1
    partitions = array([text("made-a"), text("other-b")]) + array([text("a"), text("b")]) + pairs({})
    assert maker.ask(CREATE_SUPER_STREAM, text("made") + partitions).code == 0x10
    assert reader.ask(DELETE_SUPER_STREAM, text("made")).code == 0x10


def test_metadata_that_names_no_stream_lists_those_that_the_user_may_read(doors: Callable[..., Any]) -> None:
    """An extension; brokers answer with none (tests/client/rabbitmq/test_streams.py)."""
    door = doors(
        users={"guest": "guest", "reader": "r"}, permissions={"reader": Permissions(write=".*", read="orders|wide-1")}
    )
    door.log.create_stream("orders")
    door.log.create_stream("other")
    door.log.create_stream("wide", 2)
    door.log.delete_stream("other")
    for user, password, readable in (
        ("guest", "guest", ["orders", "wide-0", "wide-1"]),
        ("reader", "r", ["orders", "wide-1"]),
    ):
        peer: Peer = door.connect()
        peer.user, peer.password = user, password
        every = peer.open().ask(METADATA, array([])).body
        asked = peer.ask(METADATA, array([text(name) for name in readable])).body
        assert every == asked and all(every.count(name.encode()) == 1 for name in readable)


def test_0x10_whoever_may_do_nothing_is_not_told_whether_a_stream_is_there(doors: Callable[..., Any]) -> None:
    door = doors(
        users={"guest": "guest", "reader": "r", "writer": "w", "nobody": "n"},
        permissions={
            "guest": Permissions(),
            "reader": Permissions(configure="", write="", read="wide-[0-9]"),
            "writer": Permissions(configure="", write="orders", read=""),
            "*": Permissions(configure="", write="", read="free"),
        },
    )
    door.log.create_stream("orders")
    door.log.create_stream("wide", 2)

    def told(user: str, stream: str) -> tuple[int, int, int]:
        """Return the codes that Metadata, Partitions and Route have for a stream."""
        peer: Peer = door.connect()
        peer.user, peer.password = user, "guest" if user == "guest" else user[0]
        peer.open()
        found = peer.ask(METADATA, array([text(stream)])).body
        code, _leader = struct.unpack_from(">HH", found, found.index(text(stream)) + len(text(stream)))
        # A name that is hidden must not be in the answers, either.
        partitions, route = peer.ask(PARTITIONS, text(stream)), peer.ask(ROUTE, text("0") + text(stream))
        assert (partitions.code == route.code == 1) == (b"wide-0" in partitions.body and b"wide-0" in route.body)
        peer.close()
        return code, partitions.code or 0, route.code or 0

    assert told("guest", "orders") == (1, 2, 2) and told("guest", "wide") == (2, 1, 1)
    assert told("writer", "orders") == (1, 2, 2), "it may write it"
    assert told("reader", "wide-0") == (1, 2, 2)
    assert told("reader", "wide") == (0x10, 1, 1), "whoever may read a partition may ask which there are"
    for stream in ("orders", "wide", "wide-0", "not-there"):
        assert told("nobody", stream) == (0x10, 0x10, 0x10), "everybody else is *"
    assert told("nobody", "free") == (2, 2, 2), "it may read that one, if it were there"


def test_0x11_precondition_failed(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.create(stream, max_age="7D") == peer.create("") == 0x11
    assert peer.declare(1, stream, "r") == 1
    assert peer.declare(1, stream) == peer.declare(2, stream, "r") == peer.declare(2, stream, "r" * 256) == 0x11


def test_0x12_publisher_does_not_exist(broker: Any) -> None:
    peer = broker.peer()
    assert peer.ask(DELETE_PUBLISHER, b"\7").code == 0x12
    peer.publish(7, [plain(1, b"x"), plain(2, b"y")])
    assert peer.expect(PUBLISH_ERROR).body == struct.pack(">BIQHQH", 7, 2, 1, 0x12, 2, 0x12)


def test_0x13_no_offset(broker: Any) -> None:
    answer = broker.peer().ask(QUERY_OFFSET, text("r") + text(broker.stream()))
    assert answer.body == struct.pack(">HQ", 0x13, 0)


@embedded
def test_0x14_mechanism_cannot_be_changed(broker: Any) -> None:
    peer = broker.peer()
    assert peer.authenticate("EXTERNAL", b"").code == 0x14 and closed(peer)


def test_0x15_user_cannot_be_changed(doors: Callable[..., Any]) -> None:
    peer = doors(users={"guest": "guest", "ann": "secret"}, authentication_delay_ms=10).peer()
    assert peer.authenticate(secret=b"\0ann\0secret").code == 0x15 and closed(peer)
