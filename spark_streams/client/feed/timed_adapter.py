"""Makes the HTTP library bound a request as a whole: to connect, to pass a proxy, to send, and to get an answer.

The library's own time-outs begin anew for each of these steps, for each address of a host, and for each byte of an
answer; behind a SOCKS proxy they still do.
"""

from __future__ import annotations

import socket
import time
from typing import Any, Final

import requests
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from spark_streams.client.timed import TimedResponse, connect, left_s


class TimedHTTPConnection(HTTPConnection):
    """A connection that is made, takes a request, and answers, within its time-out, which begins when it is set."""

    response_class = TimedResponse

    @property
    def timeout(self) -> float:
        """The seconds that are left, which the library gives its socket before a step; each request sets them."""
        return left_s(self._until)

    @timeout.setter
    def timeout(self, seconds: object) -> None:
        self._until = time.monotonic() + seconds if isinstance(seconds, float | int) else 0.0

    def send(self, data: Any) -> None:
        """Send the head of a request, or its body, within the time that is left."""
        if self.sock is not None:  # otherwise it connects first
            self.sock.settimeout(self.timeout)
        super().send(data)

    def _tunnel(self) -> None:
        super()._tunnel()
        self.sock.settimeout(self.timeout)  # for the handshake of TLS

    def _new_conn(self) -> socket.socket:
        try:
            return connect((self._dns_host, self.port), self._until)
        except (OSError, UnicodeError, OverflowError) as fault:  # the host is no name, the port no number
            raised = ConnectTimeoutError if isinstance(fault, TimeoutError) else NewConnectionError
            raise raised(self, str(fault)) from fault


class TimedHTTPSConnection(TimedHTTPConnection, HTTPSConnection):
    """The same with TLS."""


_TIMED: Final[dict[Any, Any]] = {HTTPConnection: TimedHTTPConnection, HTTPSConnection: TimedHTTPSConnection}


class TimedAdapter(requests.adapters.HTTPAdapter):
    """Makes requests on connections that are timed as a whole."""

    def get_connection_with_tls_context(self, *arguments: Any, **named: Any) -> Any:
        """Return the pool of connections for a request; see the library."""
        pool = super().get_connection_with_tls_context(*arguments, **named)
        pool.ConnectionCls = _TIMED.get(pool.ConnectionCls, pool.ConnectionCls)
        return pool
