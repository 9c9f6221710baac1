"""Attaches links with addresses, filters and properties, and checks which of them the peer accepted.

The dialect decides what these are; ``wire.amqp`` encodes the values of filters.

Spec: Event Stream Extensions §4.6 (link properties), §5.2 (filters); AMQP 1.0 part 2 §2.6.3 (refusal),
part 3 §3.5.8 (the peer echoes the filters that are in force).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.queue_types import is_stream
from spark_streams.client.retry import Deadline
from spark_streams.errors import DeadlineExceeded, Refused, RemoteProtocolError, SparkStreamsError
from spark_streams.filters.tree import Expression
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns
from spark_streams.wire.amqp.dialects.dialect import Dialect, LinkProperties, StartFilter
from spark_streams.wire.amqp.dialects.event_streams import as_symbol
from spark_streams.wire.amqp.engine.endpoints import Condition
from spark_streams.wire.amqp.engine.incoming_deliveries import IncomingDeliveries
from spark_streams.wire.amqp.engine.links import SETTLED, UNSETTLED, Attach
from spark_streams.wire.amqp.engine.links import Link as EngineLink
from spark_streams.wire.amqp.engine.termini import FILTER, Terminus
from spark_streams.wire.amqp.event_streams import ANNOTATIONS_FILTER, FULL_SQL_FILTER, SQL_FILTER
from spark_streams.wire.amqp.values import Described, Symbol

MAX_MESSAGE_BYTES: Final = 128 << 20
"""Bytes of the largest message of a receiver: its attach sends this limit."""

_FILTERS: Final = (ANNOTATIONS_FILTER, SQL_FILTER, FULL_SQL_FILTER)
_REFUSAL_MS: Final = 2_000
_CLOSE_MS: Final = 2_000


class StartRefused(RemoteProtocolError):
    """The peer did not echo the start filter; without it the read would begin elsewhere (A-21)."""


class Unreadable(Refused):
    """The peer ended the session or the connection at a message that it cannot show over AMQP 1.0 (Q-13).

    Attributes:
        to_reader: whether it ended a link that reads rows; False for a probe, which is not part of reading the range.
    """

    to_reader = False


def not_shown(place: str) -> str:
    """Return the text about a message that the peer cannot show: what is wrong, and how to go on."""
    advice = "read it with format 'rabbitmq-stream', which shows all that a stream holds"
    return f"the broker cannot show {place} as one of AMQP 1.0: {advice}"


@dataclass(frozen=True)
class Binding:
    """What a link is bound to.

    Args:
        stream: the stream's name, for messages.
        partition: the partition (ES-102); None if there is none.
        consumer_group: the group that the link joins (ES-200); None if there is none.
        epoch: the epoch with which the link claims the partition within the group (ES-210), sent as ``long`` (A-2);
            None if there is none.
    """

    stream: str
    partition: str | None = None
    consumer_group: str | None = None
    epoch: int | None = None

    @property
    def what(self) -> str:
        """The name of the link in messages, such as ``attach to 'orders' partition '0'``."""
        partition = "" if self.partition is None else f" partition '{self.partition}'"
        group = "" if self.consumer_group is None else f" in consumer group '{self.consumer_group}'"
        return f"attach to '{self.stream}'{partition}{group}"

    def properties(self, names: LinkProperties) -> dict[str, Any]:
        """Return the properties of the link, under the names that the peer's dialect has for them."""
        partition = None
        if self.partition is not None and names.partition is not None:
            partition = Symbol(as_symbol(self.partition))
        named = ((names.partition, partition), (names.consumer_group, self.consumer_group), (names.epoch, self.epoch))
        return {name: value for name, value in named if name is not None and value is not None}


