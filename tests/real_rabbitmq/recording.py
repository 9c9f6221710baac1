"""Frames of both directions, named and kept once each; a TCP proxy that records what passes through it."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

from tests.real_rabbitmq.by_hand import FIRST, PARTITIONS, RESPONSE, ROUTE, Frame, Peer

STREAM = "golden"
SETTLE_S = 0.3
"""How long the broker gets for what has no answer: a stored offset, updates after a deletion."""

NAMES = """
    declare-publisher publish publish-confirm publish-error query-publisher-sequence delete-publisher subscribe
    deliver credit store-offset query-offset unsubscribe create delete metadata metadata-update peer-properties
    sasl-handshake sasl-authenticate tune open close heartbeat route partitions consumer-update
    exchange-command-versions stream-stats create-super-stream delete-super-stream resolve-offset-spec
""".split()  # noqa: SIM905 (thirty quoted words are no easier to read)


def command_name(key: int) -> str:
    """Return the name of a command's key, with ``-response`` for a key that has bit 15 set."""
    number = key & ~RESPONSE
    name = NAMES[number - 1] if 0 < number <= len(NAMES) else f"{number:#06x}"
    return name + ("-response" if key & RESPONSE else "")


class Recording:
    """Frames by name: ``client|server-<command>[-response]-v<version>-<label>``, numbered when a name is taken."""

    def __init__(self) -> None:
        self.frames: dict[str, bytes] = {}

    def add(self, sender: str, raw: bytes, label: str) -> None:
        """Keep a frame with its size field, unless the very same bytes are there for the same label."""
        key, version = struct.unpack_from(">HH", raw, 4)
        name = stem = f"{sender}-{command_name(key)}-v{version}-{label}"
        number = 1
        while name in self.frames:
            if self.frames[name] == raw:
                return
            number += 1
            name = f"{stem}-{number}"
        self.frames[name] = raw

    @contextlib.contextmanager
    def of(self, peer: Peer, label: str) -> Iterator[None]:
        """Keep the frames that ``peer`` sends and receives in the block."""
        sent, received = len(peer.sent), len(peer.received)
        yield
        for raw in peer.sent[sent:]:
            self.add("client", raw, label)
        for raw in peer.received[received:]:
            self.add("server", raw, label)

    def write(self, path: Path, provenance: list[str]) -> None:
        """Write ``name hex`` lines under the comment lines ``provenance``."""
        lines = [f"# {line}" for line in provenance] + [f"{name} {raw.hex()}" for name, raw in self.frames.items()]
        path.write_text("\n".join(lines) + "\n")


class Capture:
    """What the steps of a capture share: connections to one broker, and the recording."""

    def __init__(self, url: str, recording: Recording, modern: bool) -> None:
        self.url, self.recording, self.modern = url, recording, modern

    def peer(self) -> Peer:
        """Open a connection that is not recorded; it takes Deliver 2 where the broker sends it."""
        return Peer(self.url).open(versions=((8, 1, 2),) if self.modern else ())

    def ask(self, peer: Peer, label: str, key: int, body: bytes = b"") -> None:
        with self.recording.of(peer, label):
            answer_key = key if not self.modern and key in (ROUTE, PARTITIONS) else key | RESPONSE
            peer.correlation += 1
            peer.send(key, struct.pack(">I", peer.correlation) + body)
            peer.expect(answer_key)

    def read(self, label: str, properties: dict[str, str] | None, start: bytes = FIRST) -> list[Frame]:
        """Subscribe on a connection of its own and record everything up to the end of the stream."""
        peer = self.peer()
        with self.recording.of(peer, label):
            peer.subscribe(5, STREAM, start, 20, properties)
            frames = peer.barrier(STREAM)
        for sender in ("client", "server"):  # the barrier's own frames
            suffix = "-response" if sender == "server" else ""
            self.recording.frames.pop(f"{sender}-metadata{suffix}-v1-{label}", None)
        peer.close()
        return frames


class Proxy:
    """Listens on a free loopback port and passes every connection on to ``host:port``, recording whole frames."""

    def __init__(self, host: str, port: int, recording: Recording, label: str) -> None:
        self.host, self.to = host, port
        self.recording, self.label = recording, label
        self.connections: list[asyncio.Future[object]] = []

    async def __aenter__(self) -> Proxy:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port: int = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening and wait until both ends of every connection are closed."""
        self.server.close()
        await asyncio.gather(*self.connections)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self.host, self.to)
        both = asyncio.gather(self.copy("client", reader, back), self.copy("server", there, writer))
        self.connections.append(both)
        await both

    async def copy(self, sender: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readexactly(4)
                raw = head + await reader.readexactly(int.from_bytes(head, "big"))
                self.recording.add(sender, raw, self.label)
                writer.write(raw)
                await writer.drain()
        writer.close()
