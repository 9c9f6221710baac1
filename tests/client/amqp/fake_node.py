"""A scripted node on proton's engine, for what a client must do when its node misbehaves or is plain AMQP.

It serves what it is told to: one list of encoded events for each address, ``$info`` maps, link properties of its own
choosing. It keeps what clients did: attaches, outcomes, transfers, and the errors they closed links with.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from proton import Collector, Connection, Event, Link, Message, Terminus, Transport, symbol

from tests.server.amqp.raw_peer import CAPABILITY, OFFSET, PARTITION, SOURCE_PARTITION, TIMESTAMP


@dataclass
class Attach:
    """One link that a client attached."""

    address: str | None
    receives: bool
    properties: dict[Any, Any]
    filters: dict[Any, Any]


@dataclass
class Script:
    """What the node does.

    Args:
        capability: whether the open offers event streams.
        info: address of a log to the body of its information source.
        events: address of a log to encoded transfers, sent as credit allows.
        properties: link properties of the answering attach; None echoes what was asked.
        echo_filters: whether the answering attach says that the filters are in force.
        on_attach: called with (link, number of the attach from 1) before anything is answered; True means that it has
            answered by itself.
        settled: whether events are sent settled when the client leaves the choice.
    """

    capability: bool = True
    info: dict[str, Any] = field(default_factory=dict)
    events: dict[str, list[bytes]] = field(default_factory=dict)
    properties: Mapping[Any, Any] | None = None
    echo_filters: bool = True
    on_attach: Callable[[Any, int], bool] | None = None
    settled: bool = False


def event(body: bytes, offset: str, timestamp_ms: int = 0, partition: str | None = None) -> bytes:
    """Encode a transfer as a node sends it."""
    from proton import timestamp

    message = Message(body=body, inferred=True)
    message.instructions = {OFFSET: symbol(offset), TIMESTAMP: timestamp(timestamp_ms)}
    if partition is not None:
        message.instructions[SOURCE_PARTITION] = symbol(partition)
    return bytes(message.encode())


def info(**partitions: tuple[str | None, str | None]) -> dict[Any, Any]:
    """Return the body of an information source: partition (written ``p0`` for "0") to (earliest, latest)."""

    def offset(text: str | None) -> Any:
        return None if text is None else symbol(text)

    return {
        "partitions": [
            {"partition": symbol(name[1:]), "earliest-offset": offset(first), "latest-offset": offset(last)}
            for name, (first, last) in partitions.items()
        ]
    }


def refuse(link: Any, condition: str, description: str = "", info: Any = None) -> bool:
    """Answer an attach with a null terminus and close the link with an error."""
    from proton import Condition

    terminus = link.source if link.is_sender else link.target
    terminus.type = Terminus.UNSPECIFIED
    link.open()
    link.condition = Condition(condition, description, info)
    link.close()
    return True


class FakeNode:
    """Serves a script on a free loopback port until closed."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.attaches: list[Attach] = []
        self.desired: list[list[str]] = []
        self.outcomes: list[tuple[Any, str | None]] = []
        self.closes: list[str | None] = []
        self.transfers: list[bytes] = []
        self._filters: dict[str, dict[Any, Any]] = {}
        self._stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"amqp://127.0.0.1:{self.port}"
        self._threads: list[threading.Thread] = []
        acceptor = threading.Thread(target=self._accept, daemon=True)
        acceptor.start()
        self._threads.append(acceptor)

    def __enter__(self) -> FakeNode:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
        self._listener.close()

    def _accept(self) -> None:
        while not self._stop.is_set():
            if select.select([self._listener], [], [], 0.02)[0]:
                accepted, _ = self._listener.accept()
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                thread = threading.Thread(target=self._serve, args=(accepted,), daemon=True)
                thread.start()
                self._threads.append(thread)

    def _serve(self, connected: socket.socket) -> None:
        connection, collector = Connection(), Collector()
        connection.collect(collector)
        sent: dict[str, int] = {}
        with connected, contextlib.suppress(OSError):
            transport = self._signed_in(connected, connection)
            while not self._stop.is_set():
                transport.tick(time.monotonic())
                self._due()
                while (happened := collector.peek()) is not None:
                    self._react(happened, connection, sent)
                    collector.pop()
                while (pending := transport.pending()) > 0:
                    chunk = transport.peek(pending)
                    connected.sendall(chunk)
                    transport.pop(len(chunk))
                capacity = transport.capacity()
                if capacity < 0 and pending < 0:
                    return
                if capacity > 0 and select.select([connected], [], [], 0.01)[0]:
                    received = connected.recv(capacity)
                    if not received:
                        return
                    transport.push(received)

    def _signed_in(self, connected: socket.socket, connection: Connection) -> Any:
        """Return the engine of a new connection, with what it needs to let the client in."""
        transport = Transport(Transport.SERVER)
        transport.sasl().allowed_mechs("ANONYMOUS")
        transport.require_auth(False)
        transport.bind(connection)
        return transport

    def _due(self) -> None:
        """Do what does not answer anything; called again and again."""

    def _react(self, happened: Any, connection: Any, sent: dict[str, int]) -> None:
        kind, link = happened.type, getattr(happened, "link", None)
        if kind == Event.CONNECTION_REMOTE_OPEN:
            self.desired.append([str(c) for c in connection.remote_desired_capabilities or ()])
            connection.container = "fake"
            if self.script.capability:
                connection.offered_capabilities = [CAPABILITY]
            connection.open()
        elif kind == Event.SESSION_REMOTE_OPEN:
            happened.session.open()
        elif kind == Event.LINK_REMOTE_OPEN:
            self._attached(link)
        elif kind == Event.LINK_FLOW and link.is_sender:
            self._deliver(link, sent)
        elif kind == Event.DELIVERY:
            self._delivered(link, happened.delivery)
        elif kind == Event.LINK_REMOTE_CLOSE:
            condition = link.remote_condition
            self.closes.append(condition.name if condition else None)
            link.close()
        elif kind == Event.SESSION_REMOTE_CLOSE:
            happened.session.close()
        elif kind == Event.CONNECTION_REMOTE_CLOSE:
            connection.close()

    def _attached(self, link: Any) -> None:
        filters = link.remote_source.filter
        filters.rewind()
        found = dict(filters.get_object() or {}) if filters.next() else {}
        address = link.remote_source.address if link.is_sender else link.remote_target.address
        asked = dict(link.remote_properties or {})
        self._filters[link.name] = found
        self.attaches.append(Attach(address, link.is_sender, asked, found))
        if self.script.on_attach is not None and self.script.on_attach(link, len(self.attaches)):
            return
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        if not self.script.echo_filters:
            link.source.filter.clear()
        link.snd_settle_mode = link.remote_snd_settle_mode
        answer = {k: v for k, v in asked.items() if k == PARTITION} if self.script.properties is None else None
        properties = answer if answer is not None else dict(self.script.properties or {})
        if properties:
            link.properties = properties
        link.open()
        if link.is_receiver:
            link.flow(100)

    def _eligible(self, address: str, name: str) -> list[bytes]:
        """Return the events that the link's start filter lets through, by plain comparison of offsets."""
        events = self.script.events.get(address, [])
        for described in self._filters.get(name, {}).values() if self.script.echo_filters else ():
            start = described.value
            if isinstance(start, str):  # d.event-streams-offset >= 'offset'
                first = start.split("'", 1)[1][:-1].replace("''", "'")
                events = [e for e in events if offset_of(e) >= first]
            elif start.get(OFFSET, "@earliest") != "@earliest":
                events = [e for e in events if offset_of(e) > start[OFFSET]]
        return events

    def _deliver(self, link: Any, sent: dict[str, int]) -> None:
        address = link.remote_source.address or ""
        if address.endswith("/$info"):
            waiting = [info_bytes(self.script.info[address[: -len("/$info")]])] * link.credit
            done = 0
        else:
            waiting, done = self._eligible(address, link.name), sent.get(link.name, 0)
        for encoded in waiting[done : done + link.credit]:
            delivery = link.delivery(f"d{done}")
            link.stream(encoded)
            link.advance()
            done += 1
            if self.script.settled or link.snd_settle_mode == Link.SND_SETTLED:
                delivery.settle()
        sent[link.name] = done
        if link.drain_mode:
            link.drained()

    def _delivered(self, link: Any, delivery: Any) -> None:
        if link.is_sender:
            condition = delivery.remote.condition if delivery.remote else None
            self.outcomes.append((delivery.remote_state, condition.name if condition else None))
            delivery.settle()
        elif not delivery.partial and delivery.readable:
            self.transfers.append(link.recv(delivery.pending) or b"")
            link.advance()
            delivery.update(delivery.ACCEPTED)
            delivery.settle()
            link.flow(1)


def offset_of(encoded: bytes) -> str:
    """Return the offset that an encoded event carries."""
    message = Message()
    message.decode(encoded)
    return str((message.instructions or {}).get(OFFSET, ""))


def info_bytes(body: Any) -> bytes:
    """Encode the message of an information source."""
    return bytes(Message(body=body).encode())
