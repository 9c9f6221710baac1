"""The steps of a capture that carry messages: published, read back in chunks of every shape, offsets stored."""

from __future__ import annotations

import gzip
import struct
import time

import cramjam
import lz4.frame
import zstandard

from tests.real_rabbitmq.by_hand import (
    CONSUMER_UPDATE,
    CREDIT,
    DELETE_PUBLISHER,
    FIRST,
    LAST,
    METADATA_UPDATE,
    NEXT,
    PUBLISH_ERROR,
    QUERY_OFFSET,
    QUERY_PUBLISHER_SEQUENCE,
    RESOLVE_OFFSET,
    RESPONSE,
    STORE_OFFSET,
    STREAM_STATS,
    UNSUBSCRIBE,
    data,
    filtered,
    offset,
    pairs,
    plain,
    sub_batch,
    text,
    timestamp,
)
from tests.real_rabbitmq.recording import SETTLE_S, STREAM, Capture


def publishing(capture: Capture) -> None:
    peer = capture.peer()
    peer.create(STREAM)
    declare = bytes([1]) + text("writer") + text(STREAM)
    capture.ask(peer, "with-reference", 1, declare)
    capture.ask(peer, "taken", 1, declare)
    capture.ask(peer, "unknown-stream", 1, bytes([2]) + text("") + text("golden-no"))
    for label, ids in (("two", (1, 2)), ("again-and-3", (1, 2, 3)), ("big-id", (2**63 + 5,))):
        with capture.recording.of(peer, label):
            peer.publish(1, [plain(number, b"message %d" % number) for number in ids])
            peer.confirmed(len(ids))
    capture.ask(peer, "big", QUERY_PUBLISHER_SEQUENCE, text("writer") + text(STREAM))
    capture.ask(peer, "unknown-reference", QUERY_PUBLISHER_SEQUENCE, text("nobody") + text(STREAM))
    capture.ask(peer, "unknown-stream", QUERY_PUBLISHER_SEQUENCE, text("writer") + text("golden-no"))
    with capture.recording.of(peer, "unknown-publisher"):
        peer.publish(9, [plain(1, b"one"), plain(2, b"two")])
        peer.expect(PUBLISH_ERROR)
    if capture.modern:
        peer.declare(3, STREAM)
        with capture.recording.of(peer, "bad-sub-batch"):
            peer.publish(3, [plain(1, b"one"), sub_batch(2, 5, 1, 5, data(b"x")), plain(3, b"three")])
            peer.expect(PUBLISH_ERROR)
            peer.confirmed(1)
    capture.ask(peer, "known", DELETE_PUBLISHER, bytes([1]))
    capture.ask(peer, "unknown", DELETE_PUBLISHER, bytes([1]))
    peer.delete(STREAM)


def chunks(capture: Capture) -> None:
    """One stream a shape of chunk: entries of several forms, each compression, filter values."""
    inner = data(b"first") + data(b"") + data("drïtte ".encode() * 8)
    compressed: dict[str, tuple[int, bytes]] = {
        "none": (0, inner),
        "gzip": (1, gzip.compress(inner, mtime=0)),
        "snappy": (2, bytes(cramjam.snappy.compress(inner))),
        "lz4": (3, lz4.frame.compress(inner)),
        "lz4-checksums": (
            3,
            lz4.frame.compress(inner, content_checksum=True, block_checksum=True, store_size=False),
        ),
        "zstd": (4, zstandard.ZstdCompressor().compress(inner)),
        "zstd-streamed": (4, streamed_zstd(inner)),
    }
    noise = data(bytes(range(256)))
    for label, (kind, stored) in compressed.items():
        entry = sub_batch(1, kind, 3, len(inner), stored)
        write_and_read(capture, f"sub-batch-{label}", [entry], 1)
    write_and_read(
        capture,
        "sub-batch-snappy-stored",
        [sub_batch(1, 2, 1, 260, bytes(cramjam.snappy.compress(noise)))],
        1,
    )
    mixed = [plain(1, b"plain"), sub_batch(2, *mixed_gzip(inner)), plain(3, b""), sub_batch(4, 0, 1, 5, data(b"x"))]
    write_and_read(capture, "mixed-entries", mixed, 1)
    amqp = b"\0Su\xa0\x05hello"
    write_and_read(capture, "amqp-data", [plain(1, amqp)], 1)
    if capture.modern:
        values = [filtered(1, "äpple", b"a"), filtered(2, None, b"n"), filtered(3, "pear", b"p")]
        write_and_read(capture, "filter-values", values, 2, {"filter.0": "pear", "match-unfiltered": "true"})
        write_and_read(capture, "filtered-out", values, 2, {"filter.0": "kiwi"})


def write_and_read(
    capture: Capture,
    label: str,
    entries: list[bytes],
    protocol: int,
    properties: dict[str, str] | None = None,
) -> None:
    peer = capture.peer()
    peer.create(STREAM)
    peer.declare(1, STREAM)
    with capture.recording.of(peer, label):
        peer.publish(1, entries, protocol)
        peer.confirmed(len(entries))
    capture.read(label, properties)
    peer.delete(STREAM)
    peer.close()


