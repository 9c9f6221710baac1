"""Publish frames that are large, or inflate to much: they are dealt with beside the loop, a part at a time.

What is done beside the loop is held until others have been answered: so what is asserted is an order of events, and
never a time.
"""

from __future__ import annotations

import gzip
import struct
import threading
from typing import Any

import pytest

from spark_streams.log import ReferenceLog
from spark_streams.log.storage.partition import Partition
from spark_streams.server import ServerThread, turns
from spark_streams.server.rabbitmq import publish_parts
from spark_streams.server.rabbitmq.config import RabbitConfig
from spark_streams.wire.rabbitmq import sub_batches
from tests.real_rabbitmq.by_hand import (
    CLOSE,
    DELIVER,
    FIRST,
    METADATA_UPDATE,
    PUBLISH,
    PUBLISH_ERROR,
    QUERY_PUBLISHER_SEQUENCE,
    RESPONSE,
    Peer,
    array,
    chunk,
    data,
    filtered,
    plain,
    sub_batch,
    text,
)
from tests.server.rabbitmq.beside import GUARD_S, frame, gone

LARGE = 5_000


def large(count: int = LARGE, first: int = 1) -> list[bytes]:
    """Entries of a frame that is dealt with beside the loop."""
    return [plain(n, b"message %d" % n) for n in range(first, first + count)]


def publish(publisher: int, entries: list[bytes]) -> bytes:
    return frame(PUBLISH, bytes([publisher]) + array(entries))


def receive(door: Any, content: bytes) -> None:
    """Give the door's only connection so much in one read."""

    def receive_on_loop() -> None:
        (connection,) = door.server.server.door("rabbitmq-stream").connections
        connection.data_received(content)

    door.server.call(receive_on_loop)


def deflated(number: int, count: int = LARGE) -> bytes:
    """A small entry that inflates to much."""
    messages = b"".join(data(b"%d of %d" % (n, number)) for n in range(count))
    return sub_batch(number, 1, count, len(messages), gzip.compress(messages))


@pytest.mark.parametrize("entries", [large(), [deflated(1)], [plain(1, b"x" * 100_000)]])
def test_what_is_large_or_inflates_to_much_is_looked_at_beside_the_loop(
    door: Any, hold: Any, entries: list[bytes]
) -> None:
    stream, bad, good = door.stream(), door.peer(), door.peer()
    assert bad.declare(1, stream) == 1
    working = hold(publish_parts, "stored_steps")
    bad.publish(1, entries)
    working.reached()
    assert good.stats(stream)[1]["committed_offset"] == -1
    working.let_go()
    assert bad.confirmed(len(entries)) == [struct.unpack_from(">Q", entry)[0] for entry in entries]


def test_a_large_append_is_made_beside_the_loop_and_confirmed_afterwards(door: Any, hold: Any) -> None:
    stream, other, bad, good = door.stream(), door.stream("other"), door.peer(), door.peer()
    assert bad.declare(1, stream) == 1
    appending = hold(Partition, "append")
    bad.publish(1, [deflated(1, 60_000)])
    appending.reached()
    assert good.stats(other)[0] == 1
    appending.let_go()
    assert bad.confirmed(1) == [1]
    assert door.partition(stream).next_offset == 60_000


def test_large_frames_are_stored_in_the_order_of_what_comes_before_and_after(door: Any) -> None:
    stream, peer = door.stream(), door.peer()
    assert peer.declare(1, stream) == 1
    peer.publish(1, [plain(0, b"first")])
    peer.publish(1, large())
    peer.publish(1, [plain(LARGE + 1, b"between")])
    peer.publish(1, [deflated(LARGE + 2), plain(LARGE + 3, b"behind")])
    peer.publish(1, [plain(LARGE + 4, b"last")])
    assert peer.confirmed(LARGE + 5) == list(range(LARGE + 5))
    bodies = [b"first", *(b"message %d" % n for n in range(1, LARGE + 1)), b"between"]
    bodies += [*(b"%d of %d" % (n, LARGE + 2) for n in range(LARGE)), b"behind", b"last"]
    assert read_all(peer, stream) == bodies


