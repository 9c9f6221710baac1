"""Asks RabbitMQ about its streams over AMQP 1.0; the messages at the ends of a stream show what it retains.

::

    first event    attach at `first`, one credit, drain      its offset; credit that comes back: no events
    last offset    attach at `last`, one credit, drain       the first event of the last chunk, and `available`
    identity       attach at the offset, one credit, drain   a digest of the message, if it has that offset
    a time         attach at the time, drain                 the first event that the broker received then or later
    settings       GET /queues/<name> at `/management`       the arguments with which it was made

The last offset may be that of one of the broker's own chunks, which use up offsets too: it is never less than the last
event's offset. Offsets before the first event count as removed, although the broker's own chunks may have used them.

Spec: docs/specifications.md, Q-1 to Q-17.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa

from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.connections import Reached
from spark_streams.client.amqp.dialects import Inquiries, Receive
from spark_streams.client.amqp.links import Binding, Link, attach_receiver
from spark_streams.client.amqp.management import arguments_of
from spark_streams.client.amqp.offset_walk import first_message
from spark_streams.client.amqp.pushdown import PushedFilter, nothing_pushed
from spark_streams.client.amqp.queue_types import described_queue, version_of
from spark_streams.client.amqp.receive_buffer import ReceiveBuffer
from spark_streams.client.log_client import Bounds, RangeRead, StreamDescription
from spark_streams.client.retry import Deadline
from spark_streams.errors import NotFound, OptionError
from spark_streams.filters.targets.amqp import AmqpCapability, split_for_amqp
from spark_streams.filters.targets.rabbitmq import split_for_rabbitmq
from spark_streams.filters.tree import KEY, Expression, property_of
from spark_streams.offsets import OFFSET_DIGITS, offset_number
from spark_streams.position import EARLIEST, At
from spark_streams.wire.amqp.columns.decode import decode_columns
from spark_streams.wire.amqp.dialects.dialect import StartFilter
from spark_streams.wire.amqp.dialects.rabbitmq import RABBITMQ, START, queue_address
from spark_streams.wire.amqp.event_streams import FULL_SQL_FILTER
from spark_streams.wire.amqp.management import QUEUES
from spark_streams.wire.amqp.values import Described, Symbol, ULong

_T = TypeVar("_T")

_LAST: Final = StartFilter(Described(Symbol(START), "last"))
_SQL_SINCE: Final = (4, 2)
"""The first version with SQL filters; the broker offers them only in its attach."""
_SEARCH_CREDIT: Final = 1_000


@dataclass(frozen=True)
class RabbitInquiries(Inquiries):
    """See ``Inquiries``.

    Args:
        super_stream: whether the names of streams are those of super streams, whose partitions are the queues
            ``<name>-0``, ``<name>-1`` and so on; None for names of either, streams first.
        filter_value_from: what a message's publisher took its filter value from: ``key``, ``properties.<field>`` or
            ``application_properties.<name>`` or ``message_annotations.<name>``; None for an unknown place.
        match_unfiltered: whether messages without a filter value match too.
    """

    super_stream: bool | None = False
    filter_value_from: str | None = None
    match_unfiltered: bool = True

    def describe(self, to: Reached, stream: str) -> StreamDescription:
        """See ``Inquiries``; the partitions of a super stream are looked for by their names."""
        if not self.super_stream:
            try:
                bounds = {stream: _bounds(to.connection, stream)}
            except NotFound as fault:
                if self.super_stream is None:
                    with suppress(NotFound):
                        return replace(self, super_stream=True).describe(to, stream)
                raise fault
            return StreamDescription(stream, None, bounds, offset_digits=OFFSET_DIGITS, dialect=RABBITMQ.name)
        try:
            found = of_each_partition(stream, partial(_bounds, to.connection))
        except NotFound as fault:
            raise NotFound(
                fault.condition,
                "over AMQP 1.0 the partitions of a super stream are found under the names "
                f"'{stream}-0', '{stream}-1', … only; format 'rabbitmq-stream' finds those of any names",
                f"super stream '{stream}' at {to.connection.endpoint.address}",
            ) from fault
        return StreamDescription(stream, None, found, offset_digits=OFFSET_DIGITS, dialect=RABBITMQ.name)

    def settings(self, connection: Connection, stream: str) -> dict[str, Any]:
        """Return the arguments with which a stream was made; of a super stream, those of its first partition."""
        what = f"the settings of stream '{stream}'"
        try:
            answer = described_queue(connection, queue_address(f"{stream}-0" if self.super_stream else stream), what)
        except NotFound:
            if self.super_stream is not None:
                raise
            return replace(self, super_stream=True).settings(connection, stream)
        return arguments_of(answer.body, f"{what} at {connection.endpoint.address}: '{QUEUES}'")

    def log_identity(self, to: Reached, stream: str, offsets: Mapping[str, str]) -> dict[str, str | None]:
        """Return a digest of the message at each offset; None where there is none at it (any more)."""
        identities: dict[str, str | None] = {}
        for queue, offset in offsets.items():
            (start,) = RABBITMQ.starts(At(offset))
            found = _first_message(to.connection, queue, start)
            identities[queue] = None if found is None or found.offset != offset_number(offset) else found.digest
        return identities

    def first_at_time(
        self, connection: Connection, binding: Binding, timestamp_ms: int, receive: Receive
    ) -> str | None:
        """Return the offset of the first message that the broker received at an instant or later.

        The broker begins up to a second and a chunk too early, so the times of messages decide.

        Raises:
            OptionError: a message has no time.
        """
        (start,) = RABBITMQ.start_filters_at_time(timestamp_ms)
        link = receive(binding, (start,))
        for columns in _drained(link, _SEARCH_CREDIT, ("offset", "timestamp_ms")):
            times = columns["timestamp_ms"]
            for offset, time in zip(columns["offset"].to_pylist(), times.to_pylist(), strict=True):
                if time is None:
                    raise OptionError(
                        "startingTimestamp",
                        f"the message at offset '{offset}' of queue '{binding.partition}' has no time: over AMQP 1.0 "
                        "RabbitMQ tells none, unless its operator sets "
                        "message_interceptors.incoming.set_header_timestamp. Use format 'rabbitmq-stream', which reads "
                        "the times of chunks, or start at an offset",
                    )
                if time >= timestamp_ms:
                    return str(offset)
        return None

    def push(self, expression: Expression | None, connection: Connection, read: RangeRead | None) -> PushedFilter:
        """Split a filter: filter values by which the broker leaves out chunks, SQL that it checks, and the rest."""
        if expression is None:
            return nothing_pushed(None)
        filters: dict[str, Described] = {}
        words = []
        if self.filter_value_from is not None:
            place = KEY if self.filter_value_from == "key" else property_of(self.filter_value_from)
            values = split_for_rabbitmq(expression, place).values
            if values is not None:
                filters["rabbitmq:stream-filter"] = Described(Symbol("rabbitmq:stream-filter"), list(values))
                unfiltered = "rabbitmq:stream-match-unfiltered"
                filters[unfiltered] = Described(Symbol(unfiltered), self.match_unfiltered)
                words.append(f"filter values: {', '.join(values)}")
        capability = AmqpCapability(
            event_streams=False,
            filtex_sql=version_of(connection) >= _SQL_SINCE,
            rabbitmq_types=True,
        )
        split = split_for_amqp(expression, capability)
        if split.sql is not None:
            filters["sql-filter"] = Described(ULong(FULL_SQL_FILTER[0]), split.sql)
            words.append(split.words or "")
        if not filters:
            return nothing_pushed(expression)
        return PushedFilter(filters, split.residual, expression, "; ".join(words))


def of_each_partition(super_stream: str, ask: Callable[[str], _T]) -> dict[str, _T]:
    """Return what ``ask`` returns for each partition of a super stream, by the partition's name.

    Raises:
        NotFound: there is no queue of the first partition's name.
    """
    found: dict[str, _T] = {}
    while True:
        name = f"{super_stream}-{len(found)}"
        try:
            found[name] = ask(name)
        except NotFound:
            if not found:
                raise
            return found


@dataclass(frozen=True)
class _Message:
    """A message of a stream.

    Args:
        offset: its offset.
        behind: how many offsets the stream has used up after the message, as the broker reports.
        digest: a digest of the message's bytes from its annotations on.
    """

    offset: int
    behind: int
    digest: str


def _bounds(connection: Connection, queue: str) -> Bounds:
    """Return what a stream retains.

    Raises:
        NotFound: there is no such queue.
        Refused: it is a queue of another type, or the user may not read it.
    """
    (start,) = RABBITMQ.starts(EARLIEST)
    first = _first_message(connection, queue, start)
    if first is None:
        return Bounds.of_numbers(0, None)
    last = _first_message(connection, queue, _LAST) or first
    return Bounds.of_numbers(first.offset, max(first.offset, last.offset + last.behind))


def _first_message(connection: Connection, queue: str, start: StartFilter) -> _Message | None:
    """Return the first message from a position on; None when there is none now."""
    link = attach_receiver(connection, queue_address(queue), Binding(queue), start=start)
    missing, deadline = f"{link.what}: no answer to drain", Deadline(connection.timeout_ms)
    with closing(link):
        block = first_message(link, missing, drain=True)
        if block is None:
            return None
        while link.deliveries.available is None:
            link.check()
            link.turn(deadline.left_s(missing))
    columns = decode_columns(block, ("offset", "message"), places=connection.dialect.places)
    offset, digest = offset_number(columns["offset"][0].as_py()), hashlib.sha256(columns["message"][0].as_py())
    return _Message(offset, link.deliveries.available or 0, digest.hexdigest()[:32])


def _drained(link: Link, credit: int, names: tuple[str, ...]) -> Iterator[dict[str, pa.Array]]:
    """Yield columns of the messages of a link until there are no more now; detach."""
    deliveries, buffer = link.deliveries, ReceiveBuffer(credit, 1 << 20)
    deadline = Deadline(link.connection.timeout_ms)
    with closing(link):
        while not deliveries.take_returned():
            deliveries.flow(credit)
            deliveries.drain = True
            while deliveries.draining or deliveries.queued:
                if buffer.take(deliveries):
                    yield decode_columns(buffer.block(), names, places=link.connection.dialect.places)
                    buffer.clear()
                    deadline.restart()
                else:
                    link.check()
                    link.turn(deadline.left_s(f"{link.what}: no answer to drain"))
