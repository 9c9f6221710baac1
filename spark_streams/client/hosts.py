"""Connects to any host of a peer: those of option ``url`` in random order, then those that the peer has named.

The search skips a host that does not answer, or does not speak the protocol. An answer that all hosts would give ends
the search at once: that the peer does not accept the credentials, or does not permit the access.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from spark_streams.endpoint import Endpoint, Node
from spark_streams.errors import ConnectFailed, RemoteProtocolError, SparkStreamsError, TransportError

MAX_ADVERTISED: Final = 64
"""The most nodes that are remembered: more than a client needs to find one of any cluster."""

_log = logging.getLogger(__name__)
_C = TypeVar("_C")


class Hosts:
    """The hosts of one peer, for one thread at a time.

    Args:
        endpoint: the peer's endpoint.
        timeout_ms: how many milliseconds connecting may take, for all hosts together.
    """

    def __init__(self, endpoint: Endpoint, timeout_ms: int) -> None:
        self._endpoint = endpoint
        self._timeout_ms = timeout_ms
        self._given = endpoint.hosts
        self._advertised: dict[Node, None] = {}
        self._failed: set[Node] = set()
        self.learn(endpoint.advertised)

    @property
    def advertised(self) -> tuple[Node, ...]:
        """The nodes that the peer has named, without those of ``url``."""
        return tuple(self._advertised)

    def learn(self, nodes: Iterable[Node]) -> None:
        """Remember the nodes that the peer has named, up to ``MAX_ADVERTISED``."""
        given = {_node(host) for host in self._given}
        for node in nodes:
            if node not in given and len(self._advertised) < MAX_ADVERTISED:
                self._advertised[node] = None

    def connect(self, connect: Callable[[Endpoint, int], _C]) -> _C:
        """Return a connection to the first host that gives one.

        Args:
            connect: connects to one host; its other argument is how many milliseconds that may take.

        Raises:
            ConnectFailed: no host answers as it should; the message names each tried host, with its reason.
            SparkStreamsError: the error of the only host, or one that every host would answer with.
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
                if host.is_advertised and (fault.costly or not fault.retriable):
                    # The host is unreachable from here: each search would spend its time and tries on it again.
                    del self._advertised[node]
                    fault.costly = False
                continue
            self._failed.discard(node)
            if faults:
                _log.warning("going on with %s: %s", host.address, "; ".join(map(str, faults)))
            return connection
        raise unreachable_fault(faults)

    def _order(self) -> list[Endpoint]:
        """Return all hosts in random order: those of the url first, and within both kinds the failed ones last."""
        hosts = [*self._given, *map(self._endpoint.at, self._advertised)]
        return sorted(random.sample(hosts, len(hosts)), key=lambda h: (h.is_advertised, _node(h) in self._failed))


def is_host_fault(fault: SparkStreamsError) -> bool:
    """Return whether a fault concerns one host alone, so that another host may answer."""
    return fault.retriable or isinstance(fault, (TransportError, RemoteProtocolError))


def unreachable_fault(faults: list[SparkStreamsError]) -> SparkStreamsError:
    """Return the error for a search that reached no host: the only fault, or one error that lists all faults."""
    if len(faults) == 1:
        return faults[0]
    failed = ConnectFailed(f"none of {len(faults)} hosts can be reached: {'; '.join(map(str, faults))}")
    failed.retriable = any(fault.retriable for fault in faults)
    failed.costly = any(fault.costly for fault in faults)
    return failed


def _node(host: Endpoint) -> Node:
    return host.host, host.port
