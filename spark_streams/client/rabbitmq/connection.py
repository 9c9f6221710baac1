"""Runs one connection to a broker with streams: blocking calls over a socket that does not block.

Usage::

    with open_connection(endpoint, timeout_ms=30_000) as connection:   # open.py: connects, signs in, opens
        answer = connection.request(StreamStats("orders"), …)   # sends, waits for the answer with its correlation id
        connection.send(Credit(1, 10).encode())                 # queues bytes; they leave while anything waits
        event = connection.receive(1.0)                         # the next command that is no answer

The connection keeps the events that the broker sends while the caller waits for an answer, in order, for ``receive``.
It handles heartbeats and the broker's Close itself. Every wait has a deadline.

Spec: Streams Protocol Reference, "Frame Structure", Close, Heartbeat; docs/specifications.md,
S-11 to S-14, S-24, S-27, S-151.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from spark_streams.client.log_client import PRODUCT
from spark_streams.client.rabbitmq.errors import close_fault, present, refused
from spark_streams.client.retry import Deadline
from spark_streams.client.tcp import WOULD_BLOCK, lost
from spark_streams.endpoint import Endpoint, Node
from spark_streams.errors import (
    ConnectionLost,
    DeadlineExceeded,
    LocalProtocolError,
    PeerError,
    RemoteProtocolError,
    SparkStreamsError,
)
from spark_streams.redaction import safe_text
from spark_streams.wire.rabbitmq import connection_commands
from spark_streams.wire.rabbitmq.connection_commands import Close, CloseAnswer, Heartbeat
from spark_streams.wire.rabbitmq.frames import ANSWER, Answer, Command, Frame, FrameReader, Request, ResponseCode
from spark_streams.wire.rabbitmq.stream_commands import MetadataAnswer, Partitions, Route

A = TypeVar("A", bound=Command)
Told: TypeAlias = A | PeerError
"""An answer, or the error for its code."""

MAX_DELIVER_BYTES: Final = 256 << 20
"""The largest accepted frame. Deliver carries a whole chunk, which the agreed frame size does not bound (S-12)."""
_ANSWERED_AS_ASKED: Final = frozenset({Route.KEY, Partitions.KEY})
"""RabbitMQ 3.10 answers these without the bit that marks an answer (seen on 3.10.8)."""
RECEIVE_BYTES: Final = 1 << 16
"""The most bytes of small frames that one call receives; large frames come in their own place."""
MAX_QUEUED_BYTES: Final = 4 << 20
"""``send`` waits while more bytes than this are queued."""
REQUESTS_AHEAD: Final = 256
"""The most requests that are sent before the first of them is answered."""
MAX_SUBSCRIPTIONS: Final = 256
"""A subscription's id has one byte."""
_PORT_DIGITS: Final = 5
_FIRST_BYTES: Final = 512
CLOSE_TIMEOUT_MS: Final = 2_000
"""How long the broker may take to answer Close; after that the client closes the socket."""


