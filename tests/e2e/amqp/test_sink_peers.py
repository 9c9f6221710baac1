"""Peers that take nothing: no credit, no settlement, other outcomes than accepted. The sink ends, and says why.

The log takes everything: these peers are scripted.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from proton import Condition, Delivery, Disposition, Event, Message, Terminus
from proton.handlers import MessagingHandler
from proton.reactor import Container
from spark_streams.sinks.amqp_events import AmqpOutlet, AmqpSink

from spark_streams.errors import DeadlineExceeded, DeliveryFailed, NotFound, SchemaError, TransportError
from spark_streams.options.amqp_events import parse_sink
from spark_streams.spark.sink.columns import identify, message_columns
from spark_streams.spark.sink.sink import TaskName
from spark_streams.testing import eventually


class Peer(MessagingHandler):
    """A listener that gives ``credit`` to each sender and does ``settle`` with what comes."""

    def __init__(self, credit: int, settle: Callable[[Delivery, Message], None] | None) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.credit, self.settle = credit, settle
        self.listening, self.bodies, self.connections = threading.Event(), [], []
        self.stopping = False

    def on_start(self, event: Event) -> None:
        self.acceptor = event.container.listen(f"127.0.0.1:{self.port}")
        self.container = event.container
        event.container.schedule(0.05, self)
        self.listening.set()

    def on_timer_task(self, event: Event) -> None:
        if self.stopping and not self.connections:
            event.container.stop()
            return
        if self.stopping:
            for connection in self.connections:
                connection.close()
            self.connections.clear()
        event.container.schedule(0.05, self)

    def on_connection_opening(self, event: Event) -> None:
        self.connections.append(event.connection)

    def on_link_opening(self, event: Event) -> None:
        event.link.target.type = Terminus.TARGET
        event.link.target.address = event.link.remote_target.address
        event.link.source.copy(event.link.remote_source)
        event.link.flow(self.credit)

    def on_message(self, event: Event) -> None:
        self.bodies.append(bytes(event.message.body))
        if self.settle is not None:
            self.settle(event.delivery, event.message)


@contextmanager
def peer(
    credit: int, settle: Callable[[Delivery, Message], None] | None = None, kind: type[Peer] = Peer
) -> Iterator[Peer]:
    handler = kind(credit, settle)
    thread = threading.Thread(target=Container(handler).run, daemon=True)
    thread.start()
    assert handler.listening.wait(120)
    try:
        yield handler
    finally:
        handler.stopping = True
        thread.join(120)
        assert not thread.is_alive()


def outlet(port: int, timeout_ms: int = 1_000, **more: str) -> AmqpOutlet:
    given = {"url": f"amqp://127.0.0.1:{port}", "stream": "orders", "requestTimeout": str(timeout_ms), **more}
    return AmqpSink(parse_sink(given)).open(TaskName("q", "0", 0), streaming=True)


def rows(*values: str) -> dict[str, pa.Array]:
    columns = message_columns(
        pa.record_batch([pa.array(values), pa.array([f"key-{v}" for v in values])], names=["value", "key"])
    )
    identify(columns, "q/0/0/", 0)
    return columns


def label(i: int) -> str:
    return f"row {i}"


def test_no_credit_is_a_timeout_and_not_a_hang() -> None:
    with peer(credit=0) as handler:
        sending = outlet(handler.port)
        started = time.monotonic()
        try:
            with pytest.raises(DeadlineExceeded, match="credit"):
                sending.send(rows("a"), label)
                sending.flush()
        finally:
            sending.close()
        assert time.monotonic() - started > 0.9


def test_credit_that_runs_out_bounds_what_is_sent() -> None:
    with peer(credit=3) as handler:
        sending = outlet(handler.port)
        try:
            with pytest.raises(DeadlineExceeded, match=r"credit|settle"):
                sending.send(rows(*"abcdef"), label)
                sending.flush()
        finally:
            sending.close()
    assert handler.bodies == [b"a", b"b", b"c"]


def test_what_is_never_settled_is_a_timeout() -> None:
    with peer(credit=100) as handler:
        sending = outlet(handler.port)
        try:
            with pytest.raises(DeadlineExceeded):
                sending.send(rows("a", "b"), label)
                sending.flush()
        finally:
            sending.close()
    assert handler.bodies == [b"a", b"b"]


def reject(delivery: Delivery, message: Message) -> None:
    delivery.local.condition = Condition("amqp:not-allowed", "this stream is closed for the night")
    delivery.update(Disposition.REJECTED)
    delivery.settle()


def release(delivery: Delivery, message: Message) -> None:
    delivery.update(Disposition.RELEASED)
    delivery.settle()


def modify(delivery: Delivery, message: Message) -> None:
    delivery.local.failed = True
    delivery.update(Disposition.MODIFIED)
    delivery.settle()


@pytest.mark.parametrize(
    ("refuse", "words"),
    [
        (reject, "row 1 was rejected by stream 'orders': amqp:not-allowed: this stream is closed for the night"),
        (release, "row 1 was released by stream 'orders'"),
        (modify, "row 1 was modified by stream 'orders'"),
    ],
)
def test_only_accepted_counts(refuse: Callable[[Delivery, Message], None], words: str) -> None:
    def settle(delivery: Delivery, message: Message) -> None:
        if bytes(message.body) == b"b":
            refuse(delivery, message)
        else:
            delivery.update(Disposition.ACCEPTED)
            delivery.settle()

    with peer(credit=100, settle=settle) as handler:
        sending = outlet(handler.port, 10_000)
        try:
            with pytest.raises(DeliveryFailed) as caught:
                sending.send(rows("a", "b", "c"), label)
                sending.flush()
        finally:
            sending.close()
    assert words in str(caught.value)


def test_accepted_rows_flush() -> None:
    def settle(delivery: Delivery, message: Message) -> None:
        delivery.update(Disposition.ACCEPTED)
        delivery.settle()

    with peer(credit=100, settle=settle) as handler:
        sending = outlet(handler.port, 10_000)
        try:
            sending.send(rows("a", "b"), label)
            sending.send(rows("c"), label)
            sending.flush()
        finally:
            sending.close()
    assert handler.bodies == [b"a", b"b", b"c"]


def test_a_task_that_computes_for_long_keeps_its_connection() -> None:
    class Impatient(Peer):
        def on_connection_bound(self, event: Event) -> None:
            event.transport.idle_timeout = 6.0  # drops a connection that is silent for six seconds
            self.transport, self.frames = event.transport, 0

        def on_timer_task(self, event: Event) -> None:
            super().on_timer_task(event)
            self.frames = self.transport.frames_input if self.bodies and not self.stopping else 0

    def settle(delivery: Delivery, message: Message) -> None:
        delivery.update(Disposition.ACCEPTED)
        delivery.settle()

    with peer(credit=100, settle=settle, kind=Impatient) as handler:
        sending = outlet(handler.port, 10_000)
        try:
            sending.send(rows("a"), label)
            sending.flush()
            eventually(lambda: handler.frames, "the peer has looked")
            before = handler.frames
            eventually(lambda: handler.frames >= before + 2, "frames come, of which it has sent none", 120)
            sending.send(rows("b"), label)
            sending.flush()
        finally:
            sending.close()
    assert handler.bodies == [b"a", b"b"]


def test_a_connection_that_broke_meanwhile_fails_the_task() -> None:
    with peer(credit=100) as handler:
        sending = outlet(handler.port, 10_000)
        sending.send(rows("a"), label)
    try:
        with pytest.raises(TransportError):
            sending.send(rows("b"), label)
            sending.flush()
    finally:
        sending.close()


def test_a_row_that_cannot_be_encoded_is_named() -> None:
    sending = outlet(1, dialect="event-streams")  # else the peer would be asked how rows are encoded for it
    columns = message_columns(
        pa.record_batch([pa.array(["a", "b"]), pa.array(["0", "ü"])], names=["value", "partition"])
    )
    identify(columns, "q/0/0/", 0)
    try:
        with pytest.raises(SchemaError, match=r"column 'partition', row 1: 'ü'.*counted from row 0"):
            sending.send(columns, label)
    finally:
        sending.close()


def test_a_link_that_is_refused_is_not_found() -> None:
    class Refusing(Peer):
        def on_link_opening(self, event: Event) -> None:
            event.link.target.type = Terminus.UNSPECIFIED  # no target: a refusal (AMQP 1.0 part 2 §2.6.3)

        def on_link_opened(self, event: Event) -> None:
            event.link.condition = Condition("amqp:not-found", "no node 'orders'")
            event.link.close()

    handler = Refusing(0, None)
    thread = threading.Thread(target=Container(handler).run, daemon=True)
    thread.start()
    assert handler.listening.wait(120)
    try:
        sink = AmqpSink(parse_sink({"url": f"amqp://127.0.0.1:{handler.port}", "stream": "orders"}))
        with pytest.raises(NotFound, match="no node 'orders'"):
            sink.check()
    finally:
        handler.stopping = True
        thread.join(120)