class Link:
    """An attached link in a session of its own, so that the window of one link never blocks another link.

    Args:
        connection: the connection of the link.
        link: the engine's link, which is attached.
        what: its name in messages, such as ``attach to 'orders' partition '0'``.

    Attributes:
        link: as given.
        taken: names of the optional filters that the peer echoed as they were sent.
        began: the start that the link's filter names; None for a link without such a filter.
        reads: whether the link reads rows; False for a probe.
        early: whether the link begins before the wanted position.
        residual: the part of the filter that the client checks on every delivery; None for nothing.
    """

    def __init__(self, connection: Connection, link: EngineLink, what: str) -> None:
        self.connection = connection
        self.link = link
        self.what = f"{what} at {connection.endpoint.address}"
        self.taken: frozenset[str] = frozenset()
        self.began: Any = None
        self.reads = False
        self.early = False
        self.residual: Expression | None = None
        self.closed = False

    @property
    def deliveries(self) -> IncomingDeliveries:
        """A receiver's credit, and what has come."""
        return self.link.incoming

    @property
    def narrowed(self) -> bool:
        """Whether the peer leaves out events, so that a missing event is no loss."""
        return bool(self.taken)

    def check(self) -> None:
        """Raise an error if the peer ended the link or its session.

        Raises:
            Unreadable: it cannot show a message.
            SparkStreamsError: the error for the peer's condition.
        """
        if self.link.ended:
            raise self.connection.fault(self.link.error, self.what)
        if self.link.session.ended:
            raise self._ended(self.connection.fault(self.link.session.error, self.what))

    def turn(self, wait_s: float = 0.0) -> bool:
        """Serve the connection once, see ``Connection.turn``; where it ends, raise as ``check`` does."""
        try:
            return self.connection.turn(wait_s)
        except Refused as fault:
            raise self._ended(fault) from fault

    def _ended(self, fault: SparkStreamsError) -> SparkStreamsError:
        """Return the error for a session or connection that ended: RabbitMQ ends one of them at what it cannot show."""
        unreadable = self.connection.dialect.conditions.unreadable
        if self.began is None or not isinstance(fault, Refused) or fault.condition != unreadable:
            return fault
        began = self.began if isinstance(self.began, str) else int(self.began)
        told = Unreadable(fault.condition, not_shown(f"a message from {began!r} on"), self.what)
        told.to_reader = self.reads
        return told

    def close(self, condition: Condition | None = None) -> None:
        """Detach, with or without an error condition, and end the session; never raise.

        Args:
            condition: the condition to send to the peer; None if there is none.
        """
        connection, link = self.connection, self.link
        if self.closed:
            return
        self.closed = True
        if connection.broken:
            return
        deadline = Deadline(min(connection.timeout_ms, _CLOSE_MS))
        with contextlib.suppress(SparkStreamsError):
            try:
                if not link.sends:
                    self.deliveries.release()
                link.detach(condition)
                link.session.end()
                while not link.session.ended:
                    connection.turn(deadline.left_s("no answer to end"))
            except DeadlineExceeded:
                connection.abandon()


def attach_receiver(
    connection: Connection,
    address: str,
    binding: Binding,
    *,
    start: StartFilter | None = None,
    also: Mapping[str, Described] | None = None,
    properties: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    reads: bool = False,
) -> Link:
    """Attach a receiver without credit.

    The peer may send settled deliveries only where its address is known to be a log's, so that this removes nothing.
    Elsewhere the first message has to prove that it comes from a log, and messages that are not accepted are released
    (docs/rabbitmq-amqp.md has the table).

    Args:
        connection: the connection of the link.
        address: source address.
        binding: what the link is bound to.
        start: where to begin; the peer has to echo the filter (A-21), unless its dialect says otherwise.
        also: further described filters by name, beside ``start``; the names of those that the peer echoes are
            ``taken``.
        properties: further link properties.
        max_bytes: the largest message that is taken, if not ``MAX_MESSAGE_BYTES``.
        reads: whether the link reads rows; False for a probe, for which the queue's type alone is not trusted.

    Raises:
        StartRefused: the peer did not echo ``start``.
        Refused: the address is that of a queue that is no stream.
        RemoteProtocolError: the peer bound the link to another partition.
        NotFound, OwnershipLost, Refused, LinkRedirected: the peer refused the link.
        DeadlineExceeded: the peer did not answer.
        AuthenticationFailed, OptionError: a token for the address was not taken, or there is none.
    """
    connection.grant(address)
    is_log = is_stream(connection, address, binding.partition or binding.stream)
    known = connection.peer.has_only_logs or (is_log and reads)
    also, dialect = also or {}, connection.dialect
    filters = {} if start is None else {dialect.start_name: start.filter, **also}
    link = connection.session().receiver(_link_name(), MAX_MESSAGE_BYTES)
    deliveries = link.incoming
    deliveries.owner = link
    settled = SETTLED if known else UNSETTLED
    named = {**(properties or {}), **binding.properties(dialect.link_properties)}
    source = Terminus.source(address, copies=True, filters=filters)
    link.attach(Attach(source, Terminus.target(link.name), settled, properties=named))
    deliveries.max_message_bytes = max_bytes or MAX_MESSAGE_BYTES
    attached = _attached(Link(connection, link, binding.what), binding)
    settles = link.settles == SETTLED
    if settles and not known and not dialect.event_stream_filters:  # only echoes of their filters prove a log
        attached.close()
        raise Refused("not supported", "it settles what it sends, which would take it off a queue", attached.what)
    if start is not None:
        if not known:
            deliveries.proof = partial(_check_log, dialect, attached.what, partial(connection.streams.discard, address))
        there = None if link.source is None else link.source.field(FILTER, object, None)
        echoed = {str(name): value for name, value in there.items()} if isinstance(there, Mapping) else {}
        begins = echoed.get(dialect.start_name)
        if dialect.echoes_start and not _same_filter(start.filter, begins):
            attached.close()
            raise StartRefused(
                f"{attached.what}: the peer did not take the filter that says where to start (it echoed "
                f"{_words(begins)}, sent was {_words(start.filter)}); without it the read would begin elsewhere. Is it "
                f"a log of {dialect.title}?"
            )
        attached.early, attached.began, attached.reads = start.early, start.filter.value, reads
        attached.taken = frozenset(n for n, sent in also.items() if _same_filter(sent, echoed.get(n)))
    return attached


