"""One connection of a RabbitMQ stream client: bytes in, frames in turn to those who deal with them, bytes out.

::

    data_received -> FrameReader -> Handshake                       until it is open
                                 -> requests.handle                 then: publishers, subscriptions, streams …
                 -> Publishers.received_all                         what one read brought is appended together

Frames are dealt with one after the other, and all that a frame lets go out is sent before the next one is looked at.
No frame is looked at, and nothing is read from the socket, while the peer does not read what it is sent, while more
than ``max_unconfirmed`` of its entries are being stored, while a frame is worked on beside the loop
(``frame_queue.py``), and while other connections have their turn (``turns.py``). What came before a connection was lost
is dealt with all the same.

Spec: Streams Protocol Reference, "Frame Structure", Close, Heartbeat; docs/specifications.md,
S-11 to S-14, S-24, S-27, S-106.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from spark_streams.errors import RemoteProtocolError
from spark_streams.redaction import one_line
from spark_streams.server.admission import Admission
from spark_streams.server.permissions import permissions_of
from spark_streams.server.rabbitmq import dispatch
from spark_streams.server.rabbitmq.frame_queue import FrameQueue
from spark_streams.server.rabbitmq.handshake import Handshake, Reply
from spark_streams.server.rabbitmq.heartbeat import HeartbeatTimer
from spark_streams.server.rabbitmq.publishers import Publishers
from spark_streams.server.rabbitmq.scatter_write import ScatteredWriter
from spark_streams.server.rabbitmq.subscriptions import Subscriptions
from spark_streams.server.turns import Turn
from spark_streams.server.write_timeout import WriteTimeout
from spark_streams.wire.rabbitmq.connection_commands import Close, CloseAnswer, Heartbeat
from spark_streams.wire.rabbitmq.consumer_commands import DELIVER_KEY, Credit, StoreOffset
from spark_streams.wire.rabbitmq.frames import (
    INITIAL_FRAME_MAX_BYTES,
    Answer,
    Command,
    Frame,
    FrameReader,
    FrameTooLarge,
    Request,
)
from spark_streams.wire.rabbitmq.handshake_states import HandshakeState
from spark_streams.wire.rabbitmq.publisher_commands import PUBLISH_KEY
from spark_streams.wire.rabbitmq.registry import COLUMNAR_KEYS, decode
from spark_streams.wire.rabbitmq.response_codes import ResponseCode, code_name
from spark_streams.wire.rabbitmq.stream_commands import MetadataUpdate

if TYPE_CHECKING:
    from spark_streams.server.rabbitmq.node import RabbitNode

__all__ = ["RabbitConnection"]

LINGER_S: Final = 2.0
"""How long a peer may take to answer Close, and to read what it is told at the end."""
LARGE_FRAME_BYTES: Final = 16 << 10
"""What is larger may hold thousands of names, and takes more than a millisecond to read."""
UNCONFIRMED_BYTES: Final = 16 << 20
"""Of messages that are being stored before no more frames are looked at."""
_GO_ON_AT: Final = 0.75
_HEARTBEAT: Final = Heartbeat().encode()
_BETWEEN_MESSAGES: Final = (Heartbeat, Credit, StoreOffset)
"""Commands that clients send while they publish; what they published before waits for the rest of the read."""

logger = logging.getLogger("spark_streams.server")


class RabbitConnection(asyncio.Protocol):
    """A peer.

    Args:
        node: what it is connected to.
        admission: its place at the door.
    """

    def __init__(self, node: RabbitNode, admission: Admission) -> None:
        self.node = node
        self._admission = admission
        self.client_versions: dict[int, int] = {}
        self.congested = False
        """Whether the peer does not read: nothing should be delivered until ``Subscriptions.resume``."""
        self.publishers: Publishers = Publishers(self)
        self.subscriptions: Subscriptions = Subscriptions(self)
        self.handshake: Handshake
        self._reader = FrameReader(INITIAL_FRAME_MAX_BYTES)
        self._transport: asyncio.Transport | None = None
        self._scattered: ScatteredWriter | None = None
        self._peer = "?"
        self._open = False
        self._ending = False
        self._proceeding = False
        self._put_off = False
        self._left = False
        self._work = FrameQueue(node.loop, self._worked)
        self._reading = True
        self._unconfirmed = 0
        self._unconfirmed_bytes = 0
        self._stored: asyncio.Future[None] | None = None
        self._held_back = False
        self._correlation = 0
        self._waiting_bytes = 0
        self._life = HeartbeatTimer(node.loop)
        self._taking: WriteTimeout | None = None
        self._end_timer: asyncio.TimerHandle | None = None

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the peer to introduce itself."""
        assert isinstance(transport, asyncio.Transport)
        node = self.node
        self._transport = transport
        address = transport.get_extra_info("peername")
        self._peer = str(address)
        node.joined(self)
        self._taking = WriteTimeout(node.loop, transport, node.config.write_timeout_ms, self._stuck)
        self._scattered = ScatteredWriter(transport)
        transport.set_write_buffer_limits(high=node.config.max_outgoing_bytes)
        self.handshake = Handshake(
            node.config,
            address[0] if isinstance(address, tuple) else None,
            transport.get_extra_info("peercert"),
            node.properties,
            self.advertised,
        )

    def data_received(self, data: bytes) -> None:
        """Take bytes from the peer."""
        self._life.received()
        if self._transport is not None:
            self._reader.feed(data)
            self.proceed()

    def pause_writing(self) -> None:
        """Note that the peer does not read."""
        self.congested = True
        if self._taking is not None:
            self._taking.paused()
        self._regulate()

    def resume_writing(self) -> None:
        """Go on."""
        self.congested = False
        if self._taking is not None:
            self._taking.resumed()
        self.guarded(self.subscriptions.resume)
        self.proceed()

    def connection_lost(self, exc: Exception | None) -> None:
        """Send nothing any more; deal with what has come, and let go of everything then."""
        self._transport = None
        if self._scattered is not None:
            self._scattered.close()
        if self._taking is not None:
            self._taking.stop()
        self._life.stop()
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._in_good_order(self.subscriptions.close)
        self.proceed()

    def _leave(self) -> None:
        """Let go of everything: the connection is lost, and what came before that is dealt with."""
        if not self._left:
            self._left = self._ending = True  # what comes behind a frame that could not be read is not looked at
            self._let_go()
            self._admission.end()
            self.node.left(self)

    def _let_go(self) -> None:
        """End publishers and subscriptions, each whatever becomes of the other."""
        self._work.give_up()
        self._in_good_order(self.publishers.close)
        self._in_good_order(self.subscriptions.close)

    def _in_good_order(self, end: Callable[[], None]) -> None:
        try:
            end()
        except Exception:
            logger.exception("%s: could not be ended in good order", self._peer)

    # --- frames

    def proceed(self) -> None:
        """Deal with the frames that have come, as far as that may go now."""
        if self._proceeding:
            return
        self._proceeding = True
        turn = Turn()
        try:
            while self._may_proceed and (frame := self._reader.next()) is not None:
                self._take(frame)
                if turn.over:
                    self._put_off = True
                    self.node.loop.call_soon(self._go_on)
                    break
            self.publishers.received_all()
        except Exception as fault:
            self._went_wrong(fault)
        finally:
            self._proceeding = False
        self._regulate()
        if self._transport is None and not (self._put_off or self._work.busy or self._held_back):
            self._leave()

    def _go_on(self) -> None:
        self._put_off = False
        self.proceed()

    def _worked(self, fault: Exception | None) -> None:
        """Go on: a frame has been dealt with that took longer."""
        if fault is not None:
            self._went_wrong(fault)
        self.proceed()

    @property
    def _may_proceed(self) -> bool:
        if self._put_off or self._work.busy:
            return False
        if self._transport is None:
            return self._open and not (self._ending or self._held_back)
        # At the end what comes is read, for the answer to Close that may be among it, and for nothing else.
        return self._ending or not (self.congested or self._held_back or self.subscriptions.blocked)

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
            self._deal_with(lambda: dispatch.handle_large(self, frame))
        else:
            command = decode(frame)
            if isinstance(command, _BETWEEN_MESSAGES):
                self._begin(dispatch.handle(self, command))
            elif isinstance(command, Close):
                self.publishers.received_all()
                self._begin(dispatch.handle(self, command))
            else:
                self._deal_with(lambda: dispatch.handle(self, command))

    def _deal_with(self, handle: Callable[[], dispatch.Work | None]) -> None:
        """Deal with a frame when what was published before is in the log: it may be a question about it."""
        self.publishers.received_all()
        self._begin(self._when_stored(handle) if self._unconfirmed else handle())

    async def _when_stored(self, handle: Callable[[], dispatch.Work | None]) -> None:
        if self._unconfirmed:  # it begins a turn after it was made
            self._stored = self.node.loop.create_future()
            await self._stored
        work = handle()
        if work is not None:
            await work

    def _begin(self, work: Coroutine[object, object, None] | None) -> None:
        if work is not None:
            self._work.begin(work)

    def _regulate(self) -> None:
        """Read from the socket while what comes can be dealt with."""
        if self._transport is None or self._transport.is_closing():
            return
        wanted = self._may_proceed
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._life.received()
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def unconfirmed(self, entries: int, size: int) -> None:
        """Count entries that are being stored, and their bytes; with too many no more are read (S-106)."""
        self._unconfirmed += entries
        self._unconfirmed_bytes += size
        most = self.node.config.max_unconfirmed
        if not self._unconfirmed and self._stored is not None and not self._stored.done():
            self._stored.set_result(None)
        used = max(self._unconfirmed / most, self._unconfirmed_bytes / UNCONFIRMED_BYTES)
        if self._held_back and used <= _GO_ON_AT:
            self._held_back = False
            self.proceed()
        elif not self._held_back and used > 1:
            self._held_back = True

    # --- opening

    def _shake_hands(self, command: Command) -> None:
        self._reply(self.handshake.receive(command))
        if self.handshake.state is HandshakeState.OPEN:
            self._opened()

    def _reply(self, reply: Reply) -> None:
        """Send what a step of the handshake answers; refusals that would help to guess are sent late."""
        frames = b"".join(command.encode() for command in reply.send)
        if not reply.end:
            self.send(frames)
            return
        logger.info("%s: refused: %s", self._peer, ", ".join(map(_code_of, reply.send)) or "not expected at this step")
        self._ending = True
        self._let_go()
        delay_s = self.node.config.authentication_delay_ms / 1000 if reply.late else 0.0
        if delay_s:
            self._end_timer = self.node.loop.call_later(delay_s, self._last_words, frames)
        else:
            self._last_words(frames)

    def _last_words(self, frames: bytes) -> None:
        self.send(frames)
        self._close_transport()

    def _opened(self) -> None:
        self._open = True
        self._reader.max_bytes = self.handshake.frame_max_bytes
        if not self._admission.establish():
            most = self.node.config.max_connections
            self.fail(ResponseCode.INTERNAL_ERROR, f"this door serves {most} connections, and has as many")
            return
        self._life.start(self.handshake.heartbeat_s, self._beat, self._silent)

    @property
    def user(self) -> str:
        """Who it is."""
        return self.handshake.user

    def authenticate_again(self, reply: Reply) -> None:
        """Answer an authentication on an open connection; a refusal ends it."""
        self._reply(reply)

    def advertised(self) -> tuple[str, int]:
        """Return host and port that clients are told to connect to: configured ones, or where this one came to."""
        config = self.node.config
        came_to = self._transport.get_extra_info("sockname") if self._transport is not None else None
        host, port = came_to[:2] if isinstance(came_to, tuple) else (config.host, config.port)
        return config.advertised_host or str(host), config.advertised_port or int(port)

    def may(self, action: str, stream: str) -> bool:
        """Say whether the user may do ``action`` (``configure``, ``write`` or ``read``) to a stream."""
        permissions = permissions_of(self.node.config.permissions, self.user)
        return permissions is None or permissions.allow(action, stream)

    def may_anything(self, stream: str) -> bool:
        """Say whether the user may do anything to a stream; to others it is not told whether the stream is there."""
        return any(self.may(action, stream) for action in ("configure", "write", "read"))

    # --- sending

    @property
    def deliver_version(self) -> int:
        """The version of Deliver that the peer takes: 2 only if it said exactly that (S-24)."""
        return 2 if self.client_versions.get(DELIVER_KEY) == 2 else 1

    @property
    def outgoing_bytes(self) -> int:
        """How many bytes wait for the peer to read."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, frames: bytes) -> None:
        """Send whole frames; they are dropped when the connection has ended."""
        if self._transport is not None and frames:
            self._transport.write(frames)
            self._life.sent()

    def send_all(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send whole frames that lie in several pieces."""
        if self._transport is not None and self._scattered is not None:
            self._scattered.write(pieces)
            self._life.sent()

    def answer(self, request: Request, kind: type[Answer], code: int = ResponseCode.OK, **fields: Any) -> None:
        """Answer a request."""
        self.send(kind(request.correlation_id, code, **fields).encode())

    def correlation(self) -> int:
        """Return the correlation id of the next request to the peer, from 0 on."""
        number = self._correlation
        self._correlation = (number + 1) % 2**32
        return number

    def streams_gone(self, streams: Collection[str]) -> None:
        """Drop what the connection has on streams that are gone, and tell the peer of those it had something on."""
        used = self.publishers.drop(streams) | self.subscriptions.drop(streams)
        for stream in sorted(used):
            self.send(MetadataUpdate(ResponseCode.STREAM_NOT_AVAILABLE, stream).encode())

    # --- signs of life

    def _beat(self) -> None:
        if not self.congested:
            self.send(_HEARTBEAT)

    def _stuck(self) -> None:
        logger.info("%s: dropped, it took nothing for %d ms", self._peer, self.node.config.write_timeout_ms)
        self.drop()

    def _silent(self) -> None:
        """Drop a peer that gave no sign of life, unless that was because nothing was read from it."""
        if not self._reading:
            waiting, self._waiting_bytes = self._waiting_bytes, self.outgoing_bytes
            if not self.congested or waiting != self._waiting_bytes:
                self._life.received()  # it takes what it is sent, or it is us who do not read
                return
        logger.info("%s: dropped, no sign of life", self._peer)
        self.drop()

    # --- the end

    def closed_by_peer(self, request: Close) -> None:
        """Agree to a Close, and close."""
        if request.code != ResponseCode.OK:
            reason = one_line(request.reason)
            logger.info("%s: closed by the peer: %s %s", self._peer, code_name(request.code), reason)
        self._ending = True
        self._let_go()
        self.answer(request, CloseAnswer)
        self._close_transport()

    def fail(self, code: int, reason: str) -> None:
        """End the connection: Close with a code and a reason, and the socket once the peer has answered."""
        if self._transport is None:
            self._leave()
        if self._ending or self._transport is None:
            return
        if not self._open:
            self.drop()  # somebody unknown is told nothing
            return
        self._ending = True
        self._let_go()
        self.send(Close(code, reason, correlation_id=self.correlation()).encode())
        self._end_timer = self.node.loop.call_later(LINGER_S, self.drop)
        self._regulate()

    def shut_down(self) -> None:
        """Close in good order: the server stops."""
        self.fail(ResponseCode.OK, "the server stops")

    def drop(self) -> None:
        """Close the socket without waiting for the peer."""
        self._ending = True
        if self._transport is not None:
            self._transport.abort()
        else:
            self._leave()

    def _close_transport(self) -> None:
        """Close the socket once what is written has gone out; a peer that does not read is dropped."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            if self._end_timer is not None:
                self._end_timer.cancel()
            self._end_timer = self.node.loop.call_later(LINGER_S, self.drop)

    def _broken(self, code: ResponseCode, reason: str, fault: RemoteProtocolError) -> None:
        logger.info("%s: %s: %s", self._peer, reason, fault)
        if self._ending:
            self.drop()
        else:
            self.fail(code, reason)

    def _went_wrong(self, fault: Exception) -> None:
        if isinstance(fault, FrameTooLarge):
            self._broken(ResponseCode.FRAME_TOO_LARGE, "frame too large", fault)
        elif isinstance(fault, RemoteProtocolError):
            self._broken(ResponseCode.UNKNOWN_FRAME, "unknown frame", fault)
        else:
            self._crashed(fault)

    def _crashed(self, fault: Exception) -> None:
        logger.error("%s: the connection is closed after an unexpected error", self._peer, exc_info=fault)
        self.fail(ResponseCode.INTERNAL_ERROR, "an unexpected error in the server, see its log")

    def guarded(self, function: Callable[[], None]) -> None:
        """Call a function of this connection from elsewhere: what goes wrong in it ends this connection only."""
        try:
            function()
        except Exception as fault:
            self._crashed(fault)


def _code_of(command: Command) -> str:
    return f"{type(command).__name__} {code_name(getattr(command, 'code', 0))}"
