"""Joins a sending engine of proton's with a receiver, without sockets: proton's own engine, or ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
from cproton_ffi import ffi, lib

from spark_streams.wire.amqp.engine.engine import Engine, Options
from spark_streams.wire.amqp.engine.incoming_deliveries import IncomingDeliveries
from spark_streams.wire.amqp.engine.links import SETTLED, UNSETTLED, Attach, Link
from spark_streams.wire.amqp.engine.termini import Terminus

WINDOW = 8
"""Transfer frames that may be under way on a session."""


def engine(mode: int, max_frame: int) -> tuple[Any, Any]:
    """An engine of proton's and its connection, opened."""
    transport, connection = proton.Transport(mode), proton.Connection()
    transport.max_frame_size = max_frame
    connection.container = "test"
    transport.bind(connection)
    connection.open()
    return transport, connection


class Sender:
    """An engine of proton's with one sending link for each name, each on a session of its own."""

    def __init__(self, max_frame: int) -> None:
        self.transport, self.connection = engine(proton.Transport.SERVER, max_frame)
        self.links: dict[str, Any] = {}
        self.deliveries: dict[str, list[Any]] = {}
        self.begun: dict[str, Any] = {}
        self._tags = 0

    def answer(self) -> None:
        """Open what the receiver has opened."""
        session = self.connection.session_head(proton.Endpoint.LOCAL_UNINIT)
        while session is not None:
            session.open()
            session = session.next(proton.Endpoint.LOCAL_UNINIT)
        link = self.connection.link_head(proton.Endpoint.LOCAL_UNINIT)
        while link is not None:
            self.links[link.name], self.deliveries[link.name] = link, []
            link.snd_settle_mode = link.remote_snd_settle_mode
            link.open()
            link = link.next(proton.Endpoint.LOCAL_UNINIT)

    def begin(self, name: str, body: bytes) -> None:
        """Begin a message, or continue it."""
        if name not in self.begun:
            self._tags += 1
            self.begun[name] = self.links[name].delivery(f"{self._tags:0{1 + self._tags % 7}}")
        if body:
            self.links[name].stream(body)

    def finish(self, name: str, *, settled: bool = True) -> None:
        """End the message that was begun."""
        delivery = self.begun.pop(name)
        self.links[name].advance()
        if settled:
            delivery.settle()
        else:
            self.deliveries[name].append(delivery)

    def abort(self, name: str) -> None:
        """Take back the message that was begun."""
        self.begun.pop(name).abort()

    def send(self, name: str, *bodies: bytes, settled: bool = True) -> None:
        """Send messages."""
        for body in bodies:
            self.begin(name, body)
            self.finish(name, settled=settled)

    def outcomes(self, name: str) -> list[tuple[bool, int]]:
        """For each delivery that was sent unsettled: whether the receiver has settled it, and its outcome."""
        return [(bool(each.settled), int(each.remote_state)) for each in self.deliveries[name]]


class Ours:
    """Our engine, with receiving links."""

    def __init__(self, max_frame: int = 512, window: int = WINDOW) -> None:
        self.engine = Engine(Options("ours", max_frame, window * max_frame, "theirs"), 1 << 16)
        self.engine.open()
        self.links: dict[str, Link] = {}
        self.deliveries: dict[str, IncomingDeliveries] = {}

    def attach(self, name: str, *, settled: bool = True, max_bytes: int = 1 << 20) -> IncomingDeliveries:
        """Open a receiving link on a session of its own."""
        link = self.links[name] = self.engine.session().receiver(name, max_bytes)
        deliveries = link.incoming
        deliveries.owner = self.deliveries[name] = deliveries
        link.attach(Attach(Terminus.source(name), Terminus.target(name), SETTLED if settled else UNSETTLED))
        return deliveries

    def push(self, data: bytes) -> None:
        """Take bytes that have come."""
        self.engine.room[: len(data)] = data
        self.engine.received_into(len(data))

    def written(self) -> bytes:
        """Return the bytes that it has to write."""
        return b"".join(iter(self.engine.written, b""))


def push(transport: Any, data: bytes) -> None:
    """Push bytes into an engine of proton's; AssertionError if it takes no more."""
    memory = ffi.from_buffer(data)
    done = 0
    while done < len(data):
        took = lib.pn_transport_push(transport._impl, memory + done, len(data) - done)
        assert took > 0, transport.condition
        done += took


def drained(transport: Any) -> bytes:
    """Return all bytes that an engine of proton's has to write."""
    data = b""
    while (pending := transport.pending()) > 0:
        data += bytes(transport.peek(pending))
        transport.pop(pending)
    return data


def exchange(
    sender: Sender, written: Callable[[], bytes], push_in: Callable[[bytes], None], step: int = 1 << 15
) -> None:
    """Move bytes both ways until none are left, at most ``step`` at once to the receiver."""
    moved = True
    while moved:
        back = written()
        if back:
            push(sender.transport, back)
        sender.answer()
        data = drained(sender.transport)
        for at in range(0, len(data), step):
            push_in(data[at : at + step])
        moved = bool(back or data)
