"""Connects to the nodes of a broker when they are first needed, and finds the node that holds a stream.

A client reads a stream on a node that has a member of it; any node reports where the members are.

Spec: Streams Protocol Reference, Metadata; docs/specifications.md, S-131.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from spark_streams.client.hosts import Hosts, is_host_fault, unreachable_fault
from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import is_unavailable, refusal
from spark_streams.client.rabbitmq.open import open_connection
from spark_streams.client.retry import retrying
from spark_streams.client.tcp import costly, final
from spark_streams.endpoint import Endpoint, Node
from spark_streams.errors import ConnectFailed, LocalProtocolError, Refused, SparkStreamsError
from spark_streams.wire.rabbitmq.response_codes import ResponseCode
from spark_streams.wire.rabbitmq.stream_commands import Metadata, MetadataAnswer, StreamMetadata

_T = TypeVar("_T")

Operation = Callable[[Connection, str], _T]
"""What is done on a connection to a node, with a stream: its other argument is the stream's name."""

LOAD_BALANCED_TRIES: Final = 32
"""The most connections that are opened until a load balancer leads to a node: if it chooses among three nodes at
random, it misses one in 400,000 times."""
LOAD_BALANCED_PAUSE_S: Final = 0.5
"""Seconds of the longest pause between two of these connections."""


