"""Drives proton's engine without I/O: takes bytes, gives bytes, and lists the events between them.

Events are read from the collector in C types, and those about connections, sessions and attaches become Python objects.
There are none about deliveries: transfers, flows and dispositions go past the engine (ADR 37, ADR 43).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import proton
from cproton_ffi import ffi, lib

from spark_streams.server.amqp.config import LinkConfig
from spark_streams.server.turns import Timer

_OUTPUT_BYTES: Final = 256 << 10

_CONTROL: Final = {
    lib.PN_CONNECTION_REMOTE_OPEN: "connection_opened",
    lib.PN_CONNECTION_REMOTE_CLOSE: "connection_closed",
    lib.PN_SESSION_REMOTE_OPEN: "session_opened",
    lib.PN_SESSION_REMOTE_CLOSE: "session_closed",
    lib.PN_LINK_REMOTE_OPEN: "link_opened",
    lib.PN_LINK_REMOTE_CLOSE: "link_closed",
    lib.PN_LINK_REMOTE_DETACH: "link_detached",
}


def address(pointer: Any) -> int:
    """Return the number that identifies a C object while it lives."""
    return int(ffi.cast("uintptr_t", pointer))


class Engine:
    """One connection's engine, the server's side.

    Args:
        config: ``max_frame_bytes`` and ``max_sessions`` (channel-max) are announced in open and enforced by proton,
            ``idle_timeout_ms`` is announced in open and enforced by ``tick``; 0 for none.
    """

    def __init__(self, config: LinkConfig) -> None:
        self.transport = proton.Transport(proton.Transport.SERVER)
        self.transport.max_frame_size = config.max_frame_bytes
        self.transport.channel_max = config.max_sessions - 1
        if config.idle_timeout_ms:
            self.transport.idle_timeout = config.idle_timeout_ms / 1000
        self.connection = proton.Connection()
        self._collector = proton.Collector()
        self.connection.collect(self._collector)
        self.transport.bind(self.connection)
        self._transport = self.transport._impl
        self._events = self._collector._impl

    def push(self, received: bytes | bytearray | memoryview, start: int) -> int:
        """Give bytes from the peer to the engine.

        Args:
            received: the bytes.
            start: index of the first byte that the engine has not taken yet.

        Returns:
            How many bytes it took; -1 when it takes no more at all.
        """
        return int(lib.pn_transport_push(self._transport, ffi.from_buffer(received) + start, len(received) - start))

    def output(self) -> bytes | None:
        """Take bytes for the peer out of the engine.

        Returns:
            Bytes; empty when nothing is pending now, None when nothing ever will be.
        """
        pending = lib.pn_transport_pending(self._transport)
        if pending < 0:
            return None
        if pending == 0:
            return b""
        taken = bytearray(min(pending, _OUTPUT_BYTES))  # none is kept: most connections say nothing at a time
        count = lib.pn_transport_peek(self._transport, ffi.from_buffer(taken), len(taken))
        if count <= 0:
            return b""
        lib.pn_transport_pop(self._transport, count)
        return bytes(taken[:count])

    def input_ended(self) -> None:
        """Tell the engine that the peer sends no more."""
        self.transport.close_tail()

    @property
    def accepts_input(self) -> bool:
        """Whether the engine still takes bytes from the peer."""
        return bool(lib.pn_transport_capacity(self._transport) >= 0)

    @property
    def writes(self) -> bool:
        """Whether frames may be written: the connection is not closed on this side, and no fault was found."""
        closed = lib.pn_connection_state(self.connection._impl) & lib.PN_LOCAL_CLOSED
        return not closed and not lib.pn_condition_is_set(lib.pn_transport_condition(self._transport))

    def tick(self, now_s: float) -> float:
        """Advance the time; return when to call again, in seconds of the same clock, or 0 for never."""
        return float(self.transport.tick(now_s))

    def events(self) -> list[tuple[str, Any]]:
        """Return the events since the last call as (name, ``proton`` endpoint), in their order."""
        control: list[tuple[str, Any]] = []
        events, peek, pop, type_of = self._events, lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
        event = peek(events)
        while event:
            kind = type_of(event)
            if kind in _CONTROL:
                name = _CONTROL[kind]
                if name.startswith("link"):
                    control.append((name, proton.Link.wrap(lib.pn_event_link(event))))
                elif name.startswith("session"):
                    control.append((name, proton.Session.wrap(lib.pn_event_session(event))))
                else:
                    control.append((name, self.connection))
            pop(events)
            event = peek(events)
        return control


class EngineClock:
    """The loop's time without the pauses in reading: a peer whose bytes are not read does not count as silent.

    Args:
        loop: the server's.
        due: called on the loop at the engine's next deadline.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, due: Callable[[], None]) -> None:
        self._loop = loop
        self._due = due
        self._timer = Timer(loop)
        self._deadline = 0.0
        self._paused_at: float | None = None
        self._paused_s = 0.0

    def pause(self) -> None:
        """Stop the clock."""
        self._paused_at = self._loop.time()

    def resume(self) -> None:
        """Let the clock run again."""
        if self._paused_at is not None:
            self._paused_s += self._loop.time() - self._paused_at
            self._paused_at = None

    def tick(self, engine: Engine) -> None:
        """Advance the engine's time, and schedule ``due`` at the engine's next deadline."""
        now = self._loop.time() if self._paused_at is None else self._paused_at
        deadline = engine.tick(now - self._paused_s)
        if not deadline or self._paused_at is not None:
            return
        deadline += self._paused_s
        if not self._timer.due or deadline < self._deadline:
            self._deadline = deadline
            self._timer.start(deadline - self._loop.time(), self._due)

    def stop(self) -> None:
        """Cancel the call of ``due``."""
        self._timer.stop()