def mixed_gzip(inner: bytes) -> tuple[int, int, int, bytes]:
    """Return compression, count, inner length and stored bytes of ``inner`` as a gzip sub-batch of three."""
    return 1, 3, len(inner), gzip.compress(inner, mtime=0)


def streamed_zstd(inner: bytes) -> bytes:
    """Compress in two blocks, without the content's size in the header, as Java's ZstdOutputStream does."""
    writer = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compressobj()
    half = len(inner) // 2
    first = writer.compress(inner[:half]) + writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return first + writer.compress(inner[half:]) + writer.flush()


def tracking(capture: Capture) -> None:
    """Store an offset: it takes up one, in a chunk that only chunk_selector = all shows."""
    peer = capture.peer()
    peer.create(STREAM)
    peer.declare(1, STREAM, "writer")
    peer.publish(1, [plain(1, b"one"), plain(2, b"two")])
    peer.confirmed(2)
    with capture.recording.of(peer, "one"):
        peer.send(STORE_OFFSET, text("reader") + text(STREAM) + struct.pack(">Q", 1))
    time.sleep(SETTLE_S)
    capture.ask(peer, "stored", QUERY_OFFSET, text("reader") + text(STREAM))
    capture.ask(peer, "unknown-reference", QUERY_OFFSET, text("nobody") + text(STREAM))
    capture.ask(peer, "unknown-stream", QUERY_OFFSET, text("reader") + text("golden-no"))
    peer.publish(1, [plain(3, b"three")])
    peer.confirmed(1)
    capture.read("tracking-chunks", {"chunk_selector": "all"})
    capture.read("gap-of-a-tracking-chunk", {})
    if capture.modern:
        capture.ask(peer, "four", STREAM_STATS, text(STREAM))
        for label, start in (("first", FIRST), ("last", LAST), ("next", NEXT), ("offset", offset(1))):
            capture.ask(peer, label, RESOLVE_OFFSET, text(STREAM) + start + pairs({}))
        capture.ask(peer, "time", RESOLVE_OFFSET, text(STREAM) + timestamp(-5))
        capture.ask(peer, "unknown-stream", RESOLVE_OFFSET, text("golden-no") + FIRST + pairs({}))
    peer.delete(STREAM)


def consuming(capture: Capture) -> None:
    peer = capture.peer()
    peer.create(STREAM)
    peer.declare(1, STREAM)
    for batch in range(3):
        peer.publish(1, [plain(batch * 2 + each, b"%d.%d" % (batch, each)) for each in range(2)])
        peer.confirmed(2)
    for label, start in (("last", LAST), ("next", NEXT), ("offset", offset(3)), ("time", timestamp(-386380800000))):
        capture.read(label, {} if label == "time" else None, start)
    reader = capture.peer()
    body = bytes([7]) + text(STREAM) + FIRST + struct.pack(">H", 1)
    capture.ask(reader, "one-credit", 7, body)
    capture.ask(reader, "id-taken", 7, body)
    capture.ask(reader, "unknown-stream", 7, bytes([8]) + text("golden-no") + FIRST + struct.pack(">H", 1))
    with capture.recording.of(reader, "one-more"):
        reader.send(CREDIT, bytes([7]) + struct.pack(">H", 1))
        reader.barrier(STREAM)
    with capture.recording.of(reader, "unknown-subscription"):
        reader.send(CREDIT, bytes([42]) + struct.pack(">H", 1))
        reader.expect(CREDIT | RESPONSE)
    capture.ask(reader, "known", UNSUBSCRIBE, bytes([7]))
    capture.ask(reader, "unknown", UNSUBSCRIBE, bytes([7]))
    reader.subscribe(7, STREAM, NEXT)
    peer.delete(STREAM)
    with capture.recording.of(reader, "deleted"):
        reader.expect(METADATA_UPDATE)


def single_active_consumer(capture: Capture) -> None:
    peers = [capture.peer() for _ in range(2)]
    peers[0].create(STREAM)
    peers[0].declare(1, STREAM)
    peers[0].publish(1, [plain(1, b"one"), plain(2, b"two")])
    peers[0].confirmed(2)
    named = {"single-active-consumer": "true", "name": "group"}
    with capture.recording.of(peers[0], "single-active"):
        peers[0].subscribe(1, STREAM, FIRST, 10, named)
        update = peers[0].expect(CONSUMER_UPDATE)
        peers[0].send(CONSUMER_UPDATE | RESPONSE, struct.pack(">IHH", update.correlation, 1, 4) + struct.pack(">Q", 1))
        peers[0].barrier(STREAM)
    peers[1].subscribe(1, STREAM, FIRST, 10, named)
    with capture.recording.of(peers[1], "inactive"):
        peers[1].send(CREDIT, bytes([1]) + struct.pack(">H", 1))
        peers[1].expect(CREDIT | RESPONSE)
    peers[0].close()
    with capture.recording.of(peers[1], "next-in-line"):
        update = peers[1].expect(CONSUMER_UPDATE)
        peers[1].send(CONSUMER_UPDATE | RESPONSE, struct.pack(">IHH", update.correlation, 1, 0))
        peers[1].barrier(STREAM)
    capture.ask(
        peers[1],
        "no-name",
        7,
        bytes([2]) + text(STREAM) + FIRST + b"\0\1" + pairs({"single-active-consumer": "true"}),
    )
    peers[1].delete(STREAM)
