"""What the tests of consumers say to a broker: publish chunks of known offsets, and see which ones come."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Callable, Sequence

from tests.real_rabbitmq.by_hand import (
    CREDIT,
    QUERY_OFFSET,
    RESPONSE,
    Chunk,
    Peer,
    chunk,
    data,
    filtered,
    plain,
    sub_batch,
    text,
)

_IDS = itertools.count()


def publish_chunk(peer: Peer, stream: str, messages: Sequence[bytes]) -> None:
    """Publish one chunk and wait until it is stored: one sub-batch, which no broker cuts."""
    body = b"".join(data(message) for message in messages)
    _publish(peer, stream, [sub_batch(next(_IDS), 0, len(messages), len(body), body)])


def publish_one(peer: Peer, stream: str, message: bytes) -> None:
    """Publish a chunk of one plain entry and wait until it is stored."""
    _publish(peer, stream, [plain(next(_IDS), message)])


def publish_filtered(peer: Peer, stream: str, value: str | None, message: bytes) -> None:
    """Publish a chunk of one entry with a filter value, or with none, and wait until it is stored."""
    _publish(peer, stream, [filtered(next(_IDS), value, message)], version=2)


def _publish(peer: Peer, stream: str, entries: Sequence[bytes], version: int = 1) -> None:
    assert peer.declare(255, stream) == 1
    peer.publish(255, entries, version)
    peer.confirmed(len(entries))
    peer.ask(6, bytes([255]))  # DeletePublisher


def chunks_of_three(peer: Peer, stream: str, count: int = 3) -> list[int]:
    """Publish chunks of three records at offsets 0, 3, 6 …, each in a millisecond of its own; return their times."""
    for number in range(count):
        publish_chunk(peer, stream, [b"%d-%d" % (number, row) for row in range(3)])
        time.sleep(0.003)
    assert peer.subscribe(254, stream, struct.pack(">H", 1), count) == 1
    times = [each.timestamp for each in delivered(peer, stream)]
    peer.ask(12, bytes([254]))  # Unsubscribe
    assert len(set(times)) == count, times
    return times


def delivered(peer: Peer, stream: str) -> list[Chunk]:
    """The chunks that came before the answer of a request that is sent now, and that were not asked for before."""
    return [chunk(frame) for frame in peer.barrier(stream)]


def firsts(peer: Peer, stream: str) -> list[int]:
    """The ids of those chunks."""
    return [each.first for each in delivered(peer, stream)]


def grant(peer: Peer, subscription: int, credit: int) -> None:
    """Send Credit, which is answered only when it is refused."""
    peer.send(CREDIT, struct.pack(">BH", subscription, credit))


def refused_credit(peer: Peer, subscription: int, credit: int = 1) -> tuple[int, int]:
    """Send Credit and return code and subscription id of the refusal."""
    grant(peer, subscription, credit)
    body = peer.expect(CREDIT | RESPONSE).body
    return struct.unpack(">HB", body)  # type: ignore[return-value]


def records(each: Chunk) -> list[bytes]:
    """The records of a chunk of plain entries and uncompressed sub-batches."""
    found, at, rest = [], 0, each.rest

    def plain_entries(at: int, end: int, most: int) -> int:
        while at < end and most and not rest[at] & 0x80:
            (size,) = struct.unpack_from(">I", rest, at)
            found.append(rest[at + 4 : at + 4 + size])
            at, most = at + 4 + size, most - 1
        return at

    while at < each.data_length:
        if rest[at] & 0x80:
            count, inner = struct.unpack_from(">HI", rest, at + 1)
            plain_entries(at + 11, at + 11 + inner, count)
            at += 11 + inner
        else:
            at = plain_entries(at, each.data_length, each.entries)
    return found


def wait_until_stored(
    peer: Peer, reference: str, stream: str, offset: int, store: Callable[[], object] | None = None
) -> None:
    """Wait until the broker tells an offset that it was asked to store: that request has no answer.

    Args:
        peer: asks the broker.
        reference: the name under which it is stored.
        stream: the stream.
        offset: the offset.
        store: asks to store it once more, and is called when a while has passed: a client writes the request and
            forgets it, also to a connection that it is about to lose.
    """
    wanted, told = struct.pack(">HQ", 1, offset), b""
    for number in range(12_000):
        if store is not None and number % 1_000 == 999:
            store()
        told = peer.ask(QUERY_OFFSET, text(reference) + text(stream)).body
        if told == wanted:
            return
        time.sleep(0.01)
    raise AssertionError(f"{reference} never reached {offset} in {stream}: the last answer was {told.hex()}")
