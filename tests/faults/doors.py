"""A log in this process, reached over TLS through proxies, and filled and looked into without any of its clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, FeedConfig, RabbitConfig, ServerThread
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns
from spark_streams.wire.amqp.columns.encode import encode_columns
from tests.certificate_authority import Authority
from tests.faults.proxy import TcpProxy

__all__ = ["FORMATS", "Doors", "Event", "doors"]

FORMATS = ("amqp-events", "rabbitmq-stream", "feedapi")
DOORS = {"amqp-events": "amqp", "rabbitmq-stream": "rabbitmq-stream", "feedapi": "feedapi"}


@dataclass(frozen=True)
class Event:
    """What the log holds at an offset."""

    offset: int
    value: str
    message_id: str | None


class Doors:
    """All doors of a log.

    Args:
        log: the log.
        server: serves it.
        authority: PEM file of who signed the doors' certificate; None where they are plain.
    """

    def __init__(self, log: ReferenceLog, server: ServerThread, authority: str | None) -> None:
        self.log = log
        self.server = server
        self._authority = authority
        self._proxies: list[TcpProxy] = []

    def proxy(self, format: str) -> TcpProxy:
        """Return a new proxy of the door that a format uses; it lives as long as the doors."""
        port = int(self.server.urls[DOORS[format]].rpartition(":")[2])
        made = TcpProxy(port)
        self._proxies.append(made)
        return made

    def options(self, format: str, stream: str, proxy: TcpProxy | None = None) -> dict[str, str]:
        """Return what a reader or writer needs to find a stream, through a proxy or straight."""
        urls = {"amqp-events": self.server.amqp_url, "rabbitmq-stream": self.server.rabbit_url}
        url = urls.get(format, self.server.feed_url)
        url = url if proxy is None else proxy.url(url)
        secured = {"tls.caFile": self._authority} if self._authority is not None else {}
        if format == "feedapi":
            return {"url": f"{url}/{stream}", **secured}
        which = (
            "superStream" if format == "rabbitmq-stream" and len(self.log.stream(stream).partitions) > 1 else "stream"
        )
        # Else a query would go on with the node that the broker names, past the proxy.
        through = {"loadBalancer": "true"} if proxy is not None and format == "rabbitmq-stream" else {}
        return {"url": url, which: stream, **secured, **through}

    def create(self, stream: str, partitions: int) -> None:
        """Make a stream."""
        self.server.call(lambda: self.log.create_stream(stream, partitions))

    def append(self, stream: str, values: Mapping[str, Sequence[str]]) -> None:
        """Append to each partition; readers see nothing, or all of it."""
        messages = {
            partition: encode_columns({"value": pa.array([text.encode() for text in texts], pa.binary())}).to_pylist()
            for partition, texts in values.items()
        }

        def append() -> None:
            for partition, encoded in messages.items():
                self.log.stream(stream).partitions[partition].append(encoded)

        self.server.call(append)

    def events(self, stream: str) -> dict[str, list[Event]]:
        """Return all that the log holds, by partition; nothing may be written meanwhile."""
        return {name: list(_events(each)) for name, each in self.log.stream(stream).partitions.items()}

    def close(self) -> None:
        """Close the proxies."""
        for each in self._proxies:
            each.__exit__()


def _events(partition: Any) -> Iterator[Event]:
    at = partition.first_offset
    while at < partition.next_offset:
        records = partition.read(at)
        block = MessageBlock(records.buffer, records.value_starts, records.value_ends)
        columns = decode_columns(block, ("value", "properties"))
        rows = (columns[name].to_pylist() for name in ("value", "properties"))
        for offset, value, properties in zip(records.offsets.tolist(), *rows, strict=True):
            if offset >= at:
                yield Event(offset, value.decode(), (properties or {}).get("message_id"))
        at = int(records.offsets[-1]) + 1


@contextmanager
def doors(folder: Path, *, tls: bool) -> Iterator[Doors]:
    """Serve a new log.

    Args:
        folder: where it lives, and its certificates.
        tls: whether the doors speak it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files, authority = {}, None
    if tls:
        issuer = Authority(folder, "authority")
        certificate, key = issuer.issue("door")
        files, authority = {"tls_cert": certificate, "tls_key": key}, str(issuer.file)
    configs = (AmqpConfig(port=0, **files), RabbitConfig(port=0, **files), FeedConfig(port=0, **files))
    with ReferenceLog(folder / "log") as log, ServerThread(log, *configs) as server:
        found = Doors(log, server, authority)
        try:
            yield found
        finally:
            found.close()
