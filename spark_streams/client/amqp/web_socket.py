"""Carries AMQP's bytes over a WebSocket, with the few calls of a socket, so that the connection needs no special case.

::

    bytes --send--> [a binary message each, masked]  --> TLS --> TCP, or a proxy's
    bytes <--recv-- [payloads of messages, joined]   <-- TLS <--

The library ``websockets`` makes and reads frames and the handshake, and touches no socket (docs/adr/0046-websocket.md).
The boundaries of messages mean nothing to AMQP.

Spec: RFC 6455; AMQP WebSocket Binding 1.0 §2 (subprotocol), §3 (binary messages).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from functools import partial
from typing import Final

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from spark_streams.client.proxy import connect_through, proxy_for
from spark_streams.client.retry import Deadline
from spark_streams.client.tcp import WOULD_BLOCK, final, lost, open_socket
from spark_streams.client.what_answers import known_right, wrong_port
from spark_streams.endpoint import Endpoint
from spark_streams.errors import ConnectFailed
from spark_streams.redaction import safe_text

PATH: Final = "/$servicebus/websocket"
"""Where Event Hubs serves AMQP."""
SUBPROTOCOLS: Final = (Subprotocol("AMQPWSB10"), Subprotocol("amqp"))
"""The name that the service's own clients ask for, and the one that is registered."""
MAX_MESSAGE_BYTES: Final = 16 << 20
"""Bytes of the largest message that is taken: it is held until all of it is there."""
_READ_BYTES: Final = 256 << 10
_WRITE_BYTES: Final = 64 << 10
"""Payload of the largest message that is sent."""
_WITHOUT_PAYLOAD_S: Final = 0.1
"""Seconds for which a call that does not wait reads frames without a payload: its caller has other deadlines."""
_NORMAL: Final = 1_000
_PASSES: Final = frozenset({408, 429, 500, 502, 503, 504})


def open_web_socket(endpoint: Endpoint, deadline: Deadline, server_name: str | None = None) -> WebSocket:
    """Return a WebSocket to an endpoint, connected and not blocking.

    Args:
        endpoint: the peer, and the way to it.
        deadline: how long to try.
        server_name: the name that a TLS certificate has to hold, where it is not the endpoint's.

    Raises:
        ConnectFailed: no connection could be made, through a proxy or without; TLS or the WebSocket failed on it.
        AuthenticationFailed: the proxy wants a user and password, or others.
        DeadlineExceeded: ``deadline`` has passed.
        OptionError: a file of ``endpoint.tls`` cannot be read.
    """
    proxy = proxy_for(endpoint.dialled) if endpoint.tls is not None else None
    dial = None if proxy is None else partial(connect_through, proxy, endpoint.dialled, deadline)
    connected = open_socket(endpoint, deadline, server_name, dial)
    try:
        return WebSocket(connected, _shaken_hands(connected, endpoint, deadline))
    except BaseException:
        connected.close()
        raise


def _shaken_hands(connected: socket.socket, endpoint: Endpoint, deadline: Deadline) -> ClientProtocol:
    """Upgrade a connection from HTTP, and return the protocol that it speaks from then on."""
    heard = b""
    uri = parse_uri(f"{'ws' if endpoint.tls is None else 'wss'}://{endpoint.http_host}{PATH}")
    protocol = ClientProtocol(uri, subprotocols=SUBPROTOCOLS, max_size=MAX_MESSAGE_BYTES)
    protocol.send_request(protocol.connect())
    what = f"{endpoint.address}: no answer to the handshake of the WebSocket"
    try:
        connected.settimeout(deadline.left_s(what))
        connected.sendall(b"".join(protocol.data_to_send()))
        while not protocol.events_received() and protocol.handshake_exc is None:
            connected.settimeout(deadline.left_s(what))
            if received := connected.recv(_READ_BYTES):
                heard = heard or received
                protocol.receive_data(received)
            else:
                protocol.receive_eof()
        connected.setblocking(False)
    except TimeoutError as fault:
        deadline.left_s(what)
        raise lost(endpoint, fault) from fault
    except OSError as fault:
        raise (wrong_port(endpoint, heard) or lost(endpoint, fault)) from fault
    if protocol.handshake_exc is not None:
        wrong = wrong_port(endpoint, heard) or _refusal(endpoint, protocol.handshake_exc)
        raise wrong from protocol.handshake_exc
    known_right(endpoint)
    return protocol