def attach_sender(connection: Connection, address: str, binding: Binding) -> Link:
    """Attach a sender of unsettled deliveries; see ``attach_receiver`` for the arguments.

    An empty address is the anonymous terminus: each message has its own (RabbitMQ's ``ANONYMOUS-RELAY``).

    Raises:
        RemoteProtocolError: the peer bound the link to another partition.
        NotFound, OwnershipLost, Refused, LinkRedirected: the peer refused the link.
        DeadlineExceeded: the peer did not answer.
        AuthenticationFailed, OptionError: a token for the address was not taken, or there is none.
    """
    connection.grant(address)
    link = connection.session().sender(_link_name())
    properties = binding.properties(connection.dialect.link_properties)
    link.attach(Attach(Terminus.source(link.name), Terminus.target(address or None), properties=properties))
    return _attached(Link(connection, link, binding.what), binding)


def _link_name() -> str:
    return f"spark-streams-{uuid.uuid4().hex}"


def _attached(attached: Link, binding: Binding) -> Link:
    """Wait for the peer's answer, and check which partition the link is bound to."""
    connection, link = attached.connection, attached.link

    def ended() -> bool:
        # RabbitMQ ends the session where a permission is missing.
        return link.ended or link.session.ended

    try:
        connection.wait(
            lambda: link.heard is not None or ended(),
            Deadline(connection.timeout_ms),
            f"no answer to {attached.what}",
        )
        if link.refused and not ended():
            # A refusal: an attach without terminus, and right after it the detach with the reason (§2.6.3).
            connection.wait(ended, Deadline(_REFUSAL_MS), f"no reason for refusing {attached.what}")
        attached.check()
        if connection.dialect.link_properties.partition is not None:
            _check_bound(link, binding, attached.what, connection.dialect.link_properties.partition)
    except DeadlineExceeded:
        connection.abandon()  # a link in an unknown state would disturb all others
        raise
    except SparkStreamsError:
        attached.close()
        raise
    return attached


def _check_bound(link: EngineLink, binding: Binding, what: str, name: str) -> None:
    bound, wanted = link.properties.get(name), binding.partition
    if wanted is None:
        return
    # tolerate an answer with a group and no partition; the reader checks the annotations anyway
    if bound is None and binding.consumer_group is None:
        raise RemoteProtocolError(
            f"{what}: partition '{wanted}' was asked for, the peer left the link unbound (ES-105, ES-106)"
        )
    if bound is not None and str(bound) != wanted:
        raise RemoteProtocolError(f"{what}: partition '{wanted}' was asked for, the peer bound '{bound}' (ES-105)")


def _check_log(dialect: Dialect, what: str, forget: Callable[[], None], first: MessageBlock) -> None:
    """Check that a message has the annotation that only logs give their messages.

    Raises:
        RemoteProtocolError: it does not.
    """
    if decode_columns(first, ("offset",), places=dialect.places)["offset"].null_count:
        forget()
        raise RemoteProtocolError(
            f"{what}: a delivery has no {dialect.places.offset.key} annotation (ES-300): it is not from a log of "
            f"{dialect.title}. It was not accepted, so a queue keeps it: name a stream in option 'stream'"
        )


def _same_filter(sent: Described, got: Any) -> bool:
    if not isinstance(got, Described):
        return False
    names = next((each for each in _FILTERS if sent.descriptor in each), (sent.descriptor,))
    if got.descriptor not in names:
        return False
    if isinstance(sent.value, Mapping):
        return isinstance(got.value, Mapping) and {str(k): v for k, v in got.value.items()} == {
            str(k): v for k, v in sent.value.items()
        }
    return bool(got.value == sent.value)


def _words(described: Any) -> str:
    return "nothing" if described is None else repr(getattr(described, "value", described))
