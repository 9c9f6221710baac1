"""Connects to a peer by any of its hosts: those of option ``url`` in random order, then those that it has named itself.

A host that does not answer, or does not answer as such a peer does, is skipped. What all hosts would answer alike ends
the search at once: that they do not take the credentials, or do not let us in.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from spark_streams.endpoint import Endpoint, Node
from spark_streams.errors import ConnectFailed, RemoteProtocolError, SparkStreamsError, TransportError

MAX_TOLD: Final = 64
"""More nodes than any cluster has of which a client has to find one."""

_log = logging.getLogger(__name__)
_C = TypeVar("_C")


class Hosts:
    """The hosts of one peer. Not for several threads at once.

    Args:
        endpoint: where the peer is.
        timeout_ms: how long the network may take to connect, for all hosts together.
    """

    def __init__(self, endpoint: Endpoint, timeout_ms: int) -> None:
        self._endpoint = endpoint
        self._timeout_ms = timeout_ms
        self._given = endpoint.hosts
        self._told: dict[Node, None] = {}
        self._failed: set[Node] = set()
        self.learn(endpoint.told)

    @property
    def told(self) -> tuple[Node, ...]:
        """The nodes that the peer has named, and that are none of ``url``."""
        return tuple(self._told)

    def learn(self, nodes: Iterable[Node]) -> None:
        """Remember nodes that the peer has named; of a peer that names very many, the first."""
        given = {_node(host) for host in self._given}
        for node in nodes:
            if node not in given and len(self._told) < MAX_TOLD:
                self._told[node] = None

    def connect(self, connect: Callable[[Endpoint, int], _C]) -> _C:
        """Return a connection to the first host that gives one.

        Args:
            connect: connects with one host; its other argument is how many milliseconds that may take.

        Raises:
            ConnectFailed: no host answers as it should; the message names each that was tried, with its reason.
            SparkStreamsError: of the only host, or one that every host would answer with.
        """
        order, faults = self._order(), []
        for host in order:
            node = _node(host)
            try:
                connection = connect(host, max(1, self._timeout_ms // len(order)))
            except SparkStreamsError as fault:
                if not is_host_fault(fault):
                    raise
                faults.append(fault)
                self._failed.add(node)
                if host.is_told and (fault.costly or not fault.retriable):
                    # It cannot be reached from here: it would cost its time, and tries of the others, again and again.
                    del self._told[node]
                    fault.costly = False
                continue
            self._failed.discard(node)
            if faults:
                _log.warning("going on with %s: %s", host.address, "; ".join(map(str, faults)))
            return connection
        raise unreachable_fault(faults)

    def _order(self) -> list[Endpoint]:
        """Return all hosts: at random, but those of the url first, and each kind with those that failed at its end."""
        hosts = [*self._given, *map(self._endpoint.at, self._told)]
        return sorted(random.sample(hosts, len(hosts)), key=lambda each: (each.is_told, _node(each) in self._failed))


def is_host_fault(fault: SparkStreamsError) -> bool:
    """Return whether a fault is one of the host alone, so that another host may answer."""
    return fault.retriable or isinstance(fault, (TransportError, RemoteProtocolError))


def unreachable_fault(faults: list[SparkStreamsError]) -> SparkStreamsError:
    """Return the error for hosts of which none could be reached: that of the only one, or one that has all in it."""
    if len(faults) == 1:
        return faults[0]
    failed = ConnectFailed(f"none of {len(faults)} hosts can be reached: {'; '.join(map(str, faults))}")
    failed.retriable = any(fault.retriable for fault in faults)
    failed.costly = any(fault.costly for fault in faults)
    return failed


def _node(host: Endpoint) -> Node:
    return host.host, host.port