class Cluster:
    """Connections to the nodes of a broker, for one thread at a time.

    Args:
        endpoint: the broker, with credentials, virtual host and TLS; any one of several hosts is used.
        timeout_ms: how many milliseconds the broker may be silent whenever it owes an answer.
    """

    def __init__(self, endpoint: Endpoint, timeout_ms: int) -> None:
        self._endpoint = endpoint
        self.timeout_ms = timeout_ms
        self._hosts = Hosts(endpoint, timeout_ms)
        self._connections: list[Connection] = []
        self._near: dict[str, Connection] = {}
        self._closed = False
        self._was_there = False
        """Whether a node has ever been reached."""

    @property
    def advertised(self) -> tuple[Node, ...]:
        """The nodes that the broker has named and ``endpoint`` does not, to try when its hosts do not answer."""
        self._learn()
        return self._hosts.advertised

    def close(self) -> None:
        """Close all connections with Close; never raise."""
        self._closed = True
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def retrying(self, operation: Callable[[], _T]) -> _T:
        """Run an operation, and retry it while its errors are retriable."""
        return retrying(operation, was_reached=lambda: self._was_there)

    def near_retrying(self, stream: str, operation: Operation[_T]) -> _T:
        """Run an operation as ``near``, and retry it while its errors are retriable."""
        return self.retrying(lambda: self.near(stream, operation))

    def any(self) -> Connection:
        """Return a connection to any node: the open one that is oldest, else a new one.

        Raises:
            ConnectFailed, AuthenticationFailed, Refused, DeadlineExceeded, RemoteProtocolError: as for
                ``open_connection``.
        """
        self._learn()
        return self._connections[0] if self._connections else self._hosts.connect(self._connect)

    def near(self, stream: str, operation: Operation[_T]) -> _T:
        """Run an operation on a node that has a member of the stream; try the last such node first.

        Raises:
            PeerError: the operation raised it.
            Refused: the stream has no reachable member.
        """
        connection = self._near.pop(stream, None)
        if connection is None or connection.broken:
            connection = self.any()
        try:
            found = operation(connection, stream)
        except Refused as fault:
            if not is_unavailable(fault):
                raise
            return self._at_another_member(stream, operation, connection, fault)
        self._near[stream] = connection
        return found

    def _at_another_member(self, stream: str, operation: Operation[_T], but: Connection, refused: Refused) -> _T:
        streams, nodes = self._placed(stream)
        members = dict.fromkeys(nodes[n] for each in streams for n in (*each.replicas, each.leader) if n in nodes)
        left = [node for node in members if not self._is_at(but, node)]
        faults: list[SparkStreamsError] = []
        while left:
            connection = None
            try:
                connection = self._to_one_of(left, self.timeout_ms // len(members))
                found = operation(connection, stream)
            except SparkStreamsError as fault:
                if not (is_host_fault(fault) if connection is None else fault.retriable):
                    raise
                faults.append(fault)
            else:
                self._near[stream] = connection
                return found
            if connection is None and self._endpoint.load_balancer:
                break  # the load balancer leads to none of them
            left = left[1:] if connection is None else [each for each in left if not self._is_at(connection, each)]
        raise _unreachable(refused, faults)

    def at_leader(self, stream: str, operation: Operation[_T]) -> _T:
        """Run an operation on the node that leads the stream.

        Raises:
            PeerError: the operation raised it.
            Refused: the stream has no leader now.
            ConnectFailed: the leader is unreachable, and there are other members, which may lag behind.
        """
        what, (streams, nodes) = f"stream '{stream}': leader", self._placed(stream)
        for each in streams:
            if each.code != ResponseCode.OK:
                raise refusal(each.code, what)
            if each.leader not in nodes:
                break
            try:
                return operation(self._to_one_of([nodes[each.leader]], self.timeout_ms), stream)
            except ConnectFailed:
                if {*each.replicas} - {each.leader}:
                    raise
                return self.near(stream, operation)  # a single node, as in a container, may advertise any address
        raise refusal(ResponseCode.STREAM_NOT_AVAILABLE, what)

    def _placed(self, stream: str) -> tuple[tuple[StreamMetadata, ...], dict[int, Node]]:
        """Return a stream's members, as the broker reports them, and the addresses of nodes by their numbers."""
        answer = self.any().request(Metadata((stream,)), MetadataAnswer, f"stream '{stream}': metadata")
        return answer.streams, {broker.reference: (broker.host, broker.port) for broker in answer.brokers}

    def _to_one_of(self, nodes: Sequence[Node], connect_ms: int) -> Connection:
        """Return a connection to the first of some nodes that the broker has named; by a load balancer, to any one."""
        balanced = self._endpoint.load_balancer
        self._learn()
        for connection in self._connections:
            if any(self._is_at(connection, node) for node in (nodes if balanced else nodes[:1])):
                return connection
        return self._by_load_balancer(nodes) if balanced else self._connect(self._endpoint.at(nodes[0]), connect_ms)

    def _by_load_balancer(self, nodes: Sequence[Node]) -> Connection:
        """Connect until a load balancer leads to one of some nodes.

        Connections to other nodes stay open until then: a load balancer that prefers nodes with few connections would
        lead there again.

        Raises:
            ConnectFailed: no try within ``LOAD_BALANCED_TRIES`` and the timeout led to one of the nodes.
        """
        until = time.monotonic() + self.timeout_ms / 1_000
        elsewhere: list[Connection] = []
        led: Counter[str] = Counter()
        try:
            for n in range(LOAD_BALANCED_TRIES):
                if n:
                    time.sleep(min(LOAD_BALANCED_PAUSE_S, 0.01 * 2**n))
                try:
                    connection = self._hosts.connect(self._connect)
                except SparkStreamsError as fault:
                    if not fault.retriable:
                        raise
                    led[str(fault)] += 1
                else:
                    if any(self._is_at(connection, node) for node in nodes):
                        return connection
                    elsewhere.append(connection)
                    led[self._name(connection)] += 1
                if time.monotonic() >= until:
                    break
        finally:
            for connection in elsewhere:
                connection.close()
        raise self._led_elsewhere(nodes, led)

    def _name(self, connection: Connection) -> str:
        """Return the name of the node that a load balancer led to.

        Raises:
            ConnectFailed: the node does not report its name, so nobody can recognise the right node.
        """
        if connection.advertised is None:
            raise final(
                ConnectFailed(
                    f"{connection.endpoint.address}: the broker does not say which node it is (advertised_host, in its "
                    "answer to Open), so it cannot be known where a load balancer leads: leave out option "
                    "'loadBalancer'"
                )
            )
        return self._endpoint.at(connection.advertised).address

    def _led_elsewhere(self, nodes: Sequence[Node], led: Mapping[str, int]) -> ConnectFailed:
        wanted = " or ".join(self._endpoint.at(node).address for node in nodes)
        ways = ", ".join(f"{where} ({times} times)" for where, times in led.items())
        return costly(
            ConnectFailed(
                f"{self._endpoint.address}: the load balancer does not lead to {wanted}, but to {ways}: check that it "
                "serves all nodes of the cluster, and that they are up; raise option 'requestTimeout' if it is slow"
            )
        )

    def _is_at(self, connection: Connection, node: Node) -> bool:
        """Return whether a connection leads to a node, by its endpoint's address or the node's advertised one."""
        dialled = (connection.endpoint.host, connection.endpoint.port)
        return node == connection.advertised or (node == dialled and not self._endpoint.load_balancer)

    def _connect(self, host: Endpoint, connect_ms: int) -> Connection:
        if self._closed:
            raise LocalProtocolError(f"the client of {self._endpoint.address} is closed")
        connection = open_connection(host, timeout_ms=self.timeout_ms, connect_ms=max(1, connect_ms))
        self._connections.append(connection)
        self._was_there = True
        return connection

    def _learn(self) -> None:
        """Remember the nodes that the broker has named, and forget connections that broke."""
        if not self._endpoint.load_balancer:
            for connection in self._connections:
                self._hosts.learn(connection.nodes)
        self._connections = [each for each in self._connections if not each.broken]


def _unreachable(refused: Refused, faults: list[SparkStreamsError]) -> Refused:
    """Return the error for a stream that one node does not have and no other member could serve."""
    if not faults:
        return refused
    fault = unreachable_fault(faults)
    combined = Refused(refused.condition, f"{refused.description}; asked elsewhere: {fault}", refused.context)
    combined.retriable, combined.costly = fault.retriable, fault.costly
    return combined
