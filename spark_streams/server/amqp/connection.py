"""Runs one connection: TLS and TCP by asyncio, then the SASL layer, then proton's engine with the links.

::

    data_received -> SaslServer -> Engine.push -> Engine.events -> link.serve -> Engine.output -> transport.write

One turn of the loop reads the bytes that have come, or a part of them if they take long, serves each link that has work
to do with a bounded share, and writes. While a link has more to do, further turns are queued behind those of other
connections. While the socket takes no more bytes (pause_writing), the connection serves no consumers and reads nothing:
it collects no output for a peer that does not read.
The engine's clock stands still meanwhile, so that a peer whose bytes are not read does not count as silent.
"""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import proton

from spark_streams.server.activity import client_text
from spark_streams.server.admission import Admission
from spark_streams.server.amqp.connection_links import ConnectionLinks, LinkResources
from spark_streams.server.amqp.engine import Engine, EngineClock
from spark_streams.server.amqp.error_conditions import CONNECTION_FORCED, FRAMING_ERROR, INTERNAL_ERROR, LinkRefused
from spark_streams.server.amqp.handshake import Handshake
from spark_streams.server.amqp.incoming_links import IncomingLinks
from spark_streams.server.amqp.link_states import LinkInput
from spark_streams.server.amqp.outgoing_frames import OutgoingFrames
from spark_streams.server.door import LINGER_S
from spark_streams.server.turns import Turn
from spark_streams.wire.amqp.engine.session import DECODE_ERROR, RESOURCE_LIMIT, Violation

logger = logging.getLogger("spark_streams.server")