def _refusal(endpoint: Endpoint, fault: Exception) -> ConnectFailed:
    if isinstance(fault, InvalidStatus):
        status = fault.response.status_code
        said = f"status {status}, {safe_text(fault.response.reason_phrase)}"
        failed = ConnectFailed(
            f"{endpoint.address}: the WebSocket was refused ({said}): check the host in option '{endpoint.option}', "
            "and what lies between"
        )
        return failed if status in _PASSES else final(failed)
    words = safe_text(str(fault))
    return final(
        ConnectFailed(
            f"{endpoint.address}: the port does not speak WebSockets ({words}): check the port, or leave out option "
            "'transport'"
        )
    )


class WebSocket:
    """An open WebSocket, as a stream of bytes: a socket's calls, with their results and errors.

    Bytes that were received are handed out before the socket is read again. So when a call would block, none is left,
    and the caller may wait for the socket.

    Args:
        connected: the socket.
        protocol: after its handshake.
    """

    def __init__(self, connected: socket.socket, protocol: ClientProtocol) -> None:
        self._socket = connected
        self._protocol = protocol
        self._payloads: deque[memoryview] = deque()
        self._output = bytearray()
        self._taken = 0
        """Bytes of the message in ``_output`` that no caller has been told of yet."""
        self._take()

    def fileno(self) -> int:
        """Return the socket's descriptor, to wait for."""
        return self._socket.fileno()

    def settimeout(self, seconds: float) -> None:
        """Set how long each call of ``recv`` waits, whatever frames without payload, such as pings, come."""
        self._socket.settimeout(seconds)

    def setblocking(self, blocks: bool) -> None:
        """Set whether calls wait; see ``socket.socket``."""
        self._socket.setblocking(blocks)

    def recv(self, most: int) -> bytes:
        """Return received bytes; see ``recv_into``."""
        buffer = bytearray(most)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def recv_into(self, room: memoryview) -> int:
        """Receive bytes, and return how many; 0 at the end of the stream.

        Raises:
            ConnectionError: the peer closed the WebSocket with an error, or broke the protocol.
            OSError: the socket's; those of ``WOULD_BLOCK`` mean that no payload is left, even if many frames came.
        """
        wait_s = self._socket.gettimeout()
        until = time.monotonic() + (wait_s or _WITHOUT_PAYLOAD_S)
        while not self._payloads:
            if self._protocol.close_rcvd is not None:
                return self._ended()
            if (left_s := until - time.monotonic()) <= 0:
                raise TimeoutError("timed out") if wait_s else BlockingIOError
            if wait_s:
                self._socket.settimeout(left_s)
            received = self._socket.recv(_READ_BYTES)
            if not received:
                return 0
            self._protocol.receive_data(received)
            self._take()
        count = 0
        while self._payloads and count < len(room):
            first = self._payloads.popleft()
            part = first[: len(room) - count]
            room[count : count + len(part)] = part
            count += len(part)
            if len(part) < len(first):
                self._payloads.appendleft(first[len(part) :])
        return count

    def send(self, data: memoryview | bytes) -> int:
        """Send the first bytes, and return how many.

        Where the socket takes only a part of the frame, this raises as if it took none, and the next call, which has to
        begin with the same bytes, as with TLS, sends the rest.

        Raises:
            ConnectionError: the WebSocket is closed.
            OSError: the socket's.
        """
        if not self._taken:
            part = memoryview(data)[:_WRITE_BYTES]
            try:
                self._protocol.send_binary(part)
            except WebSocketException as fault:
                raise ConnectionError(f"the WebSocket is closed: {fault}") from fault
            self._taken = len(part)
            self._answer()
        self._drain()
        taken, self._taken = self._taken, 0
        return taken

    def sendall(self, data: bytes) -> None:
        """Send all bytes; see ``socket.socket``."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.send(rest) :]

    def close(self) -> None:
        """Close, with a last frame that says so, if it can be sent at once."""
        with contextlib.suppress(OSError, WebSocketException):
            self._protocol.send_close(_NORMAL)
            self._answer()
            self._socket.setblocking(False)
            self._drain()
        self._socket.close()

    def _take(self) -> None:
        """Take what the protocol has read, and answer the peer's pings."""
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT) and event.data:
                self._payloads.append(memoryview(event.data))
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                raise ConnectionError("the peer sent text over the WebSocket, expected binary messages")
        self._answer()
        if self._output:
            with contextlib.suppress(*WOULD_BLOCK):
                self._drain()
        if self._protocol.parser_exc is not None and not self._payloads:
            raise ConnectionError(f"the WebSocket broke: {self._protocol.parser_exc}")

    def _answer(self) -> None:
        self._output += b"".join(self._protocol.data_to_send())

    def _drain(self) -> None:
        while self._output:
            del self._output[: self._socket.send(self._output)]

    def _ended(self) -> int:
        closed = self._protocol.close_rcvd
        assert closed is not None
        if closed.code == _NORMAL:
            return 0
        raise ConnectionError(f"the peer closed the WebSocket with code {closed.code}: {closed.reason}")