class Connection(contextlib.AbstractContextManager["Connection"]):
    """A connection to a broker, open after a call of ``opened``; for one thread at a time.

    Args:
        endpoint: the socket's peer, with credentials, virtual host and TLS.
        connected: the socket, which does not block; the connection closes it.
        timeout_ms: how many milliseconds the broker may take for an answer.

    Attributes:
        endpoint: the socket's peer.
        broken: whether the connection is of no further use.
        first: the first bytes that came.
        opening: for all answers together until the connection is ``opened``; None for ``timeout_ms`` for each.
        events: what the broker has sent and no caller has received, in order; see ``receive``.
        nodes: the nodes of the cluster that the broker has named, in any answer to Metadata.
        versions: command key to the highest version that the broker accepts; empty before RabbitMQ 3.11 or so.
        properties: the broker's properties, ``version`` among them; fit for messages.
        frame_max_bytes: bytes of the largest frame that may be sent; 0 for no limit.
        subscription_ids: the ids of open subscriptions.
        publisher_ids: the ids of declared publishers.
    """

    versions: Mapping[int, int]
    properties: Mapping[str, str]
    frame_max_bytes: int

    def __init__(self, endpoint: Endpoint, connected: socket.socket, timeout_ms: int) -> None:
        self.endpoint = endpoint
        self.timeout_ms = timeout_ms
        self.broken = False
        self.first = b""
        self.opening: Deadline | None = None
        self.nodes: dict[Node, None] = {}
        self.subscription_ids: set[int] = set()
        self.publisher_ids: set[int] = set()
        self._subscription_id = -1
        self._correlation = 0
        self.events: deque[Command | Frame] = deque()
        self._answers: dict[int, Command] = {}
        self._outgoing: deque[memoryview] = deque()
        self._queued = 0
        self._frames = FrameReader(MAX_DELIVER_BYTES)
        self._heard = self._spoke = time.monotonic()
        self._heartbeat_s = 0
        self._socket = connected
        self._poll = select.poll()
        self._poll.register(self._socket.fileno(), select.POLLIN)
        self._watched = select.POLLIN

    def opened(
        self, properties: Mapping[str, str], versions: Mapping[int, int], frame_max_bytes: int, heartbeat_s: int
    ) -> None:
        """Use what the handshake has negotiated; from now on the connection sends and expects heartbeats.

        Args:
            properties: the broker's properties as it reports them: they may hold our secrets.
            versions: command key to the highest version that the broker accepts; empty where it reports none.
            frame_max_bytes: bytes of the largest frame, 0 for no limit.
            heartbeat_s: seconds between heartbeats, 0 for none.
        """
        self.opening = None
        self.versions = versions
        self.properties = {safe_text(name): safe_text(value) for name, value in properties.items()}
        self._reported = properties  # for comparisons: a node's name may equal a secret
        self.frame_max_bytes = frame_max_bytes
        self._heartbeat_s = heartbeat_s

    def __exit__(self, *fault: object) -> None:
        self.close()

    @property
    def advertised(self) -> Node | None:
        """The address that the broker advertises for the node of this connection; None where it names none."""
        host, port = self._reported.get("advertised_host"), self._reported.get("advertised_port", "")
        return (host, int(port)) if host and port.isdecimal() and len(port) <= _PORT_DIGITS else None

    @property
    def is_reference_log(self) -> bool:
        """Whether the broker is a door of our own log."""
        return self._reported.get("implementation") == PRODUCT

    # --- asking

    def request(self, command: Request, kind: type[A], what: str) -> A:
        """Send a request and return its answer with code OK.

        Args:
            command: the request; it gets a correlation id.
            kind: the answer's class.
            what: its name in errors, such as ``stream 'orders': subscribe``.

        Raises:
            PeerError: the broker answered with another code.
            TransportError, RemoteProtocolError: the connection broke, or no answer came in time.
        """
        return present(self.answers([(command, what)], kind)[0])

    def answers(self, asked: Sequence[tuple[Request, str]], kind: type[A]) -> list[Told[A]]:
        """Send requests and return their answers, as ``ask_all``, with the error in place of one that is not OK."""
        return [
            refused(answer.code, type(command), what, self.endpoint)
            if isinstance(answer, Answer) and not answer.ok
            else answer
            for answer, (command, what) in zip(self.ask_all(asked, kind), asked, strict=True)
        ]

    def ask(self, command: Request, kind: type[A], what: str) -> A:
        """Send a request and return its answer, whatever its code; see ``request``."""
        return self.ask_all([(command, what)], kind)[0]

    def ask_all(self, asked: Iterable[tuple[Request, str]], kind: type[A]) -> list[A]:
        """Send requests and return their answers, in the same order and whatever their codes.

        Several requests are under way at a time, so that a thousand of them do not take a thousand round trips.

        Args:
            asked: each request, with its name in errors; see ``request``.
            kind: the class of all answers.

        Raises:
            TransportError, RemoteProtocolError: the connection broke, or an answer did not come in time.
        """
        answers: list[A] = []
        waiting: deque[tuple[int, str]] = deque()
        left, deadline = iter(asked), self.opening or Deadline(self.timeout_ms)
        while True:
            if len(waiting) <= REQUESTS_AHEAD // 2:  # not after each answer: few large sends
                frames = []
                for command, what in islice(left, REQUESTS_AHEAD - len(waiting)):
                    self._correlation = self._correlation % 0x7FFFFFFF + 1
                    waiting.append((self._correlation, what))
                    frames.append(replace(command, correlation_id=self._correlation).encode())
                if frames:
                    self.send(b"".join(frames))
            if not waiting:
                return answers
            number, what = waiting.popleft()
            try:
                while number not in self._answers:
                    self.turn(deadline.left_s(f"{what}: no answer by {self.endpoint.address}"))
            except DeadlineExceeded as fault:
                raise self._lost(fault) from None  # a late answer would belong to no request, and may never come
            if self.opening is None:
                deadline.restart()
            answer = self._answers.pop(number)
            if not isinstance(answer, kind):
                raise self._lost(RemoteProtocolError(f"{what}: answered with {type(answer).__name__}"))
            answers.append(answer)

    def receive(self, timeout_s: float) -> Command | Frame | None:
        """Return the next event of the broker that is no answer, None after ``timeout_s`` seconds without one.

        Returns:
            A ``Frame`` for events that are decoded in columns (Deliver, PublishConfirm, PublishError), else the
            command: MetadataUpdate, ConsumerUpdate, CreditAnswer.
        """
        until = time.monotonic() + timeout_s
        while not self.events:
            left = until - time.monotonic()
            self.turn(max(0.0, left))
            if left <= 0:
                break
        return self.events.popleft() if self.events else None

    def send(self, frames: bytes) -> None:
        """Queue whole frames; wait, and read meanwhile, while too many bytes are queued.

        Raises:
            TransportError: the connection broke, or the broker does not read.
        """
        if self.broken:
            raise LocalProtocolError(f"the connection to {self.endpoint.address} is closed")
        self._queue(frames)
        self._write()
        deadline = Deadline(self.timeout_ms)
        while self._queued > MAX_QUEUED_BYTES:
            before = self._queued
            self.turn(deadline.left_s(f"{self.endpoint.address} does not read what is sent"))
            if self._queued < before:
                deadline.restart()

    def new_subscription_id(self) -> int:
        """Return an id that has been free for long, so that no late event is mistaken for the new subscription's.

        Raises:
            LocalProtocolError: all 256 ids of the connection are in use.
        """
        for _ in range(MAX_SUBSCRIPTIONS):
            self._subscription_id = (self._subscription_id + 1) % MAX_SUBSCRIPTIONS
            if self._subscription_id not in self.subscription_ids:
                self.subscription_ids.add(self._subscription_id)
                return self._subscription_id
        raise LocalProtocolError(f"more than {MAX_SUBSCRIPTIONS} subscriptions on one connection")

    # --- the socket

    def turn(self, timeout_s: float = 0.0) -> None:
        """Write and read as much as possible, and wait at most ``timeout_s`` seconds for bytes to come.

        Raises:
            ConnectionLost: the connection broke, or the broker was silent for more than two heartbeats.
            PeerError: the broker closed the connection, with its reason.
            RemoteProtocolError: the broker sent bytes that are no frame.
        """
        try:
            self._beat()
            if self._queued:
                self._write()
            if self._wait(timeout_s):
                self._read()
                if self._queued:
                    self._write()
        except OSError as fault:
            raise self._lost(lost(self.endpoint, fault)) from fault

    def _wait(self, timeout_s: float) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        wanted = select.POLLIN | (select.POLLOUT if self._queued else 0)
        if wanted != self._watched:
            self._poll.modify(self._socket.fileno(), wanted)
            self._watched = wanted
        if self._heartbeat_s:
            timeout_s = min(timeout_s, self._heartbeat_s / 2)
        return bool(self._poll.poll(max(0, int(timeout_s * 1000 + 0.999))))

    def _queue(self, frames: bytes) -> None:
        self._outgoing.append(memoryview(frames))
        self._queued += len(frames)

    def _write(self) -> None:
        while self._outgoing:
            head = self._outgoing[0]
            try:
                sent = self._socket.send(head)
            except WOULD_BLOCK:
                return
            except OSError as fault:
                raise self._lost(lost(self.endpoint, fault)) from fault
            self._spoke = time.monotonic()
            self._queued -= sent
            if sent == len(head):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = head[sent:]

    def _read(self) -> None:
        room = self._frames.room()
        try:
            received = self._socket.recv(RECEIVE_BYTES) if room is None else self._socket.recv_into(room)
        except WOULD_BLOCK:
            return
        if not received:
            raise self._lost(ConnectionLost(f"{self.endpoint.address}: the broker closed the connection"))
        self._heard = time.monotonic()
        if isinstance(received, bytes):
            self.first = self.first or received[:_FIRST_BYTES]
            self._frames.feed(received)
        else:
            self._frames.filled(received)
        try:
            while (frame := self._frames.next()) is not None:
                self._take(frame)
        except RemoteProtocolError as fault:
            raise self._lost(fault) from fault

    def _take(self, frame: Frame) -> None:
        if frame.key in connection_commands.COLUMNAR_KEYS:
            self.events.append(frame)
            return
        if frame.key in _ANSWERED_AS_ASKED:
            frame = frame._replace(key=frame.key | ANSWER)
        command = connection_commands.decode(frame)
        if isinstance(command, Heartbeat):
            return
        if isinstance(command, Close):
            self._queue(CloseAnswer(command.correlation_id).encode())
            self._write()
            raise self._lost(close_fault(command.code, command.reason, self.endpoint))
        if isinstance(command, MetadataAnswer):
            self.nodes.update({(broker.host, broker.port): None for broker in command.brokers})
        number = getattr(command, "correlation_id", None)
        if number is not None and frame.key & ANSWER:
            self._answers[number] = command
        else:
            self.events.append(command)

    def _beat(self) -> None:
        """Send a heartbeat after half of the agreed time without other frames; detect a peer that sends none."""
        if not self._heartbeat_s or self.broken:
            return
        now = time.monotonic()
        if now - self._spoke >= self._heartbeat_s / 2 and not self._queued:
            self._queue(Heartbeat().encode())
        if now - self._heard > 2 * self._heartbeat_s + 1:
            # Bytes may be waiting in the socket: a caller that was busy elsewhere has to read them first.
            if self._poll.poll(0):
                return
            raise self._lost(
                ConnectionLost(
                    f"{self.endpoint.address}: no sign of life for {now - self._heard:.0f} s, two heartbeats"
                )
            )

    def _lost(self, fault: SparkStreamsError) -> SparkStreamsError:
        self.abandon()
        return fault

    # --- the end

    def close(self) -> None:
        """Close with Close; never raise."""
        if self.broken:
            return
        self.timeout_ms = CLOSE_TIMEOUT_MS
        with contextlib.suppress(SparkStreamsError):  # the broker is gone already, so the connection is closed
            self.ask(Close(ResponseCode.OK, "OK"), CloseAnswer, "close")
        self.abandon()

    def abandon(self) -> None:
        """Close the socket at once."""
        if not self.broken:
            self.broken = True
            self._socket.close()
