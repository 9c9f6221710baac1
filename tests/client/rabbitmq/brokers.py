"""A broker as these tests use it: streams are made and filled by hand, and read with the client under test."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from spark_streams.client import RabbitClient, RangeRead
from spark_streams.endpoint import RABBITMQ_SCHEMES, Endpoint, parse_url
from spark_streams.position import EARLIEST, After, At, Earliest
from tests.real_rabbitmq.by_hand import DELIVER, Peer, filtered, plain

OLD: Final[dict[str, Any]] = {
    "version": "3.10.8",
    "without": frozenset({0x1B, 0x1C, 0x1D, 0x1E, 0x1F}),
    "filtering": False,
    "committed_offset": False,
    "half_credit": True,
}
"""What the door takes to be a broker of 3.10, with the half-of-initial rule of later ones on top."""


def text(offset: int) -> str:
    return f"{offset:020d}"


def amqp(body: bytes, color: str | None = None) -> bytes:
    """A message with a data section and, perhaps, application property `color`."""
    properties = b""
    if color is not None:
        pairs = b"\xa1\x05color\xa1" + bytes([len(color.encode())]) + color.encode()
        properties = b"\0St\xc1" + bytes([len(pairs) + 1, 2]) + pairs
    return properties + b"\0Su\xb0" + struct.pack(">I", len(body)) + body


@dataclass
class Broker:
    """A running broker.

    Args:
        url: with credentials.
        kind: `door`, `old-door`, `rabbitmq` or `rabbitmq-3.10`.
    """

    url: str
    kind: str

    @property
    def is_old(self) -> bool:
        return self.kind in ("old-door", "rabbitmq-3.10")

    @property
    def endpoint(self) -> Endpoint:
        return parse_url(self.url, schemes=RABBITMQ_SCHEMES)

    @contextmanager
    def peer(self) -> Iterator[Peer]:
        """A connection by hand."""
        peer = Peer(self.url).open(versions=() if self.is_old else ((DELIVER, 1, 2),))
        try:
            yield peer
        finally:
            peer.close()

    def client(self, port: int | None = None, **how: Any) -> RabbitClient:
        endpoint = self.endpoint if port is None else replace(self.endpoint, port=port)
        return RabbitClient(endpoint, **{"timeout_ms": 120_000, **how})

    @contextmanager
    def stream(self, name: str | None = None, /, **arguments: str) -> Iterator[str]:
        """A new stream, of some name; it is deleted afterwards."""
        name = name or f"client-{secrets.token_hex(6)}"
        with self.peer() as peer:
            assert peer.create(name, **arguments) == 1
        try:
            yield name
        finally:
            with self.peer() as peer:
                peer.delete(name)

    def publish(self, stream: str, messages: Sequence[bytes], *, each: int = 1_000) -> None:
        """Publish messages, so many a frame; every frame is confirmed before the next, so chunks end with frames."""
        with self.peer() as peer:
            assert peer.declare(1, stream) == 1
            for first in range(0, len(messages), each):
                part = messages[first : first + each]
                peer.publish(1, [plain(first + i, message) for i, message in enumerate(part)])
                peer.confirmed(len(part))

    def publish_filtered(self, stream: str, messages: Sequence[tuple[str | None, bytes]]) -> None:
        """Publish messages with filter values, in one frame."""
        with self.peer() as peer:
            assert peer.declare(1, stream) == 1
            peer.publish(1, [filtered(i, value, message) for i, (value, message) in enumerate(messages)], 2)
            peer.confirmed(len(messages))


def read(
    client: RabbitClient,
    stream: str,
    end: int | str,
    start: Earliest | At | After = EARLIEST,
    columns: Sequence[str] = ("value", "offset"),
    *,
    super_stream: str | None = None,
    loss: bool = True,
    **limits: int,
) -> pa.Table:
    """Read a range to the end."""
    end = end if isinstance(end, str) else text(end)
    asked = RangeRead(super_stream or stream, stream, start, end, tuple(columns), fail_on_data_loss=loss)
    batches = list(client.fetch(asked, **limits))
    assert all(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches) if batches else pa.table({c: [] for c in columns})


def latest(client: RabbitClient, stream: str) -> str:
    found = client.describe(stream).partitions[stream].latest
    assert found is not None
    return found
