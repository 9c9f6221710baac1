"""One HTTP connection: uvicorn's, without what a peer could make it stumble over.

One HTTP connection with the limits of time and number that uvicorn does not have.

::

    accepted -> head -> body -> response -> idle -> head -> …
                408     408     dropped     closed  408       when it takes too long

The first head is what introduces a peer (``Admission``), and has the time since the socket was accepted; a later one
has its time from its first byte on. A body has its time from the end of its head. A response has as long as it needs
while the peer takes what it is sent.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import h11
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from spark_streams.server.admission import Admission
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.write_timeout import WriteTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HttpConnection", "TimedConnection"]


class HttpConnection(H11Protocol):
    """A connection whose peer may send what it likes, at any time."""

    def data_received(self, data: bytes) -> None:
        """Take bytes; those that come after the end, which uvicorn would complain of in its log, are dropped."""
        if not self.transport.is_closing():
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP, if there is room for an answer, and close.

        Bytes that break off a request body, or follow the last request, come when its answer may be under way: h11 then
        refuses a second one, and refuses the application's after this one.
        """
        answered = self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE)
        if self.cycle is not None and not self.cycle.response_complete:
            # The application is told that its client has gone, and what it sends is dropped.
            answered = answered or self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if answered:
            self.transport.close()
        else:
            super().send_400_response(msg)


LINGER_S: Final = 2.0
"""How long a peer may take to read what it is told at the end."""
CLOSE: Final = {"Connection": "close"}

logger = logging.getLogger("spark_streams.server")


class TimedConnection(HttpConnection):
    """A peer.

    Args:
        admission: its place at the door.
        limits: the door's settings.
        options: what uvicorn gives its connections.
    """

    def __init__(self, admission: Admission, limits: FeedConfig, **options: Any) -> None:
        super().__init__(**options)
        self._admission = admission
        self._limits = limits
        self._served = self.app
        self.app = self._admit
        self._taking: WriteTimeout | None = None
        self._phase = ""
        self._timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        admission.on_late = self._late

    # --- asyncio's side

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._taking = WriteTimeout(self.loop, transport, self._limits.write_timeout_ms, self._stuck)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the peer."""
        if self._end_timer is None:
            super().data_received(data)
            self._time_phase()

    def on_response_complete(self) -> None:
        """Go on to the next request."""
        super().on_response_complete()
        self._time_phase()

    def pause_writing(self) -> None:
        """Note that the peer does not read."""
        super().pause_writing()
        if self._taking is not None:
            self._taking.paused()

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        if self._taking is not None:
            self._taking.resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything."""
        self._admission.end()
        self._in_phase("gone")
        if self._taking is not None:
            self._taking.stop()
        if self._end_timer is not None:
            self._end_timer.cancel()
        super().connection_lost(exc)

    # --- who is let in

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; the first one of a connection that is one too many is answered 503."""
        if self._admission.establish():
            await self._served(scope, receive, send)
            return
        text = f"this door serves {self._limits.max_connections} connections, and has as many: try again later\n"
        await PlainTextResponse(text, 503, CLOSE)(scope, receive, send)

    # --- time

    def _time_phase(self) -> None:
        """Start the time of what the peer is expected to do now."""
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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if over is not None:
            self._timer = self.loop.call_later(timeout_ms / 1000, over)

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

    def _stuck(self) -> None:
        logger.info("%s: dropped, it took nothing for %d ms", self.client, self._limits.write_timeout_ms)
        self.transport.abort()

    # --- the end

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request: 431 for a head that is too long, else 400."""
        most = self._limits.max_head_bytes
        if self.conn.our_state is h11.IDLE and len(self.conn.trailing_data[0]) > most:
            text = f"the request's head has more than {most} bytes"
            self._end(_answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text))
        else:
            super().send_400_response(msg)

    def _end(self, last: bytes) -> None:
        """Close once ``last`` has gone out; a peer that does not read is dropped."""
        if self._end_timer is not None or self.transport.is_closing():
            return
        self._in_phase("end")
        self._end_timer = self.loop.call_later(LINGER_S, self.transport.abort)
        if self.cycle is not None:
            self.cycle.disconnected = True  # whoever answers a request meanwhile answers nobody
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
