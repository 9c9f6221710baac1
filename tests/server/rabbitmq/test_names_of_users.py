"""Names that users leave behind, of stored offsets and publishers: how many each may have, and who loses which."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from spark_streams.log import ReferenceLog
from spark_streams.server import RabbitConfig, ServerThread
from tests.real_rabbitmq.by_hand import (
    CLOSE,
    DELETE_PUBLISHER,
    METADATA,
    QUERY_OFFSET,
    QUERY_PUBLISHER_SEQUENCE,
    STORE_OFFSET,
    Peer,
    array,
    text,
)


def test_a_user_stores_offsets_under_so_many_names(doors: Callable[..., Any]) -> None:
    """Each further name ends the connection: StoreOffset has no answer that could say so."""
    door = doors(users={"guest": "guest", "ann": "a"}, max_stored_offsets=2)
    for name in ("orders", "other"):
        door.log.create_stream(name)

    def store(peer: Peer, name: str, stream: str, offset: int) -> None:
        peer.send(STORE_OFFSET, text(name) + text(stream) + struct.pack(">Q", offset))

    def stored(name: str, stream: str) -> int | None:
        body = door.peer().ask(QUERY_OFFSET, text(name) + text(stream)).body
        return struct.unpack(">Q", body[2:])[0] if body[:2] == b"\0\1" else None

    peer = door.peer()
    for name, stream, offset in (("a", "orders", 1), ("a", "other", 2), ("a", "orders", 3), ("b", "orders", 4)):
        store(peer, name, stream, offset)
    frame = peer.expect(CLOSE)
    assert frame.code == 0x11 and b"max_stored_offsets is 2" in frame.body and b"'guest'" in frame.body
    assert [stored("a", "orders"), stored("a", "other"), stored("b", "orders")] == [3, 2, None]
    ann: Peer = door.connect()
    ann.user, ann.password = "ann", "a"
    ann.open()
    for name in ("a", "b"):  # the first is there, whoever made it
        store(ann, name, "orders", 9)
    ann.ask(METADATA, array([]))
    assert [stored("a", "orders"), stored("b", "orders")] == [9, 9]
    door.log.delete_stream("other")
    door.server.call(door.server.server.door("rabbitmq-stream").node.follow)
    peer = door.peer()
    store(peer, "c", "orders", 5)
    peer.ask(METADATA, array([]))
    assert stored("c", "orders") == 5, "what was stored for a stream that is gone does not count"


def test_stored_offsets_are_counted_over_restarts(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        key = f"{log.create_stream('orders').incarnation}/0"
        log.state.put("rabbitmq-offsets", f'["{key}", "old"]', b"41 guest")
        log.state.put("rabbitmq-offsets", f'["{key}", "new"]', b"42 guest")
        config = RabbitConfig(port=0, max_stored_offsets=3)
        with ServerThread(log, rabbit=config) as server, closing(Peer(server.rabbit_url).open()) as peer:
            for name, offset in (("old", 41), ("new", 42)):
                asked = peer.ask(QUERY_OFFSET, text(name) + text("orders")).body
                assert asked == struct.pack(">HQ", 1, offset)
            for name in ("one more", "too many"):
                peer.send(STORE_OFFSET, text(name) + text("orders") + bytes(8))
            assert peer.expect(CLOSE).code == 0x11
        stored = {json.loads(name)[1]: value for name, value in log.state.items("rabbitmq-offsets")}
        assert stored == {"old": b"41 guest", "new": b"42 guest", "one more": b"0 guest"}


def test_who_uses_many_references_loses_its_own(doors: Callable[..., Any]) -> None:
    door = doors(users={"guest": "guest", "ann": "a"}, max_publishers=3)
    door.log.create_stream("orders")

    def publish(peer: Peer, *references: str) -> None:
        for reference in references:
            assert peer.declare(1, "orders", reference) == 1
            peer.publish(1, [struct.pack(">Q", 7) + struct.pack(">I", 1) + b"x"])
            assert peer.confirmed(1) == [7]
            peer.ask(DELETE_PUBLISHER, bytes([1]))

    def last(reference: str) -> int:
        body = door.peer().ask(QUERY_PUBLISHER_SEQUENCE, text(reference) + text("orders")).body
        return int(struct.unpack(">HQ", body)[1])

    ann: Peer = door.connect()
    ann.user, ann.password = "ann", "a"
    publish(ann.open(), "hers")
    publish(door.peer(), *(f"his-{number}" for number in range(6)))
    assert [last(name) for name in ("hers", "his-3", "his-4", "his-5")] == [7, 0, 7, 7]
