"""Makes the library of HTTP bound a request as a whole: to connect, to pass a proxy, and to get an answer.

Its own time-outs are for each address of a host, and for each byte of an answer; behind a SOCKS proxy they still are.
"""

from __future__ import annotations

import socket
import time
from typing import Any, Final

import requests
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from spark_streams.client.timed import TimedResponse, connect


class TimedHTTPConnection(HTTPConnection):
    """A connection that is made, and answers, within its time-out."""

    response_class = TimedResponse

    def _new_conn(self) -> socket.socket:
        assert isinstance(self.timeout, (int, float))
        try:
            connected, _ = connect((self._dns_host, self.port), time.monotonic() + self.timeout)
        except OSError as fault:
            raised = ConnectTimeoutError if isinstance(fault, TimeoutError) else NewConnectionError
            raise raised(self, str(fault)) from fault
        for option in self.socket_options or ():
            connected.setsockopt(*option)
        return connected


class TimedHTTPSConnection(TimedHTTPConnection, HTTPSConnection):
    """The same with TLS."""


class _TimedHTTPConnectionPool(HTTPConnectionPool):
    ConnectionCls = TimedHTTPConnection


class _TimedHTTPSConnectionPool(HTTPSConnectionPool):
    ConnectionCls = TimedHTTPSConnection


_POOLS: Final = {"http": _TimedHTTPConnectionPool, "https": _TimedHTTPSConnectionPool}


class TimedAdapter(requests.adapters.HTTPAdapter):
    """Makes requests on connections that are timed as a whole."""

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        """Make the pools; see the library."""
        super().init_poolmanager(*arguments, **named)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **named: Any) -> Any:
        """Return the pools of a proxy; see the library."""
        manager = super().proxy_manager_for(proxy, **named)
        if not proxy.lower().startswith("socks"):
            manager.pool_classes_by_scheme = _POOLS
        return manager
