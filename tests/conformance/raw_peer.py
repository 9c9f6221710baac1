"""A small AMQP 1.0 peer for tests: proton's engine over a blocking socket, driven in the calling thread.

It shares no code with the package under test. ``pump`` moves bytes until a condition holds; whatever the other side did
is then read from the engine's state, so a test is a plain sequence of steps.
"""

from __future__ import annotations

import itertools
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import proton
from proton import Collector, Connection, Data, Delivery, Described, Link, Message, Terminus, Transport, symbol, ulong

CAPABILITY = symbol("AMQP_EVENT_STREAMS_V1_0")
PARTITION = symbol("event-streams-partition")
GROUP = symbol("event-streams-consumer-group")
EPOCH = symbol("event-streams-epoch")
OFFSET = symbol("event-streams-offset")
TIMESTAMP = symbol("event-streams-timestamp")
SOURCE_PARTITION = symbol("event-streams-source-partition")
TARGET_PARTITION = symbol("event-streams-target-partition")
CHANGED = symbol("event-streams-associated-partitions-changed")
GROUP_KEY = symbol("event-streams-group-key")
DA_FILTER = symbol("amqp:event-streams-delivery-annotations-filter")
SQL_FILTER = symbol("amqp:event-streams-sql-filter")
DA_CODE = ulong(0x200)
SQL_CODE = ulong(0x201)

WAIT_S = 5.0
_names = itertools.count(1)


def annotations_filter(descriptor: Any = DA_FILTER, **values: Any) -> Described:
    """A delivery annotations filter over ``offset`` and ``timestamp``."""
    entries: dict[Any, Any] = {}
    if "offset" in values:
        entries[OFFSET] = symbol(values["offset"])
    if "timestamp" in values:
        entries[TIMESTAMP] = proton.timestamp(values["timestamp"])
    return Described(descriptor, entries)


def sql_filter(text: str, descriptor: Any = SQL_FILTER) -> Described:
    return Described(descriptor, text)


EARLIEST = annotations_filter(offset="@earliest")


class Refused(Exception):
    """The other side answered an attach, or a transfer, with an error."""

    def __init__(self, condition: str | None, description: str | None, info: Any = None) -> None:
        super().__init__(condition, description)
        self.condition = condition
        self.description = description or ""
        self.info = info


class Ended(Exception):
    """The connection ended; ``condition`` is the close's or the transport's."""

    def __init__(self, condition: str | None, description: str | None = None) -> None:
        super().__init__(condition, description)
        self.condition = condition


@dataclass
class Event:
    """One delivery as it arrived."""

    encoded: bytes
    delivery: Delivery
    message: Message = field(init=False)

    def __post_init__(self) -> None:
        self.message = Message()
        self.message.decode(self.encoded)

    @property
    def body(self) -> Any:
        body = self.message.body
        return bytes(body) if isinstance(body, memoryview) else body

    @property
    def annotations(self) -> dict[Any, Any]:
        return dict(self.message.instructions or {})

    @property
    def offset(self) -> Any:
        return self.annotations[OFFSET]

    @property
    def timestamp(self) -> Any:
        return self.annotations.get(TIMESTAMP)

    @property
    def partition(self) -> Any:
        return self.annotations.get(SOURCE_PARTITION)


def sections(encoded: bytes) -> list[tuple[int, Any]]:
    """Return (descriptor code, value) of each section, as proton reads them."""
    found = []
    while encoded:
        data = Data()
        encoded = encoded[data.decode(encoded) :]
        data.rewind()
        data.next()
        described = data.get_object()
        found.append((int(described.descriptor), described.value))
    return found


