"""Tasks that publish, and a scripted broker that takes what they publish and confirms it as a test says."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from spark_streams.client import RabbitPublishing, TaskIdentity, TaskPublisher
from spark_streams.endpoint import Endpoint
from tests.client.rabbitmq.scripted import OK, Handler, Scripted, Wire
from tests.real_rabbitmq import by_hand as key
from tests.real_rabbitmq.by_hand import array, text


def body(row: str) -> bytes:
    return b"\0Su\xb0" + struct.pack(">I", len(row)) + row.encode()


def named(first: int) -> Callable[[int], str]:
    return lambda row: f"row {first + row}"


def send(
    publisher: TaskPublisher,
    rows: Sequence[bytes],
    to: str | Sequence[str | None],
    *,
    filters: Sequence[str | None] | None = None,
    each: int = 700,
) -> None:
    """Hand over rows, so many at a time."""
    for first in range(0, len(rows), each):
        part = slice(first, first + each)
        publisher.send(
            pa.array(rows[part], pa.large_binary()),
            to if isinstance(to, str) else pa.array(to[part], pa.string()),
            None if filters is None else pa.array(filters[part], pa.string()),
            named(first),
        )


def write(
    endpoint: Endpoint,
    rows: Sequence[bytes],
    to: str | Sequence[str | None],
    identity: TaskIdentity | None = None,
    *,
    filters: Sequence[str | None] | None = None,
    each: int = 700,
    confirm_within_ms: int | None = None,
    **how: Any,
) -> None:
    """One attempt at a task, from its connection to its last confirm."""
    publisher = TaskPublisher(endpoint, RabbitPublishing(**{"request_timeout_ms": 120_000, **how}), identity)
    if confirm_within_ms is not None:  # the time-out for connecting stays
        pool = publisher._outgoing
        pool._how = replace(pool._how, request_timeout_ms=confirm_within_ms)
    try:
        send(publisher, rows, to, filters=filters, each=each)
        publisher.flush()
    finally:
        publisher.close()


def entries(publish: bytes) -> list[tuple[int, int]]:
    """The entries of a Publish 1 body: publishing id, and messages that it holds."""
    (count,) = struct.unpack_from(">I", publish, 1)
    found, at = [], 5
    for _ in range(count):
        number, head = struct.unpack_from(">QI", publish, at)
        if head >> 31:
            messages, stored = (
                struct.unpack_from(">H", publish, at + 9)[0],
                struct.unpack_from(">I", publish, at + 15)[0],
            )
            at += 8 + 11 + stored
        else:
            messages = 1
            at += 12 + head
        found.append((number, messages))
    assert at == len(publish)
    return found


def confirm(publisher: int, ids: Sequence[int]) -> bytes:
    return bytes([publisher]) + array([struct.pack(">Q", each) for each in ids])


def publish_error(publisher: int, ids: Sequence[int], code: int) -> bytes:
    return bytes([publisher]) + array([struct.pack(">QH", each, code) for each in ids])


def metadata_update(stream: str) -> bytes:
    return struct.pack(">H", 0x06) + text(stream)


def frame(kind: int, content: bytes) -> bytes:
    return struct.pack(">IHH", len(content) + 4, kind, 1) + content


Published = Callable[[Wire, int, list[int]], None]


def confirm_all(wire: Wire, publisher: int, ids: list[int]) -> None:
    wire.send(key.PUBLISH_CONFIRM, confirm(publisher, ids))


def never(*_: object) -> None:
    """Do not confirm."""


@dataclass
class Taking:
    """The publishing side of a scripted broker.

    Args:
        published: called for each Publish frame with the publisher's id and the publishing ids.
        sequence: what QueryPublisherSequence answers.
        declares: codes of DeclarePublisher, one after the other, the last one again and again.
        more: further handlers.
    """

    published: Published = confirm_all
    sequence: int = 0
    declares: list[int] = field(default_factory=lambda: [OK])
    more: dict[int, Handler] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ids: list[tuple[int, int]] = []
        """Publisher's id and publishing id of each entry, as they came."""
        self.messages = 0
        self.declared: list[tuple[int, str, str]] = []
        """Publisher's id, reference and stream of each."""
        self.deleted: list[int] = []
        self.frames = 0

    @property
    def script(self) -> dict[int, Handler]:
        return {
            key.DECLARE_PUBLISHER: self._declare,
            key.DELETE_PUBLISHER: self._delete,
            key.QUERY_PUBLISHER_SEQUENCE: self._query,
            key.PUBLISH: self._publish,
            **self.more,
        }

    def serve(self) -> Scripted:
        return Scripted(self.script)

    def _declare(self, wire: Wire, number: int, content: bytes) -> None:
        (size,) = struct.unpack_from(">H", content, 1)
        self.declared.append((content[0], content[3 : 3 + size].decode(), content[5 + size :].decode()))
        wire.answer(key.DECLARE_PUBLISHER, number, self.declares.pop(0) if len(self.declares) > 1 else self.declares[0])

    def _delete(self, wire: Wire, number: int, content: bytes) -> None:
        self.deleted.append(content[0])
        wire.answer(key.DELETE_PUBLISHER, number)

    def _query(self, wire: Wire, number: int, _: bytes) -> None:
        wire.answer(key.QUERY_PUBLISHER_SEQUENCE, number, OK, struct.pack(">Q", self.sequence))

    def _publish(self, wire: Wire, _: int, content: bytes) -> None:
        found = entries(content)
        self.frames += 1
        self.ids += [(content[0], number) for number, _ in found]
        self.messages += sum(count for _, count in found)
        self.published(wire, content[0], [number for number, _ in found])
