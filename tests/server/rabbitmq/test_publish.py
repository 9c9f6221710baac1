"""Publishing: confirms, errors, deduplication, what a consumer gets: the same on the door and on a real broker."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.real_rabbitmq.by_hand import (
    DELETE_PUBLISHER,
    METADATA_UPDATE,
    PUBLISH_ERROR,
    QUERY_PUBLISHER_SEQUENCE,
    Peer,
    data,
    filtered,
    plain,
    sub_batch,
    text,
)
from tests.server.rabbitmq.conftest import Broker, Door
from tests.server.rabbitmq.consuming import delivered, records

FIRST = struct.pack(">H", 1)
UNKNOWN_STREAM, INTERNAL, PRECONDITION, NO_PUBLISHER = 0x02, 0x0F, 0x11, 0x12


def read_all(broker: Broker, stream: str) -> list[bytes]:
    """Every record, over a connection of its own."""
    peer = broker.peer()
    assert peer.subscribe(0, stream, FIRST, 1_000) == 1
    found = [record for each in delivered(peer, stream) for record in records(each)]
    peer.close()
    return found


def sequence(peer: Peer, reference: str, stream: str) -> tuple[int, int]:
    body = peer.ask(QUERY_PUBLISHER_SEQUENCE, text(reference) + text(stream)).body
    return struct.unpack(">HQ", body)  # type: ignore[return-value]


def refused(peer: Peer) -> tuple[int, list[tuple[int, int]]]:
    """The next PublishError: publisher id, and publishing id and code of each."""
    body = peer.expect(PUBLISH_ERROR).body
    (count,) = struct.unpack_from(">I", body, 1)
    return body[0], [struct.unpack_from(">QH", body, 5 + 10 * i) for i in range(count)]  # type: ignore[misc]


def test_what_is_published_is_confirmed_and_delivered_byte_for_byte(broker: Broker) -> None:
    stream, peer = broker.stream(), broker.peer()
    messages = [
        b"\x00Su\xa0\x05hello",  # an AMQP data section
        b"raw bytes that are no AMQP",
        b"",
        b"\x00Sp\xc0\x02\x01A\x00Su\xa0\x01h",  # a header in front
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xb0\x00\x00\x00\x02ab",  # what the log escapes with
        b"\x00Su\xa0\x09cut",
        b"x" * 70_000,
    ]
    assert peer.declare(1, stream) == 1
    peer.publish(1, [plain(i, message) for i, message in enumerate(messages, 10)])
    assert sorted(peer.confirmed(len(messages))) == list(range(10, 10 + len(messages)))
    assert read_all(broker, stream) == messages


@pytest.mark.parametrize("compression", [0, 1])
def test_a_sub_batch_has_one_confirm_and_its_records_come_apart(broker: Broker, compression: int) -> None:
    stream, peer = broker.stream(), broker.peer()
    inner = b"".join(data(b"message %d" % i) for i in range(5))
    stored = inner if compression == 0 else _gzip(inner)
    assert peer.declare(1, stream) == 1
    peer.publish(1, [plain(1, b"before"), sub_batch(2, compression, 5, len(inner), stored), plain(3, b"after")])
    assert sorted(peer.confirmed(3)) == [1, 2, 3]
    committed = peer.stats(stream)[1]["committed_offset"]
    assert committed == 6


def _gzip(raw: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(raw) + packer.flush()


def test_an_id_that_is_not_higher_is_confirmed_and_not_stored(broker: Broker) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.declare(1, stream, "ref") == 1
    peer.publish(1, [plain(i, b"%d" % i) for i in (3, 5, 7)])
    assert sorted(peer.confirmed(3)) == [3, 5, 7]
    peer.publish(1, [plain(i, b"again %d" % i) for i in (5, 6, 7)] + [plain(8, b"8")])
    assert sorted(peer.confirmed(4)) == [5, 6, 7, 8]
    assert sequence(peer, "ref", stream) == (1, 8)
    assert read_all(broker, stream) == [b"3", b"5", b"7", b"8"]


def test_ids_count_within_one_frame_and_over_connections_too(broker: Broker) -> None:
    stream, peer, other = broker.stream(), broker.peer(), broker.peer()
    assert peer.declare(1, stream, "ref") == 1 and other.declare(9, stream, "ref") == 1
    peer.publish(1, [plain(1, b"1"), plain(1, b"again"), plain(2, b"2"), plain(1, b"again")])
    assert sorted(peer.confirmed(4)) == [1, 1, 1, 2]
    other.publish(9, [plain(i, b"other %d" % i) for i in (1, 2, 3)])
    assert sorted(other.confirmed(3)) == [1, 2, 3]
    assert read_all(broker, stream) == [b"1", b"2", b"other 3"]


def test_a_sub_batch_is_deduplicated_as_a_whole(broker: Broker) -> None:
    stream, peer = broker.stream(), broker.peer()
    inner = data(b"a") + data(b"b")
    batch = sub_batch(7, 0, 2, len(inner), inner)
    assert peer.declare(1, stream, "ref") == 1
    peer.publish(1, [batch])
    peer.publish(1, [batch, plain(8, b"c")])
    assert sorted(peer.confirmed(3)) == [7, 7, 8]
    assert read_all(broker, stream) == [b"a", b"b", b"c"]


def test_ids_are_unsigned_and_an_id_of_0_looks_like_none(broker: Broker) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert sequence(peer, "ref", stream) == (1, 0)
    assert peer.declare(1, stream, "ref") == 1
    peer.publish(1, [plain(0, b"0")])
    peer.publish(1, [plain(0, b"again")])
    peer.confirmed(2)
    assert sequence(peer, "ref", stream) == (1, 0)
    for number in (2**63 - 1, 2**63 + 5, 2**64 - 1, 2**63 + 5):
        peer.publish(1, [plain(number, b"%d" % number)])
        assert peer.confirmed(1) == [number]
        expected = max(number, sequence(peer, "ref", stream)[1])
        assert sequence(peer, "ref", stream) == (1, expected)
    assert read_all(broker, stream) == [b"0", *(b"%d" % n for n in (2**63 - 1, 2**63 + 5, 2**64 - 1))]


def test_publishers_without_a_reference_are_not_deduplicated(broker: Broker) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.declare(1, stream) == 1 and peer.declare(2, stream) == 1
    for publisher in (1, 2, 1):
        peer.publish(publisher, [plain(5, b"x")])
    assert peer.confirmed(3) == [5, 5, 5]
    assert read_all(broker, stream) == [b"x"] * 3


def test_codes_of_declare_delete_and_query(broker: Broker) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.declare(1, stream, "ref") == 1
    assert peer.declare(1, stream, "other") == PRECONDITION  # the id is in use
    assert peer.declare(2, stream, "ref") == PRECONDITION  # the reference is, on this connection
    assert peer.declare(2, stream, "r" * 255) == 1
    assert peer.declare(3, stream, "r" * 256) == PRECONDITION
    assert peer.declare(4, stream + "-absent") == UNKNOWN_STREAM
    assert sequence(peer, "ref", stream + "-absent") == (UNKNOWN_STREAM, 0)
    assert peer.ask(DELETE_PUBLISHER, bytes([1])).code == 1
    assert peer.ask(DELETE_PUBLISHER, bytes([1])).code == NO_PUBLISHER
    assert peer.declare(1, stream, "ref") == 1


def test_publishing_with_an_unknown_id_is_refused_for_each_message(broker: Broker) -> None:
    peer = broker.peer()
    peer.publish(77, [plain(1, b"x"), plain(2, b"y")])
    assert refused(peer) == (77, [(1, NO_PUBLISHER), (2, NO_PUBLISHER)])


@pytest.mark.parametrize(
    "bad",
    [
        sub_batch(3, 5, 1, 5, data(b"x")),
        sub_batch(3, 0, 0, 0, b""),
        sub_batch(3, 0, 9, 5, data(b"x")),
        sub_batch(3, 0, 1, 65 << 20, data(b"x")),
        sub_batch(3, 1, 1, 5, b""),
    ],
    ids=["reserved compression", "no records", "more records than room", "more than 64 MiB", "empty and compressed"],
)
def test_a_bad_sub_batch_is_refused_with_all_that_follows_it(broker: Broker, bad: bytes) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.declare(1, stream) == 1
    peer.publish(1, [plain(1, b"1"), plain(2, b"2"), bad, plain(4, b"4")])
    publisher, errors = refused(peer)
    assert publisher == 1 and sorted(errors) == [(3, PRECONDITION), (4, PRECONDITION)]
    assert sorted(peer.confirmed(2)) == [1, 2]
    assert read_all(broker, stream) == [b"1", b"2"]


def test_filter_values_come_with_publish_2(broker: Broker) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.declare(1, stream) == 1
    peer.publish(1, [filtered(1, "apple", b"a"), filtered(2, None, b"n"), filtered(3, "", b"e")], version=2)
    assert sorted(peer.confirmed(3)) == [1, 2, 3]
    assert read_all(broker, stream) == [b"a", b"n", b"e"]


def test_a_deleted_stream_takes_its_publishers_with_it(broker: Broker) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.declare(1, stream) == 1
    other = broker.peer()
    assert other.delete(stream) == 1
    while (frame := peer.read()).key != METADATA_UPDATE:
        pass
    assert frame.body == struct.pack(">H", 0x06) + text(stream)
    peer.publish(1, [plain(1, b"late")])
    assert refused(peer) == (1, [(1, NO_PUBLISHER)])
    assert peer.declare(1, stream) == UNKNOWN_STREAM


# --- what only the log's own door can be asked


@pytest.mark.parametrize("kills", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_references_survive_kills_with_what_they_published(
    doors: Callable[..., Door], tmp_path: Path, kills: int
) -> None:
    script = textwrap.dedent(
        """
        import sys
        from spark_streams.log import ReferenceLog
        from spark_streams.server import ServerThread
        from spark_streams.server.rabbitmq.config import RabbitConfig
        log = ReferenceLog(sys.argv[1])
        server = ServerThread(log, None, RabbitConfig(port=0))
        server.start()
        print(server.urls["rabbitmq-stream"].replace("://", "://guest:guest@"), flush=True)
        sys.stdin.read()
        """
    )
    folder = tmp_path / "killed"
    last = 0
    for attempt in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        peer = Peer(process.stdout.readline().strip())
        peer.open()
        if attempt == 0:
            assert peer.create("orders") == 1
        assert sequence(peer, "ref", "orders") == (1, last)
        assert peer.declare(1, "orders", "ref") == 1
        # From the last id on, and some more: what is there already must not be stored again.
        entries = [plain(i, b"%d" % i) for i in range(max(1, last - 5), last + 500)]
        for start in range(0, len(entries), 50):
            peer.publish(1, entries[start : start + 50])
        last = max(peer.confirmed(len(entries)))
        os.kill(process.pid, signal.SIGKILL)
        process.wait(120)
        peer.close()
    again = doors(folder="killed")
    assert read_all(again, "orders") == [b"%d" % i for i in range(1, last + 1)]


def test_only_the_references_that_wrote_last_are_remembered(doors: Callable[..., Door]) -> None:
    door = doors(max_publishers=3)
    stream, peer = door.stream(), door.peer()
    for number, reference in enumerate(["a", "b", "c", "a", "d"]):
        assert peer.declare(number, stream, reference) == 1 if reference != "a" or number == 0 else True
        peer.publish(0 if reference == "a" else number, [plain(number + 1, b"x")])
        peer.confirmed(1)
    assert [sequence(peer, reference, stream) for reference in "abcd"] == [(1, 4), (1, 0), (1, 3), (1, 5)]


def test_a_full_disk_refuses_what_comes_until_the_publisher_is_declared_anew(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_streams.log import Partition

    stream, peer = door.stream(), door.peer()
    assert peer.declare(1, stream, "ref") == 1
    peer.publish(1, [plain(1, b"1")])
    assert peer.confirmed(1) == [1]

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "append", full)
        peer.publish(1, [plain(2, b"2"), plain(3, b"3")])
        assert refused(peer) == (1, [(2, INTERNAL), (3, INTERNAL)])
    # There is room again. Stored now, 4 would leave a gap that a retry of 2 and 3 could not fill any more.
    peer.publish(1, [plain(4, b"4")])
    assert refused(peer) == (1, [(4, INTERNAL)])
    assert sequence(peer, "ref", stream) == (1, 1)
    peer.ask(DELETE_PUBLISHER, bytes([1]))
    assert peer.declare(1, stream, "ref") == 1
    peer.publish(1, [plain(i, b"%d" % i) for i in (2, 3, 4)])
    assert sorted(peer.confirmed(3)) == [2, 3, 4]
    assert read_all(door, stream) == [b"1", b"2", b"3", b"4"]


def test_a_large_append_notes_the_ids_where_their_records_end(door: Door) -> None:
    from spark_streams.server.rabbitmq.publish_append import PUBLISHERS_NOTE

    stream, peer = door.stream(), door.peer()
    assert peer.declare(1, stream, "ref") == 1
    for start in range(0, 60, 10):
        peer.publish(1, [plain(start + i + 1, b"x" * 90_000) for i in range(10)])
    peer.confirmed(60)
    seen = 0
    for batch in door.partition(stream).batches(0):
        for name, value in batch.notes:
            if name == PUBLISHERS_NOTE:
                seen = json.loads(value or b"")["ref"]
        # Offset i holds id i + 1, and each is an entry of its own.
        assert seen == batch.next_offset
    assert seen == 60


def test_with_fsync_always_what_follows_a_failed_append_is_refused(
    doors: Callable[..., Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_streams.log import LogConfig, Partition

    door = doors(log_config=LogConfig(fsync="always"))
    stream, peer, other = door.stream(), door.peer(), door.peer()
    assert peer.declare(1, stream, "ref") == 1 and other.declare(2, stream, "ref") == 1
    original = Partition.append
    failing = iter([True])
    begun, go_on = threading.Event(), threading.Event()

    def slow(self: Partition, *arguments: Any, **named: Any) -> Any:
        if next(failing, False):
            begun.set()
            go_on.wait(120)
            raise OSError(errno.EIO, "Input/output error")
        return original(self, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "append", slow)
        peer.publish(1, [plain(1, b"1"), plain(2, b"2")])
        assert begun.wait(120)
        # Another attempt at the same: 1 and 2 are under way, so only 3 is new. It must not be stored without them.
        other.publish(2, [plain(i, b"%d" % i) for i in (1, 2, 3)])
        door.taken_in()
        go_on.set()
        assert refused(peer) == (1, [(1, INTERNAL), (2, INTERNAL)])
        assert refused(other) == (2, [(1, INTERNAL), (2, INTERNAL), (3, INTERNAL)])
    assert sequence(peer, "ref", stream) == (1, 0)
    assert read_all(door, stream) == []