class Peer:
    """One connection to a node.

    Args:
        url: where the node listens; credentials in it are ignored.
        username, password: for PLAIN; with username None the peer is anonymous.
        mechanisms: SASL mechanisms that the peer allows itself.
        tls: the context of a TLS connection, or None for a plain one.
        open: False leaves the open frame to the test.
    """

    def __init__(
        self,
        url: str,
        *,
        username: str | None = "guest",
        password: str | None = "guest",
        mechanisms: str = "PLAIN",
        container: str | None = None,
        desired: Iterable[str] = (),
        tls: ssl.SSLContext | None = None,
        max_frame_bytes: int | None = None,
        idle_timeout_s: float | None = None,
        open: bool = True,
    ) -> None:
        parts = urlsplit(url)
        plain = socket.create_connection((parts.hostname, parts.port), timeout=WAIT_S)
        self.socket = tls.wrap_socket(plain, server_hostname=parts.hostname) if tls else plain
        self.connection = Connection()
        self.connection.container = container or f"peer-{next(_names)}"
        self.connection.hostname = parts.hostname
        if username is not None:
            self.connection.user = username
            self.connection.password = password
        if desired:
            self.connection.desired_capabilities = [symbol(d) for d in desired]
        self.transport = Transport()
        if max_frame_bytes:
            self.transport.max_frame_size = max_frame_bytes
        if idle_timeout_s:
            self.transport.idle_timeout = idle_timeout_s
        sasl = self.transport.sasl()
        sasl.allow_insecure_mechs = True
        sasl.allowed_mechs(mechanisms)
        self.collector = Collector()
        self.connection.collect(self.collector)
        self.history: list[tuple[str, Any]] = []
        self.transport.bind(self.connection)
        self._gone = False
        if open:
            self.connection.open()
            self.pump(lambda: self.connection.state & proton.Endpoint.REMOTE_ACTIVE)
            self.session = self.connection.session()
            self.session.open()

    # -- moving bytes

    def pump(self, done: Callable[[], Any], timeout_s: float = WAIT_S) -> None:
        """Move bytes until ``done``; raises Ended when the connection ends first, TimeoutError when time is up."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._write()
            self._note()
            if done():
                self._write()
                return
            if self.connection.state & proton.Endpoint.REMOTE_CLOSED and not self._locally_closed():
                condition = self.connection.remote_condition
                raise Ended(condition.name if condition else None, condition.description if condition else None)
            if self._gone:
                condition = self.transport.condition
                raise Ended(condition.name if condition else None, condition.description if condition else None)
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the node did not do within {timeout_s} s what the test waits for")
            self._read(left)

    def pause(self, seconds: float = 0.05) -> None:
        """Move bytes for a while, for what should not happen or can only be waited for."""
        end = time.monotonic() + seconds
        self.pump(lambda: time.monotonic() >= end, seconds + 1)

    def _locally_closed(self) -> bool:
        return bool(self.connection.state & proton.Endpoint.LOCAL_CLOSED)

    def _write(self) -> None:
        self.transport.tick(time.monotonic())
        while (pending := self.transport.pending()) > 0:
            chunk = self.transport.peek(pending)
            try:
                self.socket.sendall(chunk)
            except OSError:
                self._gone = True
                self.transport.close_head()
                return
            self.transport.pop(len(chunk))
        if pending < 0 and self.transport.capacity() < 0:
            self._gone = True

    def _read(self, wait_s: float) -> None:
        capacity = self.transport.capacity()
        if capacity <= 0:
            self._gone = self._gone or capacity < 0
            return
        pending = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()
        if not pending and not select.select([self.socket], [], [], min(wait_s, 0.02))[0]:
            return
        try:
            received = self.socket.recv(capacity)
        except OSError:
            received = b""
        if received:
            self.transport.push(received)
        else:
            self.transport.close_tail()
            self._note()
            self._gone = True

    def _note(self) -> None:
        while (event := self.collector.peek()) is not None:
            self.history.append((event.type.name, getattr(event, "link", None)))
            self.collector.pop()

    # -- what a test does

    def receiver(self, address: str, **options: Any) -> Receiver:
        receiver = self.attach_receiver(address, **options)
        receiver.answered()
        return receiver

    def attach_receiver(
        self,
        address: str,
        *,
        filter: Any = None,
        properties: Mapping[Any, Any] | None = None,
        credit: int = 0,
        name: str | None = None,
        durability: int | None = None,
        expiry: int | None = None,
        presettled: bool = False,
    ) -> Receiver:
        """Send the attach, without waiting for the answer."""
        link = self.session.receiver(name or f"link-{next(_names)}")
        link.source.address = address
        if filter is not None:
            if isinstance(filter, Described):
                filter = [filter]
            if not isinstance(filter, Mapping):
                filter = {symbol(f"f{i}"): f for i, f in enumerate(filter)}
            link.source.filter.put_dict(filter)
        if durability is not None:
            link.source.durability = durability
        if expiry is not None:
            link.source.expiry_policy = expiry
        if presettled:
            link.snd_settle_mode = Link.SND_SETTLED
        if properties:
            link.properties = dict(properties)
        link.open()
        if credit:
            link.flow(credit)
        self._write()
        return Receiver(self, link)

    def sender(self, address: str, **options: Any) -> Sender:
        sender = self.attach_sender(address, **options)
        sender.answered()
        return sender

    def attach_sender(
        self, address: str, *, properties: Mapping[Any, Any] | None = None, name: str | None = None
    ) -> Sender:
        link = self.session.sender(name or f"link-{next(_names)}")
        link.target.address = address
        if properties:
            link.properties = dict(properties)
        link.open()
        self._write()
        return Sender(self, link)

    def drop(self) -> None:
        """Cut the connection without a word."""
        self.socket.close()
        self._gone = True

    def close(self) -> None:
        if not self._gone:
            self.connection.close()
            try:
                self.pump(lambda: self.connection.state & proton.Endpoint.REMOTE_CLOSED, 1.0)
            except (Ended, TimeoutError, OSError):
                self._gone = True
        self.socket.close()


class PeerLink:
    """What senders and receivers share."""

    def __init__(self, peer: Peer, link: Any) -> None:
        self.peer = peer
        self.link = link

    def answered(self, timeout_s: float = WAIT_S) -> None:
        """Wait for the answering attach; raises Refused when a detach follows it."""
        self.peer.pump(
            lambda: self.link.state & (proton.Endpoint.REMOTE_ACTIVE | proton.Endpoint.REMOTE_CLOSED), timeout_s
        )
        terminus = self.link.remote_source if self.link.is_receiver else self.link.remote_target
        if terminus.type == Terminus.UNSPECIFIED:
            self.peer.pump(lambda: self.closed or self.detached, timeout_s)
        self.check()

    @property
    def pending(self) -> bool:
        return not self.link.state & (proton.Endpoint.REMOTE_ACTIVE | proton.Endpoint.REMOTE_CLOSED)

    @property
    def closed(self) -> bool:
        """Whether the other side sent detach with closed=true."""
        return bool(self.link.state & proton.Endpoint.REMOTE_CLOSED)

    @property
    def detached(self) -> bool:
        """Whether the other side sent detach with closed=false."""
        return any(kind == "PN_LINK_REMOTE_DETACH" and link == self.link for kind, link in self.peer.history)

    @property
    def condition(self) -> str | None:
        condition = self.link.remote_condition
        return condition.name if condition else None

    def check(self) -> None:
        if self.closed or self.detached:
            condition = self.link.remote_condition
            if condition is None:
                raise Refused(None, "closed without an error")
            raise Refused(condition.name, condition.description, condition.info)

    def wait_closed(self, timeout_s: float = WAIT_S) -> str | None:
        self.peer.pump(lambda: self.closed or self.detached, timeout_s)
        return self.condition

    @property
    def properties(self) -> dict[Any, Any]:
        """Link properties of the answering attach."""
        return dict(self.link.remote_properties or {})

    def close(self) -> None:
        self.link.close()
        self.peer.pump(lambda: self.closed)

    def detach(self) -> None:
        self.link.detach()
        self.peer.pump(lambda: self.detached or self.closed)


class Receiver(PeerLink):
    """A link that receives. Deliveries are accepted as they are taken, unless ``settle`` is False."""

    @property
    def echoed(self) -> dict[Any, Any]:
        """The filter set that the node says is in force."""
        data = self.link.remote_source.filter
        data.rewind()
        return dict(data.get_object() or {}) if data.next() else {}

    def _next(self, settle: bool) -> Event | None:
        delivery = self.link.current
        if delivery is None or delivery.partial or not delivery.readable:
            return None
        encoded = self.link.recv(delivery.pending) or b""
        self.link.advance()
        if settle:
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
        return Event(encoded, delivery)

    def arrived(self, settle: bool = True) -> list[Event]:
        """Take what is here already."""
        events = []
        while (event := self._next(settle)) is not None:
            events.append(event)
        return events

    def take(self, count: int, *, settle: bool = True, credit: bool = True, timeout_s: float = WAIT_S) -> list[Event]:
        """Take exactly ``count`` events, granting credit for them."""
        if credit:
            self.link.flow(count)
        events: list[Event] = []

        def enough() -> bool:
            self.check()
            while len(events) < count and (event := self._next(settle)) is not None:
                events.append(event)
            return len(events) >= count

        self.peer.pump(enough, timeout_s)
        return events

    def drain(self, credit: int = 100_000, *, settle: bool = True) -> list[Event]:
        """Take all there is now: the node says by itself when it has no more (AMQP 1.0 part 2 §2.6.7)."""
        self.link.drain(credit)
        events: list[Event] = []

        def exhausted() -> bool:
            self.check()
            events.extend(self.arrived(settle))
            return self.link.credit == 0 and self.link.queued == 0

        self.peer.pump(exhausted)
        self.link.drain_mode = False
        return events

    def bodies(self, events: list[Event] | None = None) -> list[Any]:
        return [event.body for event in (self.drain() if events is None else events)]


class Sender(PeerLink):
    """A link that sends, unsettled."""

    def send(self, message: Any, *, timeout_s: float = WAIT_S, **sections: Any) -> None:
        """Send one event and wait until it is accepted; raises Refused for any other outcome."""
        delivery = self.put(message, **sections)
        self.peer.pump(lambda: delivery.settled or self.closed or self.detached, timeout_s)
        self.check()
        if delivery.remote_state != Delivery.ACCEPTED:
            condition = delivery.remote.condition
            outcome = str(delivery.remote_state)
            raise Refused(condition.name if condition else outcome, condition.description if condition else outcome)
        delivery.settle()

    def put(self, message: Any, **sections: Any) -> Delivery:
        """Send one event without waiting for its outcome."""
        self.peer.pump(lambda: self.link.credit > 0 or self.closed or self.detached)
        self.check()
        delivery = self.link.delivery(f"tag-{next(_names)}")
        self.link.stream(encode(message, **sections))
        self.link.advance()
        return delivery

    def send_all(self, messages: Iterable[Any], **sections: Any) -> None:
        """Send many and wait until all are accepted."""
        deliveries = [self.put(message, **sections) for message in messages]
        self.peer.pump(lambda: all(d.settled for d in deliveries))
        assert {d.remote_state for d in deliveries} <= {Delivery.ACCEPTED}
        for delivery in deliveries:
            delivery.settle()


def encode(
    message: Any,
    *,
    target: str | None = None,
    key: str | None = None,
    annotations: Mapping[Any, Any] | None = None,
    instructions: Mapping[Any, Any] | None = None,
) -> bytes:
    """Encode an event: bytes become a data section, a str an amqp-value, a Message itself; bytearray is sent as it is."""
    if isinstance(message, bytearray):
        return bytes(message)
    if not isinstance(message, Message):
        message = Message(body=message, inferred=isinstance(message, bytes))
    if target is not None:
        instructions = {**(instructions or {}), TARGET_PARTITION: symbol(target)}
    if key is not None:
        annotations = {**(annotations or {}), GROUP_KEY: key}
    if instructions:
        message.instructions = dict(instructions)
    if annotations:
        message.annotations = dict(annotations)
    return bytes(message.encode())
