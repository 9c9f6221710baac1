"""A protocol that no file of the package knows, lines of JSON over TCP: a door, a peer of the command line, an entry.

A client sends a stream's name, or nothing, and a newline. It gets a line for each event, or for each stream.

``python -m tests.toy_protocol WORDS`` is ``spark-streams WORDS`` with the entry added.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from spark_streams.cli.peers.peer import Peer, PeerReader, PeerWriter, ReadRequest
from spark_streams.endpoint import Endpoint
from spark_streams.errors import NotFound, SparkStreamsError
from spark_streams.log import ReferenceLog
from spark_streams.protocols import PROTOCOLS, Protocol
from spark_streams.rows import COMMON_SCHEMA
from spark_streams.server.admission import Admission, Sockets
from spark_streams.server.door import TcpDoor
from spark_streams.server.door_config import DoorConfig
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns

TOY = Protocol(
    name="toy",
    format="toy-lines",
    scheme="toy",
    tls_scheme="toys",
    port=7001,
    tls_port=7002,
    source="tests.toy_protocol:ToyDataSource",
    peer="tests.toy_protocol:ToyPeer",
    address="toy://host[:port]#STREAM",
    config="tests.toy_protocol:ToyConfig",
    door="tests.toy_protocol:ToyDoor",
    title="toy door",
)


class ToyDataSource:
    """Stands for the format's ``DataSource``."""


@dataclass(frozen=True)
class ToyConfig(DoorConfig):
    """Settings of the toy door; ``max_events`` of an answer."""

    protocol: ClassVar = "toy"
    positive: ClassVar = ("max_events",)

    port: int = 7001
    max_events: int = 1_000


class ToyDoor(TcpDoor):
    """The toy door."""

    config: ToyConfig

    def __init__(self, config: ToyConfig) -> None:
        super().__init__(config)
        self._connections: set[ToyConnection] = set()

    @property
    def connections(self) -> Collection[ToyConnection]:
        return self._connections

    async def open(self, log: ReferenceLog, sockets: Sockets) -> None:
        await self.listen(sockets, lambda admission: ToyConnection(log, self.config, self._connections, admission))

    async def close(self) -> None:
        await self.end_connections()


class ToyConnection(asyncio.Protocol):
    """One question and its answer."""

    transport: asyncio.Transport

    def __init__(
        self, log: ReferenceLog, config: ToyConfig, connections: set[ToyConnection], admission: Admission
    ) -> None:
        self._log = log
        self._config = config
        self._connections = connections
        self._admission = admission
        self._question = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._question += data
        if b"\n" in self._question and self._admission.establish():
            name = self._question.partition(b"\n")[0].decode()
            names = [stream.name for stream in self._log.streams()]
            rows: list[Any] = names if not name else self._events(name) if name in names else [None]
            self.transport.writelines(json.dumps(row).encode() + b"\n" for row in rows)
            self.transport.close()

    def _events(self, name: str) -> list[dict[str, Any]]:
        found = []
        for number, partition in self._log.stream(name).partitions.items():
            at = partition.first_offset
            while (records := partition.read(at)) is not None:
                block = MessageBlock(records.buffer, records.value_starts, records.value_ends)
                values = decode_columns(block, ("value",))["value"].to_pylist()
                at += len(values)
                found += [
                    {"stream": name, "partition": number, "offset": f"{offset:020d}", "value": value.decode()}
                    for offset, value in zip(records.offsets.tolist(), values, strict=True)
                ]
        return found[: self._config.max_events]

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._admission.end()

    def shut_down(self) -> None:
        self.transport.close()

    def drop(self) -> None:
        self.transport.abort()


class ToyClient:
    """A connection for each question."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def ask(self, name: str) -> list[Any]:
        """Return the lines of an answer."""
        with socket.create_connection((self._endpoint.host, self._endpoint.port)) as plain:
            connection: socket.socket = plain
            if (tls := self._endpoint.tls) is not None:
                context = ssl.create_default_context(cafile=tls.ca_file)
                connection = context.wrap_socket(plain, server_hostname=self._endpoint.host)
            connection.sendall(name.encode() + b"\n")
            with connection.makefile("rb") as answer:
                rows = [json.loads(line) for line in answer]
        if rows == [None]:
            raise NotFound("no stream", None, f"stream '{name}'")
        return rows

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class ToyPeer(Peer):
    """A stream behind a toy door."""

    columns: ClassVar = tuple(COMMON_SCHEMA.names)

    @contextlib.contextmanager
    def open_reader(self, request: ReadRequest) -> Iterator[PeerReader]:
        yield ToyReader(ToyClient(self.endpoint), self.stream, request)

    def open_writer(self) -> contextlib.AbstractContextManager[PeerWriter]:
        raise SparkStreamsError("the toy protocol writes nothing")

    def about(self) -> dict[str, Any]:
        return {"kind": "toy peer", "peer": {}, "streams": ToyClient(self.endpoint).ask("")}

    def describe(self) -> dict[str, Any]:
        events = ToyClient(self.endpoint).ask(self.stream)
        partitions = sorted({event["partition"] for event in events})
        counts = [sum(event["partition"] == each for event in events) for each in partitions]
        rows = [{"partition": each, "events": count} for each, count in zip(partitions, counts, strict=True)]
        return {"kind": "toy stream", "peer": {"protocol": "toy"}, "partitions": rows}


class ToyReader(PeerReader):
    """Reads all again each time, and skips what it had."""

    _client: ToyClient

    def _begin(self) -> None:
        self._read = 0 if self._request.position[0] == "earliest" else len(self._client.ask(self._stream))

    @property
    def positions(self) -> dict[str, str]:
        return {}

    def new_events(self) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([COMMON_SCHEMA.field(name) for name in self._request.columns_read])
        events = self._client.ask(self._stream)[self._read :]
        self._read += len(events)
        rows = [{**dict.fromkeys(schema.names), **event, "value": event["value"].encode()} for event in events]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema)

    def left(self) -> int | None:
        return None


if __name__ == "__main__":
    from tests import toy_protocol

    PROTOCOLS["toy"] = toy_protocol.TOY
    from spark_streams.cli import main

    main()
