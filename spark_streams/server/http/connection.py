"""Runs one HTTP connection: uvicorn's, with limits of time and number, and safe against any bytes.

::

    accepted -> head -> body -> response -> idle -> head -> …
                408     408     dropped     closed  408       when it takes too long

The time of the first head, which admits a peer (``Admission``), runs from the accept of the socket. The time of a later
head runs from its first byte, that of a body from the end of its head. A response may last while the peer reads it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from spark_streams.server.activity import ConnectionInfo, Item, ReaderInfo, WriterInfo, client_text, peer_text
from spark_streams.server.admission import Admission
from spark_streams.server.counters import DoorCounters, logger
from spark_streams.server.door import WriteTimeout, throw_away_unsent
from spark_streams.server.http.config import HttpConfig
from spark_streams.server.http.guard import check_request, head_fault
from spark_streams.server.http.requests import CLOSE, HttpError
from spark_streams.server.turns import ASKER, Timer

READ_BYTES: Final = 1 << 10
"""The most bytes to receive at a time: tiny chunks and trailers cost 1 µs a byte, so this is a turn of the loop."""
BODY_BYTES: Final = 64 << 10
"""The same for a body whose length its head says: only the bytes behind its end are examined."""
LINGER_MS: Final = 2_000
"""How long a peer may take to read the last answer."""
_NO_REQUEST: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]*[^!#$%&'*+\-.^_`|~0-9A-Za-z ]")
"""Bytes that begin no request: a method is a token (RFC 9110 §5.6.2), with a blank behind it (RFC 9112 §3)."""
_METHOD_BYTES: Final = 64
"""No method is longer."""


def uvicorn_config(application: ASGIApp, limits: HttpConfig) -> uvicorn.Config:
    """Return uvicorn's settings for the connections of a door: without logging.

    Args:
        application: answers the requests.
        limits: the door's settings.
    """
    return uvicorn.Config(
        application,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=limits.max_head_bytes,
        timeout_keep_alive=limits.idle_timeout_ms // 1000 + 1,  # the door's own timeout comes first, and is exact
    )


class _RequestReader(h11.Connection):
    """h11's reading of requests, with a head as long as the settings say, however many bytes come at a time.

    Args:
        limits: the door's settings.
    """

    def __init__(self, limits: HttpConfig) -> None:
        super().__init__(h11.SERVER, limits.max_head_bytes)
        self._limits = limits

    @property
    def head_fault(self) -> str | None:
        """What is wrong with the size of the head that is being read."""
        idle = self.their_state is h11.IDLE
        return head_fault(self.trailing_data[0], self._limits.max_head_bytes) if idle else None

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event, as h11 does."""
        if self.head_fault is not None:
            raise h11.RemoteProtocolError(self.head_fault, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return super().next_event()


class HttpConnection(H11Protocol):
    """The connection of one peer.

    Args:
        admission: its admission at the door.
        limits: the door's settings.
        config: uvicorn's settings.
        state: what the connections of the door share; it has the open ones, and the tasks of their requests.

    Attributes:
        user: who made the last request; empty before.
        since_ms: when it was accepted, in ms since the epoch.
        reading: what its last fetch reads; None before. A proxy may make requests of several users on one connection.
        writing: who last published, and the stream; None before.
        wrong_credentials: why the credentials of the present request are not accepted; empty where they are.
    """

    def __init__(self, admission: Admission, limits: HttpConfig, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config, state, {"connection": self})
        self._admission = admission
        self._limits = limits
        self.conn: _RequestReader = _RequestReader(limits)
        self._headers = [(name.lower().encode(), text.encode()) for name, text in limits.answer_headers.items()]
        self._served = self.app
        self.app = self._admit
        self.user = ""
        self.since_ms = time.time_ns() // 1_000_000
        self.reading: ReaderInfo | None = None
        self.writing: WriterInfo | None = None
        self.wrong_credentials = ""
        self._phase = ""
        self._timer = Timer(self.loop)
        admission.on_late = self._late

    @property
    def gone(self) -> bool:
        """Whether nobody takes the rest of a response: the peer is gone, or got its last answer."""
        return self.cycle is not None and self.cycle.disconnected

    # --- asyncio's side

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        self._write_timeout = WriteTimeout(self.loop, transport, self._limits.write_timeout_ms, transport.abort)
        super().connection_made(transport)
        self._in_phase("first")

    def data_received(self, data: bytes) -> None:
        """Take bytes from the peer; bytes after the end, which uvicorn would log as an error, are dropped."""
        if self._phase != "end":
            if not self.transport.is_closing():
                # The server of uvicorn, which does not run here, would set the date each second.
                self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode()), *self._headers]
                if self._begins_no_request(data):
                    # h11 would wait for the end of a line, which a client of another protocol may never send.
                    logger.info("%s: bytes that are no HTTP", self.client)
                    self.send_400_response("no request of HTTP")
                else:
                    super().data_received(data)
            self._time_phase()

    def _begins_no_request(self, data: bytes) -> bool:
        if self.conn.their_state is not h11.IDLE:
            return False
        begins = self.conn.trailing_data[0][:_METHOD_BYTES] + data[:_METHOD_BYTES]
        return _NO_REQUEST.match(begins) is not None

    def on_response_complete(self) -> None:
        """Continue with the next request."""
        super().on_response_complete()
        self._time_phase()

    def pause_writing(self) -> None:
        """Start the write time-out: the peer does not read."""
        super().pause_writing()
        self._write_timeout.start()

    def resume_writing(self) -> None:
        """Stop the write time-out: the peer reads again."""
        super().resume_writing()
        self._write_timeout.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything."""
        self._admission.end()
        self._in_phase("gone")
        self._write_timeout.stop()
        super().connection_lost(exc)

    # --- admission

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that may be taken; answer 503 to the first one of a connection beyond the limit."""
        timed = self._timed(scope["method"], send)
        try:
            if not self._admission.establish():
                raise HttpError(503, f"{self._admission.limit}: try again later", CLOSE)
            check_request(scope, self._limits)
        except HttpError as refusal:
            await refusal.answer()(scope, receive, timed)
        else:
            await self._served(scope, receive, timed)

    def _timed(self, method: str, send: Send) -> Send:
        """Return a ``send`` that also counts the answer, with the time until its head."""
        begun_s = time.perf_counter()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.counters.answered(method, message["status"], time.perf_counter() - begun_s)
                if self.wrong_credentials:
                    why, self.wrong_credentials = self.wrong_credentials, ""
                    await self._admission.wrong_credentials(why)
            await send(message)

        return timed

    def belongs_to(self, user: str) -> None:
        """Note who makes the present request, whose task calls this.

        Raises:
            HttpError: 503, the user has as many connections as one may have.
        """
        if not self._admission.belongs_to(user):
            raise HttpError(503, f"{self._admission.limit}: try again later", CLOSE)
        self.user = user
        ASKER.set((user, id(self)))

    # --- what others are told

    @property
    def counters(self) -> DoorCounters:
        """What the door has done."""
        return self._admission.counters

    @property
    def established(self) -> bool:
        """Whether the peer has made a request, and is served."""
        return self._admission.established

    @property
    def address(self) -> str:
        """The peer's host and port, for people."""
        return peer_text(self.client)

    def told(self, door: str) -> Iterator[Item]:
        """Yield the connection and its uses; the peer describes itself in its header ``User-Agent``."""
        names = [value for name, value in self.headers or () if name == b"user-agent"]
        client = client_text(names[0].decode("latin-1")) if names else ""
        yield ConnectionInfo(door, self.address, self.user, client, self.since_ms)
        yield from filter(None, (self.reading, self.writing))

    # --- time

    def _time_phase(self) -> None:
        """Start the timer of the present phase, by what the peer has to do next; nothing follows the end."""
        if self._phase == "end":
            return
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            self._in_phase("body", self._limits.body_timeout_ms, self._late)
        elif state is not h11.IDLE:
            self._in_phase("response")
        elif self.conn.trailing_data[0]:
            self._in_phase("head", self._limits.handshake_timeout_ms, self._late)
        else:
            self._in_phase("idle", self._limits.idle_timeout_ms, self._idle)

    def _in_phase(self, phase: str, timeout_ms: int = 0, over: Callable[[], None] | None = None) -> None:
        if phase == self._phase:
            return
        self._phase = phase
        counted = phase == "body" and b"transfer-encoding" not in dict(self.headers)
        # Asyncio's selector transports have this attribute, and so has our transport of TLS.
        self.transport.max_size = BODY_BYTES if counted else READ_BYTES  # type: ignore[attr-defined]
        self._timer.stop()
        if over is not None:
            self._timer.start(timeout_ms / 1000, over)

    def _idle(self) -> None:
        self._unset_keepalive_if_required()
        self._end(b"")

    def _late(self) -> None:
        """Answer 408, unless a response is under way."""
        what = "body" if self.conn.their_state is h11.SEND_BODY else "head"
        logger.info("%s: the %s of a request did not come in time", self.client, what)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._end(_answer(HTTPStatus.REQUEST_TIMEOUT, f"the request's {what} did not come in time"))
        else:
            self.transport.abort()

    # --- the end

    shut_down = H11Protocol.shutdown

    def drop(self) -> None:
        """End the connection at once, and discard what the peer has not taken."""
        throw_away_unsent(self.transport)
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no request, if an answer is possible, and close: 431 for a head too long, else 400.

        Bytes that break off a request body, or follow the last request, may come while its answer is under way. h11
        then refuses a second answer; after this one it refuses the application's.
        """
        fault, possible = self.conn.head_fault, self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE)
        status = HTTPStatus.BAD_REQUEST if fault is None else HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self._end(_answer(status, fault or msg) if possible else b"")

    def _end(self, last: bytes) -> None:
        """Send ``last`` and close; a peer that does not read is dropped."""
        if self._phase == "end" or self.transport.is_closing():
            return
        self._in_phase("end", LINGER_MS, self.transport.abort)
        if self.cycle is not None:  # the application hears that its client has gone; what it still sends is dropped
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if last:
            self.transport.write(last)
        self.transport.close()


def _answer(status: HTTPStatus, text: str) -> bytes:
    body = text.encode() + b"\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
