"""Connects through the HTTP proxy that the environment names: ``HTTPS_PROXY``, unless ``NO_PROXY`` has the host.

The proxy sees the name of the peer and encrypted bytes. It is found as Python's own ``urllib`` finds it; its url may
have a user and a password, for HTTP's basic authentication.

Spec: RFC 9110 §9.3.6 (CONNECT), RFC 7617 (basic authentication).
"""

from __future__ import annotations

import base64
import socket
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from http.client import HTTPException
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from spark_streams.client.retry import Deadline
from spark_streams.client.tcp import costly, final
from spark_streams.client.timed import TimedResponse, connect
from spark_streams.endpoint import Node, Secret
from spark_streams.errors import AuthenticationFailed, ConnectFailed
from spark_streams.redaction import remember, safe_text

VARIABLE: Final = "HTTPS_PROXY"
_DEFAULT_PORT: Final = 80
_UNAUTHORIZED: Final = 407
_PASSES: Final = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Proxy:
    """A proxy of the environment.

    Args:
        host: its name or address.
        port: its port.
        username: for the proxy; None if there is none.
        password: that user's.
    """

    host: str
    port: int
    username: str | None = None
    password: Secret | None = None


def proxy_for(node: Node) -> Proxy | None:
    """Return the proxy that leads to a host and port, None where connections go there without one.

    Raises:
        ConnectFailed: the environment names one that cannot be used; the message does not quote it.
    """
    url = getproxies().get("https")
    if not url or proxy_bypass(f"{node[0]}:{node[1]}"):
        return None
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port or _DEFAULT_PORT
    except ValueError:
        host, port, parts = None, 0, urlsplit("http:")
    if parts.scheme != "http" or not host:
        expected = "expected http://[user:password@]host:port"
        raise final(ConnectFailed(f"the environment's {VARIABLE} names no proxy that can be used: {expected}"))
    username = None if parts.username is None else unquote(parts.username)
    return Proxy(host, port, username, Secret(unquote(parts.password or "")))


def connect_through(proxy: Proxy, node: Node, deadline: Deadline) -> socket.socket:
    """Return a socket that the proxy has connected to a host and port.

    Raises:
        ConnectFailed: the proxy cannot be reached, or does not connect us.
        AuthenticationFailed: it wants a user and password, or others.
        DeadlineExceeded: ``deadline`` has passed.
    """
    host, port = node
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    what = f"{target}: no connection through the proxy {proxy.host}:{proxy.port} of {VARIABLE}"
    with ExitStack() as unless_connected:
        reason = "it cannot be reached"
        try:
            connected = connect((proxy.host, proxy.port), time.monotonic() + deadline.left_s(what))
            unless_connected.callback(connected.close)
            reason = "no HTTP answer"
            connected.sendall(_request(proxy, target))
            connected.settimeout(deadline.left_s(what))
            with closing(TimedResponse(connected, method="CONNECT")) as response:
                response.begin()
        except (OSError, HTTPException, ValueError) as fault:
            words = "unknown host" if isinstance(fault, socket.gaierror) else str(fault)
            failed = ConnectFailed(f"{what}: {reason}: {safe_text(words)}")
            raise (costly(failed) if isinstance(fault, TimeoutError) else failed) from fault
        if response.status == 200:
            unless_connected.pop_all()
            return connected
    said = f"status {response.status}, {safe_text(response.reason)}"
    if response.status == _UNAUTHORIZED:
        raise AuthenticationFailed(f"status {_UNAUTHORIZED}", f"check the user and password in {VARIABLE}", what)
    failed = ConnectFailed(f"{what}: it does not connect us: {said}: it has to permit CONNECT to {target}")
    raise failed if response.status in _PASSES else final(failed)


def _request(proxy: Proxy, target: str) -> bytes:
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.username is not None:
        password = "" if proxy.password is None else proxy.password.reveal()
        remember(password, proxy.username)
        signed = base64.b64encode(f"{proxy.username}:{password}".encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {signed}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
