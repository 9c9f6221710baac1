"""The nodes of a broker: connections to them, opened when they are first needed, and which of them holds a stream.

A stream is read on a node that has a member of it; any node tells where they are.

Spec: Streams Protocol Reference, Metadata; notes, section 13.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from spark_streams.client.rabbit.connection import Connection
from spark_streams.client.rabbit.faults import is_unavailable, refusal
from spark_streams.endpoint import Endpoint
from spark_streams.errors import ConnectFailed, LocalProtocolError, Refused, SparkStreamsError
from spark_streams.wire.rabbit.codes import ResponseCode
from spark_streams.wire.rabbit.streams import Metadata, MetadataAnswer, StreamMetadata

__all__ = ["Cluster"]

_T = TypeVar("_T")


class Cluster:
    """Connections to the nodes of a broker. Not for several threads at once.

    Args:
        endpoint: where to, with credentials, virtual host and TLS.
        timeout_ms: how long the broker may be silent whenever it owes an answer.
    """

    def __init__(self, endpoint: Endpoint, timeout_ms: int) -> None:
        self._endpoint = endpoint
        self._timeout_ms = timeout_ms
        self._connections: dict[tuple[str, int], Connection] = {}
        self._nodes: dict[str, tuple[str, int]] = {}
        self._closed = False

    @property
    def was_there(self) -> bool:
        """Whether a node has ever been reached."""
        return bool(self._connections)

    def close(self) -> None:
        """Close all connections in good order; never raises."""
        self._closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def any(self) -> Connection:
        """Return a connection to the node of ``endpoint``.

        Raises:
            ConnectFailed, AuthenticationFailed, Refused, DeadlineExceeded, RemoteProtocolError: as they say.
        """
        return self._connection()

    def near(self, stream: str, operation: Callable[[Connection], _T]) -> _T:
        """Run an operation on a node that has a member of the stream; the one we know of first.

        Raises:
            PeerError: of the operation.
        """
        known = self._nodes.pop(stream, None)
        try:
            found = operation(self._connection(known))
            if known is not None:
                self._nodes[stream] = known
            return found
        except Refused as fault:
            if not is_unavailable(fault):
                raise
            for node in self._members(stream):
                try:
                    found = operation(self._connection(node))
                except SparkStreamsError as other:
                    if not other.retriable:
                        raise
                    continue
                self._nodes[stream] = node
                return found
            raise

    def at_leader(self, stream: str, operation: Callable[[Connection], _T]) -> _T:
        """Run an operation on the node that leads the stream.

        Raises:
            PeerError: of the operation.
            Refused: the stream has no leader now.
            ConnectFailed: it cannot be reached, and there are other members, which may be behind.
        """
        what, (streams, nodes) = f"stream '{stream}': leader", self._placed(stream)
        for each in streams:
            if each.code != ResponseCode.OK:
                raise refusal(each.code, what)
            if each.leader not in nodes:
                break
            try:
                return operation(self._connection(nodes[each.leader]))
            except ConnectFailed:
                if {*each.replicas} - {each.leader}:
                    raise
                return self.near(stream, operation)  # alone, as in a container, it may advertise anything
        raise refusal(ResponseCode.STREAM_NOT_AVAILABLE, what)

    def _members(self, stream: str) -> list[tuple[str, int]]:
        streams, nodes = self._placed(stream)
        own = (self._endpoint.host, self._endpoint.port)
        return [
            nodes[reference]
            for each in streams
            for reference in (*each.replicas, each.leader)
            if reference in nodes and nodes[reference] != own
        ]

    def _placed(self, stream: str) -> tuple[tuple[StreamMetadata, ...], dict[int, tuple[str, int]]]:
        """Return what the broker says of a stream's members, and where nodes are, by the numbers that it names."""
        answer = self._connection().request(Metadata((stream,)), MetadataAnswer, f"stream '{stream}': metadata")
        return answer.streams, {broker.reference: (broker.host, broker.port) for broker in answer.brokers}

    def _connection(self, node: tuple[str, int] | None = None) -> Connection:
        if self._closed:
            raise LocalProtocolError(f"the client of {self._endpoint.address} is closed")
        key = node or (self._endpoint.host, self._endpoint.port)
        connection = self._connections.get(key)
        if connection is None or connection.broken:
            endpoint = replace(self._endpoint, host=key[0], port=key[1])
            connection = self._connections[key] = Connection(endpoint, timeout_ms=self._timeout_ms)
        return connection
