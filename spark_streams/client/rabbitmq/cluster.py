"""Connects to the nodes of a broker when they are first needed, and finds the node that holds a stream.

A client reads a stream on a node that has a member of it; any node reports where the members are.

Spec: Streams Protocol Reference, Metadata; docs/specifications.md, S-131.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from spark_streams.client.hosts import Hosts, is_host_fault, unreachable_fault
from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import is_unavailable, present, refused
from spark_streams.client.rabbitmq.open import open_connection
from spark_streams.client.retry import retrying
from spark_streams.client.tcp import costly, final
from spark_streams.endpoint import Endpoint, Node
from spark_streams.errors import ConnectFailed, LocalProtocolError, NotFound, PeerError, Refused, SparkStreamsError
from spark_streams.wire.rabbitmq.frames import ResponseCode
from spark_streams.wire.rabbitmq.stream_commands import NO_LEADER, Metadata, MetadataAnswer

_T = TypeVar("_T")

Operation = Callable[[Connection, str], _T]
"""An operation on a connection to a node, for a stream: its other argument is the stream's name."""
JointOperation = Callable[[Connection, Sequence[str]], Mapping[str, _T | PeerError]]
"""An operation for several streams; it returns the result for each, or the error that the node answered."""

_NAMES_AT_ONCE: Final = 1_000
"""Names in a request for metadata: each may have 255 bytes, and a frame has 1 MiB at most by default."""
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
            return self._at_another_member(stream, operation, connection, fault, self._placed([stream])[stream])
        self._near[stream] = connection
        return found

    def near_all(self, streams: Sequence[str], operation: JointOperation[_T]) -> dict[str, _T | NotFound]:
        """Run an operation on nodes that have members of streams, as ``near``, once on each node where that is enough.

        Returns:
            The result for each stream, in the order of ``streams``; or the error that it does not exist.

        Raises:
            PeerError, Refused: as for ``near``, for the first stream that has such an error.
        """

        def alone(connection: Connection, stream: str) -> _T:
            return present(operation(connection, [stream])[stream])

        groups: dict[Connection, list[str]] = {}
        default: Connection | None = None
        for stream in streams:
            connection = self._near.pop(stream, None)
            if connection is None or connection.broken:
                connection = default = default or self.any()
            groups.setdefault(connection, []).append(stream)
        found: dict[str, _T | PeerError] = {}
        at: dict[str, Connection] = {}
        for connection, some in groups.items():
            found.update(operation(connection, some))
            at.update(dict.fromkeys(some, connection))
        elsewhere = [stream for stream, each in found.items() if isinstance(each, Refused) and is_unavailable(each)]
        placed = self._placed(elsewhere)
        out: dict[str, _T | NotFound] = {}
        for stream in streams:
            outcome = found[stream]
            if stream in placed:
                assert isinstance(outcome, Refused)
                outcome = self._at_another_member(stream, alone, at[stream], outcome, placed[stream])
            elif not isinstance(outcome, PeerError):
                self._near[stream] = at[stream]
            out[stream] = _unless_refused(outcome)
        return out

    def _at_another_member(
        self, stream: str, operation: Operation[_T], but: Connection, refused: Refused, placed: _Placed
    ) -> _T:
        members = dict.fromkeys(placed.nodes[n] for n in (*placed.replicas, placed.leader) if n in placed.nodes)
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

    def at_leader(self, stream: str, operation: JointOperation[_T]) -> _T:
        """Run an operation on the node that leads the stream.

        Raises:
            PeerError: the operation returned it, or the stream does not exist.
            Refused: the stream has no leader now.
            ConnectFailed: the leader is unreachable, and there are other members, which may lag behind.
        """
        return present(self.at_leaders([stream], operation)[stream])

    def at_leaders(self, streams: Sequence[str], operation: JointOperation[_T]) -> dict[str, _T | NotFound]:
        """Run an operation on the nodes that lead streams, once on each node.

        Returns:
            The result for each stream, in the order of ``streams``; or the error that it does not exist.

        Raises:
            PeerError, Refused, ConnectFailed: as for ``at_leader``, for the first stream that has such an error.
        """
        found: dict[str, _T | PeerError] = {}
        led: dict[Node, list[str]] = {}
        lone: set[str] = set()
        for stream, placed in self._placed(streams).items():
            code = placed.code
            if code == ResponseCode.OK and placed.leader not in placed.nodes:
                code = ResponseCode.STREAM_NOT_AVAILABLE
            if code != ResponseCode.OK:
                found[stream] = _unless_refused(refused(code, Metadata, f"stream '{stream}': leader", self._endpoint))
                continue
            led.setdefault(placed.nodes[placed.leader], []).append(stream)
            if not {*placed.replicas} - {placed.leader}:
                lone.add(stream)
        for node, some in led.items():
            try:
                found.update(operation(self._to_one_of([node], self.timeout_ms), some))
            except ConnectFailed:
                if not lone.issuperset(some):
                    raise
                found.update(self.near_all(some, operation))  # a container's only node may advertise any address
        return {stream: _unless_refused(found[stream]) for stream in streams}

    def check(self, streams: Sequence[str]) -> None:
        """Check that there are such streams, by what any node reports of them.

        Raises:
            PeerError: the error of the first stream for which the broker reports one.
        """
        for stream, placed in self._placed(streams).items():
            if placed.code != ResponseCode.OK:
                raise refused(placed.code, Metadata, f"stream '{stream}'", self._endpoint)

    def _placed(self, streams: Sequence[str]) -> dict[str, _Placed]:
        """Return where the broker says that streams are; many are asked for in one request."""
        found: dict[str, _Placed] = {}
        for start in range(0, len(streams), _NAMES_AT_ONCE):
            names = tuple(streams[start : start + _NAMES_AT_ONCE])
            what = f"stream '{names[0]}': metadata" if len(names) == 1 else f"{len(names)} streams: metadata"
            answer = self.any().request(Metadata(names), MetadataAnswer, what)
            nodes = {broker.reference: (broker.host, broker.port) for broker in answer.brokers}
            told = {each.stream: _Placed(each.code, each.leader, each.replicas, nodes) for each in answer.streams}
            nowhere = _Placed(ResponseCode.STREAM_NOT_AVAILABLE, NO_LEADER, (), nodes)
            found.update({name: told.get(name, nowhere) for name in names})
        return found

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


@dataclass(frozen=True)
class _Placed:
    """Where one stream is.

    Args:
        code: OK, or why the broker does not tell.
        leader: the number of the node that leads it.
        replicas: the numbers of the other nodes that have a member.
        nodes: the addresses of nodes by their numbers.
    """

    code: int
    leader: int
    replicas: tuple[int, ...]
    nodes: Mapping[int, Node]


def _unless_refused(outcome: _T | PeerError) -> _T | NotFound:
    """Return a result, or the error that there is no such stream.

    Raises:
        PeerError: any other error of the broker.
    """
    if isinstance(outcome, PeerError) and not isinstance(outcome, NotFound):
        raise outcome
    return outcome


def _unreachable(refused: Refused, faults: list[SparkStreamsError]) -> Refused:
    """Return the error for a stream that one node does not have and no other member could serve."""
    if not faults:
        return refused
    fault = unreachable_fault(faults)
    combined = Refused(refused.condition, f"{refused.description}; asked elsewhere: {fault}", refused.context)
    combined.retriable, combined.costly = fault.retriable, fault.costly
    return combined