def test_large_frames_of_filter_values_keep_those_of_what_is_new(door: Any) -> None:
    stream, peer = door.stream(), door.peer()
    assert peer.declare(1, stream, "ref") == 1
    peer.publish(1, [filtered(n, "a" if n % 2 else "b", b"%d" % n) for n in range(1, 101)], version=2)
    assert len(peer.confirmed(100)) == 100
    again = [filtered(n, "a" if n % 2 else "b", b"%d" % n) for n in range(1, LARGE + 1)]
    peer.publish(1, again, version=2)
    assert len(peer.confirmed(LARGE)) == LARGE
    found = read_all(peer, stream, {"filter.0": "a"}, until=b"%d" % (LARGE - 1))
    assert [int(body) for body in found if int(body) % 2] == list(range(1, LARGE + 1, 2))


def test_large_frames_that_came_together_are_appended_together(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", GUARD_S)  # on a slow machine one turn would not do
    stream, other, peer = door.stream(), door.stream("other"), door.peer()
    assert peer.declare(1, stream) == 1 and peer.declare(2, other, "ref") == 1
    bodies = [b"%d" % n + b"x" * (20_000 if n < 10 else 1) for n in range(12)]
    receive(door, b"".join(publish(n % 2 + 1, [plain(n, body)]) for n, body in enumerate(bodies)))
    assert sorted(peer.confirmed(12)) == list(range(12))
    for name, first in ((stream, 0), (other, 1)):
        assert [batch.next_offset for batch in door.partition(name).batches(0)] == [6]
        reader = door.peer()
        assert read_all(reader, name, until=bodies[10 + first]) == bodies[first::2]


def test_what_came_before_a_broken_frame_is_stored(door: Any) -> None:
    stream, peer = door.stream(), door.peer()
    assert peer.declare(1, stream) == 1
    broken = frame(PUBLISH, b"\1" + struct.pack(">I", 2) + plain(3, b"x" * 20_000))
    receive(door, publish(1, large()) + publish(1, [plain(LARGE + 1, b"behind")]) + broken + publish(1, large()))
    assert peer.confirmed(LARGE + 1) == list(range(1, LARGE + 2))
    assert peer.read().key == CLOSE
    assert door.partition(stream).next_offset == LARGE + 1


def test_a_large_frame_of_two_connections_is_stored_once(door: Any, hold: Any) -> None:
    """Both are being worked on before either is in the log."""
    stream, first, second = door.stream(), door.peer(), door.peer()
    for peer in (first, second):
        assert peer.declare(1, stream, "ref") == 1
    working = hold(publish_parts, "stored_steps")
    first.publish(1, large())
    second.publish(1, large())
    working.reached()
    working.let_go()
    for peer in (first, second):
        assert peer.confirmed(LARGE) == list(range(1, LARGE + 1))
    assert door.partition(stream).next_offset == LARGE


def test_one_frame_of_all_connections_is_inflated_at_a_time(door: Any, hold: Any, monkeypatch: Any) -> None:
    stream, first, second = door.stream(), door.peer(), door.peer()
    inflated: list[int] = []
    inflate = sub_batches.decompress

    def noted(kind: int, packed: Any, size: int) -> bytes:
        inflated.append(size)
        return inflate(kind, packed, size)

    monkeypatch.setattr(sub_batches, "decompress", noted)
    for peer in (first, second):
        assert peer.declare(1, stream) == 1
    appending = hold(Partition, "append")
    first.publish(1, [deflated(1, 60_000)])
    appending.reached()
    second.publish(1, [deflated(2, 60_000)])
    assert door.peer().stats(stream)[0] == 1
    assert len(inflated) == 1
    appending.let_go()
    assert first.confirmed(1) == [1] and second.confirmed(1) == [2]
    assert len(inflated) == 2


def test_a_sub_batch_that_inflates_to_more_than_is_taken_is_refused_with_all_that_follows(doors: Any) -> None:
    door = doors(max_sub_batch_bytes=100_000)
    stream, peer = door.stream(), door.peer()
    assert peer.declare(1, stream) == 1
    peer.publish(1, [deflated(1, 100), deflated(2, 20_000), plain(3, b"x")])
    publisher, count = struct.unpack_from(">BI", (error := peer.expect(PUBLISH_ERROR)).body)
    assert (publisher, list(struct.iter_unpack(">QH", error.body[5:]))) == (1, [(2, 0x11), (3, 0x11)]) and count == 2
    assert peer.confirmed(1) == [1]
    peer.publish(1, [plain(4, b"it goes on")])
    assert peer.confirmed(1) == [4]
    assert door.partition(stream).next_offset == 101


def test_a_large_frame_of_a_publisher_that_is_not_there_is_refused(door: Any) -> None:
    peer = door.peer()
    peer.publish(9, large())
    error = peer.expect(PUBLISH_ERROR)
    assert [number for number, _ in struct.iter_unpack(">QH", error.body[5:])] == list(range(1, LARGE + 1))


def test_a_large_frame_is_stored_though_its_connection_is_lost_meanwhile(door: Any, hold: Any) -> None:
    stream, bad = door.stream(), door.peer()
    assert bad.declare(1, stream) == 1
    working = hold(publish_parts, "stored_steps")
    bad.publish(1, large())
    bad.publish(1, [plain(LARGE + 1, b"and what came behind it")])
    working.reached()
    door.server.call(
        lambda: [c._transport.abort() for c in door.server.server.door("rabbitmq-stream").connections if c._work]
    )
    working.let_go()
    gone(door, connections=0)
    assert door.partition(stream).next_offset >= LARGE


def test_a_stream_that_is_deleted_while_a_large_frame_is_worked_on(door: Any, hold: Any) -> None:
    stream, bad, good = door.stream(), door.peer(), door.peer()
    assert bad.declare(1, stream) == 1
    working = hold(publish_parts, "stored_steps")
    bad.publish(1, large())
    working.reached()
    assert good.delete(stream) == 1
    working.let_go()
    bad.waiting.clear()
    while (came := bad.read()).key != PUBLISH_ERROR:
        assert came.key == METADATA_UPDATE
    assert came.body[:5] == struct.pack(">BI", 1, LARGE)
    assert bad.create(stream) == 1, "the connection goes on"


@pytest.mark.parametrize("reference", ["", "ref"])
@pytest.mark.parametrize("entries", [[plain(1, b"little")], large()])
def test_a_stream_that_is_just_being_deleted_is_not_available(door: Any, reference: str, entries: list[bytes]) -> None:
    """Its files are gone, and nobody has been told yet."""
    stream, peer = door.stream(), door.peer()
    assert peer.declare(1, stream, reference) == 1
    door.partition(stream).discard()
    for _ in range(2):
        peer.publish(1, entries)
        refused = peer.expect(PUBLISH_ERROR).body
        assert struct.unpack_from(">BIQH", refused) == (1, len(entries), 1, 0x06)


def test_the_server_stops_while_a_large_frame_is_worked_on(hold: Any) -> None:
    with ReferenceLog() as log:
        partition = log.create_stream("s").partitions["0"]
        server = ServerThread(log, None, RabbitConfig(port=0))
        server.start()
        bad = Peer(server.rabbit_url).open()
        assert bad.declare(1, "s") == 1
        working = hold(publish_parts, "stored_steps")
        bad.publish(1, [deflated(1), deflated(2)])
        working.reached()
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert bad.expect(CLOSE).body[:2] == b"\0\1"
        working.let_go()
        stopping.join(GUARD_S)
        assert not stopping.is_alive()
        assert partition.next_offset in (0, LARGE, 2 * LARGE), "each of them whole or not at all"
        bad.close()


def read_all(peer: Any, stream: str, properties: dict[str, str] | None = None, until: bytes = b"last") -> list[bytes]:
    """The messages of a stream, up to one of them; those of its chunk too."""
    assert peer.subscribe(1, stream, FIRST, 1_000, properties) == 1
    bodies: list[bytes] = []
    while until not in bodies:
        found = chunk(peer.expect(DELIVER))
        at = 0  # the header tells the size of a filter that does not come with it
        for _ in range(found.records):
            (size,) = struct.unpack_from(">I", found.rest, at)
            bodies.append(found.rest[at + 4 : at + 4 + size])
            at += 4 + size
    return bodies


def test_a_question_is_answered_when_what_was_published_before_it_is_stored(door: Any, hold: Any) -> None:
    """A small frame behind somebody else's large one waits for it, and what its connection asks then waits too."""
    stream, bad, good = door.stream(), door.peer(), door.peer()
    assert bad.declare(1, stream) == 1 and good.declare(1, stream, "ref") == 1
    appending = hold(Partition, "append")
    bad.publish(1, [deflated(1, 60_000)])
    appending.reached()
    good.publish(1, [plain(7, b"small")])
    good.send(QUERY_PUBLISHER_SEQUENCE, struct.pack(">I", 5) + text("ref") + text(stream))
    assert door.peer().stats(stream)[1]["committed_offset"] == -1
    appending.let_go()
    assert good.confirmed(1) == [7]
    assert struct.unpack(">HQ", good.expect(QUERY_PUBLISHER_SEQUENCE | RESPONSE).body) == (1, 7)
