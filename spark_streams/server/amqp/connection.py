"""Runs one connection: TLS and TCP by asyncio, then the SASL layer, then an engine with the links.

::

    data_received -> SaslServer -> Engine.received -> endpoints, links that are due -> Engine.written -> transport.write

One turn of the loop reads the bytes that have come, or a part of them if they take long, serves each link that has work
to do with a bounded share, and writes. While a link has more to do, further turns are queued behind those of other
connections. While the socket takes no more bytes (pause_writing), the connection serves no consumers and reads nothing:
it collects no output for a peer that does not read.
The engine's clock stands still meanwhile, so that a peer whose bytes are not read does not count as silent.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

from spark_streams.errors import RemoteProtocolError
from spark_streams.server.activity import Item, Who, client_text
from spark_streams.server.admission import Admission
from spark_streams.server.amqp.connection_links import ConnectionLinks, LinkConnection, LinkResources
from spark_streams.server.amqp.error_conditions import CONNECTION_FORCED, INTERNAL_ERROR
from spark_streams.server.amqp.handshake import Handshake
from spark_streams.server.amqp.link_turns import IdleClock, LinkTurns
from spark_streams.server.counters import logger
from spark_streams.server.door import LINGER_S
from spark_streams.server.turns import Turn
from spark_streams.wire.amqp.engine.endpoints import Condition, Endpoint, Half
from spark_streams.wire.amqp.engine.engine import Engine, Options
from spark_streams.wire.amqp.engine.links import Link, Session
from spark_streams.wire.amqp.engine.session import RESOURCE_LIMIT, Violation

WRITE_BUFFER_BYTES: Final = 256 << 10


class AmqpConnection(LinkConnection):
    """One connection of a door that speaks AMQP 1.0; a subclass answers what doors answer differently.

    Args:
        node: links are attached to it.
        admission: the connection's place among those that the door may have.

    Attributes:
        config: the door's settings.
        links: its links.
        turns: whose turn it is.
        container: the peer's container-id, once it has opened the connection.
    """

    def __init__(self, node: LinkResources, admission: Admission) -> None:
        super().__init__(node, admission, WRITE_BUFFER_BYTES)
        self.config = node.config
        self.turns = LinkTurns(self._queue_turn, node.config.session_bytes)
        self.links = ConnectionLinks(self)
        self.container = ""
        self._handshake: Handshake
        self._engine: Engine | None = None
        self._closing = False
        self._turn_queued = False
        self._parts: Iterator[Endpoint | None] | None = None
        """The received bytes that are not processed yet; nothing more is read from the socket meanwhile."""
        self._clock = IdleClock(node.loop, lambda: self.guarded(self._turn))

    def _uses(self, who: Who) -> Iterator[Item]:
        for link in self.links.served:
            if link.stream and not link.ended:
                yield from link.told(who)

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with the SASL layer; asyncio calls it."""
        super().connection_made(transport)
        self._handshake = self._shake_hands(transport.get_extra_info("peercert"))

    def data_received(self, data: bytes) -> None:
        """Take bytes from the peer."""
        if self._closing and self._engine is None:
            return
        try:
            if self._engine is None:
                data = self._authenticate(data)
            if data and self._engine is not None:
                self._read_rest()
                self._parts = self._engine.received(data)
                self._read_on()
        except Exception as fault:
            self._crashed(fault)

    def eof_received(self) -> bool:
        """Note that the peer sends no more."""
        self.guarded(self._read_rest)
        return False

    def pause_writing(self) -> None:
        """Note that the peer does not read."""
        self.turns.paused = True
        if self._transport is not None:
            self._write_timeout.start()
            self._clock.pause()
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Note that the peer reads again, and continue."""
        self.turns.paused = False
        self._write_timeout.stop()
        self._clock.resume()
        self._resume_reading()
        self.turns.unblock()
        self._queue_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what the connection and its links hold."""
        self._closing = True
        self.node.connections.discard(self)
        self._admission.end()
        self._write_timeout.stop()
        self._clock.stop()
        self._end_timer.stop()
        if self._engine is not None:
            self.guarded(self._read_rest)
            # Guarded: a fault in one link must not keep the others from giving back what they hold.
            self.guarded(self.links.take_input)
        self.links.release()
        self.links.clear()
        self._transport = None
        self._engine = None

    # --- SASL

    def _authenticate(self, data: bytes) -> bytes:
        """Give bytes to the SASL layer; return the bytes that follow it."""
        assert self._transport is not None
        answer = self._handshake.receive(data)
        if answer.refused is not None:
            self._closing = True
            if answer.failed:
                told = self._admission.wrong_credentials(answer.refused)
                told.add_done_callback(lambda _: self._end_handshake(answer.send))
            else:
                logger.info("%s: %s", self.peer, answer.refused)
                self._end_handshake(answer.send)
            return b""
        self._transport.write(answer.send)
        if answer.leftover is not None:
            self.user = self._handshake.user
            self._engine = Engine(self._options())
            return answer.leftover
        return b""

    def _end_handshake(self, last: bytes) -> None:
        if self._transport is not None:
            self._transport.write(last)
            self._transport.close()

    # --- what may differ between doors

    @abc.abstractmethod
    def _shake_hands(self, certificate: Mapping[str, Any] | None) -> Handshake:
        """Return the SASL layer."""

    def _options(self) -> Options:
        """Return the connection's own settings, once SASL has ended."""
        config = self.config
        return Options(
            self.node.container,
            config.max_frame_bytes,
            config.session_bytes,
            max_sessions=config.max_sessions,
            idle_ms=config.idle_timeout_ms,
            serves=True,
            max_message_bytes=config.max_message_bytes,
        )

    def _opened(self) -> None:
        """Count the connection, which the peer has opened, as one that is served, or wait until it has signed in."""
        self._establish()

    # --- turns

    def _read_rest(self) -> None:
        """Process all received bytes, however long it takes."""
        while self._parts is not None:
            self._read_on()

    def _read_on(self) -> None:
        """Process the received bytes, or a turn's share of them."""
        engine, parts, turn = self._engine, self._parts, Turn()
        if engine is None or parts is None:
            self._parts = None
            return
        violation: Violation | None = None
        try:
            for changed in parts:
                if changed is not None:
                    self._changed(changed)
                elif turn.over:
                    break
            else:
                self._parts = None
        except Violation as fault:
            self._parts, violation = None, fault
        for deliveries in engine.incoming.arrived:
            if deliveries.owner is not None:
                self.turns.make_due(deliveries.owner)
        engine.incoming.arrived.clear()
        self.turns.unblock()
        self._turn()
        if violation is not None:
            self._end(violation)
        if self._parts is not None and self._transport is not None:
            self._transport.pause_reading()
            self._queue_turn()

    def _resume_reading(self) -> None:
        transport = self._transport
        if self._parts is None and not self.turns.paused and transport is not None and not transport.is_closing():
            transport.resume_reading()

    def _queue_turn(self) -> None:
        if not self._turn_queued and self._engine is not None:
            self._turn_queued = True
            self.node.loop.call_soon(self._queued_turn)

    def _queued_turn(self) -> None:
        self._turn_queued = False
        if self._parts is None or self.turns.paused:
            self.guarded(self._turn)
        else:
            self.guarded(self._read_on)
            self._resume_reading()

    def _turn(self) -> None:
        if self._engine is None:
            return
        self.turns.serve()
        if self._flush():
            self.turns.unblock()
        if self.turns.due:
            self._queue_turn()

    def _flush(self) -> bool:
        """Write the bytes that are due; return whether there were any."""
        engine, wrote = self._engine, self._write()
        if engine is not None:
            try:
                self._clock.tick(engine)
            except Violation as silence:
                self._end(silence)
        return self._write() or wrote

    def _write(self) -> bool:
        engine, transport, wrote = self._engine, self._transport, False
        if engine is None or transport is None:
            return False
        while not self.turns.paused and (written := engine.written()):
            transport.write(written)
            wrote = True
        if not engine.pending and engine.connection.ours is Half.CLOSED:
            self._end_transport()
        return wrote

    # --- what the peer does

    def _changed(self, changed: Endpoint) -> None:
        """Answer the endpoints that the peer has opened or closed."""
        if changed.ended:
            self.links.take_input()  # messages that came before the end are taken first: producers send and close
        if isinstance(changed, Link):
            if changed.ended:
                self.links.peer_ends(changed)
            else:
                self.node.attach(self, changed)
        elif isinstance(changed, Session):
            if changed.ended:
                self.links.session_ends(changed)
                changed.end()
        elif self._engine is not None and changed.ended:
            self.links.release()
            self._engine.close()
        elif self._engine is not None:
            self.container = self._engine.container
            try:
                told = self._engine.properties
            except RemoteProtocolError:
                told = {}  # it says nothing that can be read
            self.client = client_text(told.get("product"), told.get("version"), self.container)
            self._engine.open()
            self._opened()

    def _establish(self) -> None:
        """Count the connection as one that is served; close it if there are too many."""
        if not self._admission.establish(self.known_as):
            self.close(RESOURCE_LIMIT, self._admission.limit)

    # --- the end

    def shut_down(self) -> None:
        """Close gracefully, because the server stops."""
        self.close(CONNECTION_FORCED, "the server stops")
        self._end_transport()

    def _end(self, violation: Violation) -> None:
        """Close the connection of a peer that broke a rule."""
        self.close(violation.condition, violation.description)
        self._end_transport()

    def _end_transport(self) -> None:
        """Close the socket once all written bytes are sent; drop a peer that does not read."""
        if self._transport is not None:
            self._closing = True
            self._transport.close()
            self._linger()

    def _linger(self) -> None:
        if not self._end_timer.due and self._transport is not None:
            self._end_timer.start(LINGER_S, self.drop)

    def drop(self) -> None:
        """Close the socket without waiting for the peer."""
        if self._transport is not None:
            self._transport.abort()

    def close(self, name: str, description: str) -> None:
        """Close the connection with an error."""
        if self._engine is None:
            return
        self.links.release()
        self._engine.close(Condition(name, description))
        self._flush()
        self._linger()

    def _crashed(self, fault: Exception) -> None:
        logger.error("%s: the connection is closed after an unexpected error", self.peer, exc_info=fault)
        try:
            self.close(INTERNAL_ERROR, "an unexpected error in the server, see its log")
        except Exception:
            logger.exception("%s: closing it in good order failed too", self.peer)
            self.drop()
        self._end_transport()