class AmqpConnection(ConnectionLinks):
    """One connection of a door that speaks AMQP 1.0; a subclass answers what doors answer differently.

    Args:
        node: links are attached to it.
        admission: the connection's place among those that the door may have.
    """

    node: LinkResources

    def __init__(self, node: LinkResources, admission: Admission) -> None:
        super().__init__(node, admission)
        self._handshake: Handshake
        self._engine: Engine | None = None
        self._turn_queued = False
        self._parts: Iterator[bytes | memoryview] | None = None
        """What is left of the bytes that have come; nothing more is read from the socket meanwhile."""
        self._client: str | None = None
        self._clock = EngineClock(node.loop, lambda: self.guarded(self._turn))

    @property
    def client(self) -> str:
        """What the peer says of itself, in its open: product, version, and container-id."""
        if self._client is None and self._engine is not None:
            try:
                told = self._engine.connection.remote_properties or {}
                self._client = client_text(told.get("product"), told.get("version"), self.container)
            except (UnicodeDecodeError, AttributeError):  # a string of its own words that is none
                self._client = client_text(self.container)
        return self._client or ""

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
                self._receive(data)
        except Exception as fault:
            self._crashed(fault)

    def eof_received(self) -> bool:
        """Note that the peer sends no more."""
        self.guarded(self._read_rest)
        if self._engine is not None:
            self._engine.input_ended()
        return False

    def pause_writing(self) -> None:
        """Note that the peer does not read."""
        self.write_paused = True
        if self._transport is not None:
            self._write_timeout.start()
            self._clock.pause()
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Note that the peer reads again, and continue."""
        self.write_paused = False
        self._write_timeout.stop()
        self._clock.resume()
        self._resume_reading()
        self._unblock()
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
            self.guarded(self._take_input)
        self._release_links()
        self._forget_links()
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
            self._engine = Engine(self.config)
            self.incoming = self._read_frames()
            self.outgoing = self._write_frames(self._engine)
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

    def _read_frames(self) -> IncomingLinks:
        """Return what reads the peer's frames."""
        return IncomingLinks(self.config)

    def _write_frames(self, engine: Engine) -> OutgoingFrames:
        """Return what writes frames for the peer."""
        return OutgoingFrames(engine)

    @abc.abstractmethod
    def _answer_open(self, connection: proton.Connection) -> None:
        """Answer the peer's open."""

    # --- turns

    def _receive(self, data: bytes) -> None:
        self._read_rest()
        self._parts = self.incoming.received(data)
        self._read_on()

    def _read_rest(self) -> None:
        """Deal with all that has come, however long it takes."""
        while self._parts is not None:
            self._read_on()

    def _read_on(self) -> None:
        """Deal with what has come, or with a turn's share of it."""
        engine, parts, turn = self._engine, self._parts, Turn()
        if engine is None or parts is None:
            self._parts = None
            return
        violation: Violation | None = None
        try:
            for part in parts:
                if not part and turn.over:
                    break
                if not self._push(part):
                    self._parts = None
                    break
            else:
                self._parts = None
        except Violation as fault:
            self._parts, violation = None, fault
        self._make_arrived_due()
        self._unblock()
        self._turn()
        if violation is not None:
            self._close(violation.condition, violation.description)
            self._end_transport()
        if self._engine is not None and not self._closing and not engine.accepts_input:
            # The engine does not announce every fault itself.
            if not engine.connection.state & proton.Endpoint.REMOTE_CLOSED:
                self._close(FRAMING_ERROR, "the bytes are no AMQP 1.0 frames")
            self._end_transport()
        if self._parts is not None and self._transport is not None:
            self._transport.pause_reading()
            self._queue_turn()

    def _resume_reading(self) -> None:
        transport = self._transport
        if self._parts is None and not self.write_paused and transport is not None and not transport.is_closing():
            transport.resume_reading()

    def _push(self, part: bytes | memoryview) -> bool:
        """Give bytes to the engine; return whether it takes more."""
        engine, start = self._engine, 0
        while start < len(part) and engine is not None:
            taken = engine.push(part, start)
            self._handle_events()
            if taken <= 0:
                return False
            start += taken
        return engine is not None and engine.accepts_input

    def _queue_turn(self) -> None:
        if not self._turn_queued and self._engine is not None:
            self._turn_queued = True
            self.node.loop.call_soon(self._queued_turn)

    def _queued_turn(self) -> None:
        self._turn_queued = False
        if self._parts is None or self.write_paused:
            self.guarded(self._turn)
        else:
            self.guarded(self._read_on)
            self._resume_reading()

    def _turn(self) -> None:
        if self._engine is None:
            return
        self._serve_due()
        for session in self.incoming.sessions:
            self.outgoing.answer(session)
        if self._flush():
            self._unblock()
        if self._due:
            self._queue_turn()

    def _flush(self) -> bool:
        """Write the engine's output; return whether there was any."""
        engine, transport = self._engine, self._transport
        if engine is None or transport is None:
            return False
        wrote = False
        self._clock.tick(engine)
        while not self.write_paused:
            output = self.outgoing.output()
            if output is None:
                self._end_transport()
                return wrote
            if not output:
                break
            transport.write(output)
            wrote = True
        self._handle_events()
        return wrote

    # --- what the peer does

    def _handle_events(self) -> None:
        """Handle the events of the engine.

        Raises:
            Violation: a string of the peer's is none.
        """
        engine = self._engine
        assert engine is not None
        while True:
            control = engine.events()
            if not control:
                return
            for name, endpoint in control:
                if name.endswith(("closed", "detached")):
                    # Messages that came before the end are taken first: producers send and close at once.
                    self._take_input()
                try:
                    getattr(self, "_" + name)(endpoint)
                except UnicodeDecodeError as fault:
                    # proton finds out when the string is read.
                    logger.info("%s: %s: a string that is no UTF-8: %s", self.peer, name, fault)
                    # Nothing that follows is dealt with: the link has not become one.
                    raise Violation(DECODE_ERROR, "a string is no UTF-8") from fault

    def _connection_opened(self, connection: Any) -> None:
        self.container = str(connection.remote_container or "")
        self._answer_open(connection)

    def _establish(self) -> None:
        """Count the connection as one that is served; close it if there are as many as there may be."""
        if not self._admission.establish(self.known_as):
            self._close(RESOURCE_LIMIT, self._admission.limit)

    def _connection_closed(self, connection: Any) -> None:
        self._release_links()
        connection.close()

    def _session_opened(self, session: Any) -> None:
        begun = self.incoming.begun
        assert begun is not None
        session.incoming_capacity = self.config.session_bytes
        self.outgoing.begin(begun, session)

    def _session_closed(self, session: Any) -> None:
        self._session_ends(session)
        session.close()
        session.free()

    def _link_opened(self, link: Any) -> None:
        self._receive_attach(link)
        self.node.attach(self, link)

    def _link_closed(self, link: Any) -> None:
        self._peer_ends(link, LinkInput.PEER_CLOSES)

    def _link_detached(self, link: Any) -> None:
        self._peer_ends(link, LinkInput.PEER_DETACHES)

    # --- the end

    def shut_down(self) -> None:
        """Close gracefully, because the server stops."""
        self._close(CONNECTION_FORCED, "the server stops")
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

    def _close(self, name: str, description: str) -> None:
        engine = self._engine
        if engine is None:
            return
        self._release_links()
        if not engine.connection.state & proton.Endpoint.LOCAL_CLOSED:
            engine.connection.condition = LinkRefused(name, description).condition
            engine.connection.close()
        self._flush()
        self._linger()

    def _crashed(self, fault: Exception) -> None:
        logger.error("%s: the connection is closed after an unexpected error", self.peer, exc_info=fault)
        try:
            self._close(INTERNAL_ERROR, "an unexpected error in the server, see its log")
        except Exception:
            logger.exception("%s: closing it in good order failed too", self.peer)
            self.drop()
        self._end_transport()
