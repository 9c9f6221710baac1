"""Record golden frames from a real broker: python -m tests.real_rabbitmq.capture URL OUTPUT.hex

Client frames are rstream's, through a recording proxy, and by_hand.py's where rstream has no such command; server
frames are the broker's. Sub-batches are made by cramjam (snappy), lz4 and zstandard, which nothing else here uses:
    pip install rstream==1.1.1 cramjam lz4 zstandard
3.10 makes super streams by `broker.py ctl FOLDER rabbitmq-streams add_super_stream golden-super --partitions 3` only.
Streams that are made are deleted again. Give it a broker of its own (broker.py start): it provokes errors.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import struct
import sys
from importlib.metadata import version
from pathlib import Path

from tests.real_rabbitmq.by_hand import (
    CLOSE,
    CONSUMER_UPDATE,
    CREATE,
    CREATE_SUPER_STREAM,
    DELETE,
    DELETE_SUPER_STREAM,
    EXCHANGE_COMMAND_VERSIONS,
    HEARTBEAT,
    METADATA,
    NEXT,
    OPEN,
    PARTITIONS,
    PEER_PROPERTIES,
    RESPONSE,
    ROUTE,
    SASL_HANDSHAKE,
    STREAM_STATS,
    Peer,
    array,
    pairs,
    text,
)
from tests.real_rabbitmq.capture_messages import chunks, consuming, publishing, single_active_consumer, tracking
from tests.real_rabbitmq.capture_rstream import with_rstream
from tests.real_rabbitmq.recording import STREAM, Capture, Recording


def opening(capture: Capture) -> None:
    peer = Peer(capture.url)
    with capture.recording.of(peer, "opening"):
        peer.ask(PEER_PROPERTIES, pairs({"product": "capture", "platform": "Python", "connection_name": "hö"}))
        peer.ask(SASL_HANDSHAKE)
        peer.authenticate()
        peer.tune()
        peer.ask(OPEN, text("/"))
        if capture.modern:
            peer.ask(EXCHANGE_COMMAND_VERSIONS, array([struct.pack(">HHH", *each) for each in ((2, 1, 2), (8, 1, 2))]))
        peer.send(HEARTBEAT)
    capture.ask(peer, "by-client", CLOSE, struct.pack(">H", 1) + text("OK"))
    for label, mechanism, secret in (
        ("wrong-password", "PLAIN", b"\0guest\0wrong"),
        ("malformed-plain", "PLAIN", b"guest"),
        ("external-without-tls", "EXTERNAL", b""),
        ("null-data", "PLAIN", None),
    ):
        peer = Peer(capture.url)
        peer.ask(PEER_PROPERTIES, pairs({}))
        peer.ask(SASL_HANDSHAKE)
        with capture.recording.of(peer, label):
            peer.authenticate(mechanism, secret)
    peer = Peer(capture.url)
    peer.ask(PEER_PROPERTIES, pairs({}))
    peer.ask(SASL_HANDSHAKE)
    peer.authenticate()
    peer.tune(heartbeat_s=1)
    with capture.recording.of(peer, "unknown-vhost"):
        peer.ask(OPEN, text("/nowhere"))


def closings(capture: Capture) -> None:
    """Make the broker close, and beat."""
    peer = capture.peer()
    with capture.recording.of(peer, "unknown-frame"):
        peer.send(0x63, struct.pack(">I", 7))
        close = peer.expect(CLOSE)
        peer.send(CLOSE | RESPONSE, struct.pack(">IH", close.correlation or 0, 1))
    if capture.modern:
        peer = capture.peer()
        peer.socket.sendall(struct.pack(">IHHI", 2 << 20, METADATA, 1, 1))
        with capture.recording.of(peer, "frame-too-large"):
            peer.expect(CLOSE)
    peer = Peer(capture.url)
    peer.ask(PEER_PROPERTIES, pairs({}))
    peer.ask(SASL_HANDSHAKE)
    peer.authenticate()
    with capture.recording.of(peer, "every-second"):
        peer.tune(1 << 20, 1)
        peer.ask(OPEN, text("/"))
        peer.expect(HEARTBEAT)


def topology(capture: Capture) -> None:
    peer = capture.peer()
    arguments = {"max-age": "7D", "max-length-bytes": "1000000", "stream-max-segment-size-bytes": "100000"}
    arguments |= {"queue-leader-locator": "client-local", "initial-cluster-size": "1"}
    if capture.modern:
        arguments["stream-filter-size-bytes"] = "32"
    capture.ask(peer, "all-arguments", CREATE, text("golden-arguments") + pairs(arguments))
    capture.ask(peer, "again", CREATE, text("golden-arguments") + pairs(arguments))
    capture.ask(peer, "other-arguments", CREATE, text("golden-arguments") + pairs({}))
    capture.ask(peer, "found-and-not", METADATA, array([text("golden-arguments"), text("golden-nö")]))
    capture.ask(peer, "no-streams", METADATA, array([]))
    if capture.modern:
        capture.ask(peer, "empty-stream", STREAM_STATS, text("golden-arguments"))
        capture.ask(peer, "unknown-stream", STREAM_STATS, text("golden-no"))
    capture.ask(peer, "existing", DELETE, text("golden-arguments"))
    capture.ask(peer, "unknown-stream", DELETE, text("golden-arguments"))


def super_streams(capture: Capture) -> None:
    peer = capture.peer()
    names = [f"golden-super-{number}" for number in range(3)]
    body = text("golden-super") + array([text(each) for each in names]) + array([text(each) for each in "012"])
    if capture.modern:
        capture.ask(peer, "three", CREATE_SUPER_STREAM, body + pairs({"max-age": "1D"}))
        capture.ask(peer, "again", CREATE_SUPER_STREAM, body + pairs({"max-age": "1D"}))
    capture.ask(peer, "three", PARTITIONS, text("golden-super"))
    capture.ask(peer, "unknown", PARTITIONS, text("golden-no"))
    capture.ask(peer, "one", ROUTE, text("1") + text("golden-super"))
    capture.ask(peer, "none", ROUTE, text("nö") + text("golden-super"))
    capture.ask(peer, "unknown", ROUTE, text("1") + text("golden-no"))
    if not capture.modern:
        return
    members = [capture.peer() for _ in range(2)]
    properties = {"single-active-consumer": "true", "name": "group", "super-stream": "golden-super"}
    with capture.recording.of(members[0], "super-stream"):
        members[0].subscribe(1, names[1], NEXT, 10, properties)
        update = members[0].expect(CONSUMER_UPDATE)
        members[0].send(CONSUMER_UPDATE | RESPONSE, struct.pack(">IHH", update.correlation, 1, 0))
    members[1].subscribe(1, names[1], NEXT, 10, properties)
    with capture.recording.of(members[0], "made-inactive"):
        update = members[0].expect(CONSUMER_UPDATE)
        members[0].send(CONSUMER_UPDATE | RESPONSE, struct.pack(">IHH", update.correlation, 1, 3))
    capture.ask(peer, "existing", DELETE_SUPER_STREAM, text("golden-super"))
    capture.ask(peer, "unknown", DELETE_SUPER_STREAM, text("golden-super"))


def main() -> None:
    url, output = sys.argv[1], Path(sys.argv[2])
    peer = Peer(url)
    properties = peer.ask(PEER_PROPERTIES, pairs({})).body
    broker = properties[properties.rindex(b"version") + 9 :].decode()
    capture = Capture(url, Recording(), modern=int(broker.split(".")[0]) >= 4)
    left = capture.peer()
    left.delete(STREAM)  # of a capture that was cut short
    left.close()
    steps = [opening, closings, topology, publishing, chunks, tracking, consuming, super_streams]
    if capture.modern:
        steps.append(single_active_consumer)
    for step in steps:
        step(capture)
    asyncio.run(with_rstream(capture))
    made_by = " ".join(f"{name} {version(name)}" for name in ("rstream", "cramjam", "lz4", "zstandard"))
    capture.recording.write(
        output,
        [
            f"Stream protocol frames with their size field, to and from RabbitMQ {broker}; one a line: name, hex.",
            f"Recorded {datetime.date.today()} by tests/real_rabbitmq/capture.py. server-…: the broker's bytes.",
            "client-…-rstream: rstream's bytes; other client-…: packed by hand. The broker took or answered them all.",
            f"Compressed by: {made_by}, Python's gzip. The address in metadata and open is the broker's then.",
        ],
    )
    print(f"{output}: {len(capture.recording.frames)} frames, {os.path.getsize(output)} bytes")


if __name__ == "__main__":
    main()
