"""Runs one connection of a RabbitMQ stream client: reads frames, passes each to its handler, and writes the answers.

::

    data_received -> FrameReader -> Handshake                       until it is open
                                 -> dispatch.handle                 then: publishers, subscriptions, stream requests
                 -> Publishers.received_all                         appends together what one read brought

The connection handles frames one after the other, and sends all answers to a frame before it handles the next one. It
handles no frame, and reads nothing from the socket, while the peer does not read, while more than ``max_unconfirmed``
of the peer's entries are being stored, while work on a frame is under way, and while other connections have their turn
(``turns.py``). It still handles frames that came before the connection was lost.

Spec: Streams Protocol Reference, "Frame Structure", Close, Heartbeat; docs/specifications.md,
S-11 to S-14, S-24, S-27, S-106.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from typing import Final

from spark_streams.errors import RemoteProtocolError
from spark_streams.redaction import one_line
from spark_streams.server.activity import Item, ReaderInfo, Who, WriterInfo
from spark_streams.server.admission import Admission
from spark_streams.server.counters import logger
from spark_streams.server.door import LINGER_S
from spark_streams.server.rabbitmq import dispatch
from spark_streams.server.rabbitmq.handshake import Handshake, Reply
from spark_streams.server.rabbitmq.node import RabbitNode
from spark_streams.server.rabbitmq.publishers import Publishers
from spark_streams.server.rabbitmq.session import ScatteredWriter, Session
from spark_streams.server.rabbitmq.stream_requests import Work
from spark_streams.server.rabbitmq.subscriptions import Subscriptions
from spark_streams.server.turns import Turn
from spark_streams.wire.rabbitmq.connection_commands import (
    COLUMNAR_KEYS,
    Close,
    CloseAnswer,
    HandshakeState,
    Heartbeat,
    SaslAuthenticate,
    decode,
)
from spark_streams.wire.rabbitmq.consumer_commands import Credit, StoreOffset
from spark_streams.wire.rabbitmq.frames import (
    INITIAL_FRAME_MAX_BYTES,
    Command,
    Frame,
    FrameReader,
    FrameTooLarge,
    ResponseCode,
    code_name,
)
from spark_streams.wire.rabbitmq.publish_decode import PUBLISH_KEY
from spark_streams.wire.rabbitmq.stream_commands import MetadataUpdate

LARGE_FRAME_BYTES: Final = 16 << 10
"""A larger frame may hold thousands of names, and takes more than a millisecond to read."""
_HEARTBEAT: Final = Heartbeat().encode()
_BETWEEN_MESSAGES: Final = (Heartbeat, Credit, StoreOffset)
"""Commands that clients send while they publish; published entries before them wait for the rest of the read."""


class RabbitConnection(Session):
    """The connection of one peer.

    Args:
        node: the node that it is connected to.
        admission: its place at the door.
    """

    def __init__(self, node: RabbitNode, admission: Admission) -> None:
        super().__init__(node, admission)
        self.publishers = Publishers(self)
        self.subscriptions = Subscriptions(self)
        self._handshake: Handshake
        self._reader = FrameReader(INITIAL_FRAME_MAX_BYTES)
        self._work: asyncio.Task[None] | None = None
        self._open = False
        self._ending = False
        self._left = False
        self._proceeding = False
        self._postponed = False
        self._reading = True
        self._waiting_bytes = 0

    def _uses(self, who: Who) -> Iterator[Item]:
        for publisher in list(self.publishers.open.values()):
            served = publisher.served
            yield WriterInfo(*who, served.stream.name, served.partition.id, publisher.reference)
        for each in list(self.subscriptions.open.values()):
            at = (each.served.stream.name, each.served.partition.id, each.next_offset)
            yield ReaderInfo(*who, *at, each.name, each.name or None)

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the peer to introduce itself."""
        super().connection_made(transport)
        assert self._transport is not None
        self._scattered = ScatteredWriter(self._transport)
        certificate = transport.get_extra_info("peercert")
        self._handshake = Handshake(self.node.config, self.peer_host, certificate, self.advertised)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the peer."""
        self._heartbeat.received()
        if self._transport is not None:
            self._reader.feed(data)
            self.proceed()

    def pause_writing(self) -> None:
        """Note that the peer does not read."""
        self.congested = True
        self._write_timeout.start()
        self._regulate()

    def resume_writing(self) -> None:
        """Note that the peer reads again, and continue."""
        self.congested = False
        self._write_timeout.stop()
        self.guarded(self.subscriptions.deliver)
        self.proceed()

    def connection_lost(self, exc: Exception | None) -> None:
        """Send nothing any more; handle the frames that have come, and then release everything."""
        self._transport = None
        if self._scattered is not None:
            self._scattered.close()
        self._write_timeout.stop()
        self._heartbeat.stop()
        self._end_timer.stop()
        self._logging_errors(self.subscriptions.close)
        self.proceed()

    def _leave(self) -> None:
        """Release everything: the connection is lost, and the frames that came before are handled."""
        if not self._left:
            self._left = True
            self._release()
            self._admission.end()
            self.node.connections.discard(self)

    def _release(self) -> None:
        """Give up the work on a frame, and close publishers and subscriptions; an error in one keeps no other open."""
        self._ending = True  # frames after one that could not be read are dropped
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
        self._logging_errors(self.publishers.close)
        self._logging_errors(self.subscriptions.close)

    def _logging_errors(self, end: Callable[[], None]) -> None:
        try:
            end()
        except Exception:
            logger.exception("%s: could not be ended in good order", self.peer)

    # --- frames

    def proceed(self) -> None:
        """Handle the frames that have come, as far as that is allowed now."""
        if self._proceeding:
            return
        self._proceeding = self._gathering = True
        turn = Turn()
        try:
            while self._may_proceed and (frame := self._reader.next()) is not None:
                self._take(frame)
                if turn.over:
                    self._postponed = True
                    self.node.loop.call_soon(self._resume)
                    break
            self.publishers.received_all()
        except Exception as fault:
            self._frame_failed(fault)
        finally:
            self._proceeding = self._gathering = False
            self._send_gathered()
        self._regulate()
        if self._transport is None and not (self._postponed or self._work is not None or self.unconfirmed.too_many):
            self._leave()

    def _resume(self) -> None:
        self._postponed = False
        self.proceed()

    def _worked(self, work: asyncio.Task[None]) -> None:
        """Continue after the work on a frame has ended."""
        fault = None if work.cancelled() else work.exception()
        if self._work is not work:
            return  # given up: nobody needs the error of a cancelled task
        self._work = None
        assert fault is None or isinstance(fault, Exception)
        if fault is not None:
            self._frame_failed(fault)
        self.proceed()

    @property
    def _may_proceed(self) -> bool:
        if self._postponed or self._work is not None:
            return False
        if self._transport is None:
            return self._open and not (self._ending or self.unconfirmed.too_many)
        # When the connection ends, frames are read only because the answer to Close may be among them.
        return self._ending or not (self.congested or self.unconfirmed.too_many or self.subscriptions.blocked)

    def _take(self, frame: Frame) -> None:
        if self._ending:
            if frame.key == CloseAnswer.KEY:
                self._close_transport()
        elif not self._open:
            self._shake_hands(decode(frame))
        elif frame.key == PUBLISH_KEY:
            if frame.version > (2 if self.node.config.filtering else 1):
                raise RemoteProtocolError(f"Publish, version {frame.version}")
            self._begin(self.publishers.publish(frame, self._reader.next_like))
        elif frame.key in COLUMNAR_KEYS or frame.key in self.node.config.without:
            raise RemoteProtocolError(f"key 0x{frame.key:04x} from a client")
        elif frame.size > LARGE_FRAME_BYTES:
            self._handle_in_order(lambda: dispatch.handle_large(self, frame))
        else:
            command = decode(frame)
            if isinstance(command, _BETWEEN_MESSAGES):
                self._begin(dispatch.handle(self, command))
            elif isinstance(command, Close):
                self.publishers.received_all()
                self._begin(dispatch.handle(self, command))
            else:
                self._handle_in_order(lambda: dispatch.handle(self, command))

    def _handle_in_order(self, handle: Callable[[], Work | None]) -> None:
        """Handle a frame when all entries published before it are in the log, because it may query them."""
        self.publishers.received_all()
        self._begin(self._when_stored(handle) if self.unconfirmed else handle())

    async def _when_stored(self, handle: Callable[[], Work | None]) -> None:
        await self.unconfirmed.none_left()
        work = handle()
        if work is not None:
            await work

    def _begin(self, work: Work | None) -> None:
        """Begin work on a frame that takes longer than a turn or waits for the disk; the next frame waits for it."""
        if work is not None:
            self._work = self.node.loop.create_task(work)
            self._work.add_done_callback(self._worked)

    def _regulate(self) -> None:
        """Read from the socket while frames may be handled."""
        if self._transport is None or self._transport.is_closing():
            return
        wanted = self._may_proceed
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._heartbeat.received()
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # --- opening

    def _shake_hands(self, command: Command) -> None:
        self._reply(self._handshake.receive(command))
        if self._handshake.state is not HandshakeState.OPEN:
            return
        self._open = True
        self.user, self.client = self._handshake.user, self._handshake.client
        self._reader.max_bytes = self._handshake.frame_max_bytes
        if not self._admission.establish(self.user):
            self.fail(ResponseCode.INTERNAL_ERROR, self._admission.limit)
            return
        self._heartbeat.start(self._handshake.heartbeat_s, self._beat, self._silent)

    def _reply(self, reply: Reply) -> None:
        """Send the answer to a step of the handshake; that to refused credentials is delayed."""
        frames = b"".join(command.encode() for command in reply.send)
        if not reply.end:
            self.send(frames)
            return
        why = ", ".join(map(_code_of, reply.send)) or "not expected at this step"
        self._release()
        if reply.failed:
            told = self._admission.wrong_credentials(why)
            told.add_done_callback(lambda _: self._send_and_close(frames))
        else:
            logger.info("%s: refused: %s", self.peer, why)
            self._send_and_close(frames)

    def _send_and_close(self, frames: bytes) -> None:
        self.send(frames)
        self._close_transport()

    def authenticate_again(self, request: SaslAuthenticate) -> None:
        """Answer an authentication on an open connection; a refusal ends it."""
        self._reply(self._handshake.again(request))

    def streams_gone(self, streams: Collection[str]) -> None:
        """Close publishers and subscriptions of gone streams, and report the streams to the peer."""
        used = self.publishers.drop(streams) | self.subscriptions.drop(streams)
        for stream in sorted(used):
            self.send(MetadataUpdate(ResponseCode.STREAM_NOT_AVAILABLE, stream).encode())

    # --- heartbeats

    def _beat(self) -> None:
        if not self.congested:
            self.send(_HEARTBEAT)

    def _silent(self) -> None:
        """Drop a peer from which no bytes came, unless the door did not read from it."""
        if not self._reading:
            waiting, self._waiting_bytes = self._waiting_bytes, self.outgoing_bytes
            if not self.congested or waiting != self._waiting_bytes:
                self._heartbeat.received()  # the peer reads, or the door does not read from it
                return
        logger.info("%s: dropped, no sign of life", self.peer)
        self.drop()

    # --- the end

    def closed_by_peer(self, request: Close) -> None:
        """Answer a Close, and close."""
        if request.code != ResponseCode.OK:
            reason = one_line(request.reason)
            logger.info("%s: closed by the peer: %s %s", self.peer, code_name(request.code), reason)
        self._release()
        self.answer(request)
        self._close_transport()

    def fail(self, code: int, reason: str) -> None:
        """End the connection: Close with a code and a reason, and the socket once the peer has answered."""
        if self._transport is None:
            self._leave()
        if self._ending or self._transport is None:
            return
        if not self._open:
            self.drop()  # a peer that is not authenticated gets no reason
            return
        self._release()
        self.send(Close(code, reason, correlation_id=self.correlation()).encode())
        self._end_timer.start(LINGER_S, self.drop)
        self._regulate()

    def shut_down(self) -> None:
        """Close gracefully, because the server stops."""
        self.fail(ResponseCode.OK, "the server stops")

    def drop(self) -> None:
        """Close the socket without waiting for the peer."""
        self._ending = True
        if self._transport is not None:
            self._transport.abort()
        else:
            self._leave()

    def _close_transport(self) -> None:
        """Close the socket when all written bytes are sent; drop a peer that does not read."""
        self._send_gathered()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._end_timer.start(LINGER_S, self.drop)

    def _frame_failed(self, fault: Exception) -> None:
        """End the connection after an error in handling a frame."""
        if not isinstance(fault, RemoteProtocolError):
            self._crashed(fault)
            return
        too_large = isinstance(fault, FrameTooLarge)
        code = ResponseCode.FRAME_TOO_LARGE if too_large else ResponseCode.UNKNOWN_FRAME
        reason = "frame too large" if too_large else "unknown frame"
        logger.info("%s: %s: %s", self.peer, reason, fault)
        if self._ending:
            self.drop()
        else:
            self.fail(code, reason)

    def _crashed(self, fault: Exception) -> None:
        logger.error("%s: the connection is closed after an unexpected error", self.peer, exc_info=fault)
        self.fail(ResponseCode.INTERNAL_ERROR, "an unexpected error in the server, see its log")


def _code_of(command: Command) -> str:
    return f"{type(command).__name__} {code_name(getattr(command, 'code', 0))}"
