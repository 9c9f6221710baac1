"""Defines what a dialect decides: the differences between the peers whose logs are read and written over AMQP 1.0.

A dialect is one frozen value, for the client and for the door alike; it opens nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple

from spark_streams.position import EARLIEST, After, At, Earliest
from spark_streams.wire.amqp.message import DELIVERY_ANNOTATIONS
from spark_streams.wire.amqp.values import Described

Kind = Literal["symbol", "string", "long", "timestamp"]
"""The AMQP type of an annotation, as the dialect writes it. Either kind of text is read, and a null as nothing."""


class Place(NamedTuple):
    """The place of a value in a message that the log, or its router, uses.

    Args:
        section: the code of the section: that of the delivery annotations or that of the message annotations.
        key: the annotation's key, a symbol.
        kind: the AMQP type of the value.
    """

    section: int
    key: str
    kind: Kind


@dataclass(frozen=True)
class Places:
    """Where messages have the values of rows; None for values that the dialect's messages do not have.

    Args:
        offset: the event's place in its partition; a ``long`` becomes a text of 20 digits in rows.
        timestamp: when the log took the event.
        source_partition: the partition that the event comes from.
        key: the grouping key; where it is absent, property group-id is the key.
        target_partition: the partition that a producer sends the event to.
        filter_value: what the broker filters by, see RabbitMQ's filter values.
        prefix: the prefix that the keys of a producer's message annotations must have; empty for any.
        broker_keys: message annotations that the peer itself sets: producers do not send them, as they give an event's
            origin.
        other_keys: message annotations that are the key in another dialect: producers do not send them beside a key.
        null_values: whether maps may have null values.
    """

    offset: Place
    timestamp: Place | None = None
    source_partition: Place | None = None
    key: Place | None = None
    target_partition: Place | None = None
    filter_value: Place | None = None
    prefix: str = ""
    broker_keys: frozenset[str] = frozenset()
    other_keys: frozenset[str] = frozenset()
    null_values: bool = True

    @cached_property
    def by_column(self) -> Mapping[str, Place]:
        """The columns of ``decode_columns`` that are annotations, and their places."""
        named = {
            "offset": self.offset,
            "source_partition": self.source_partition,
            "target_partition": self.target_partition,
            "timestamp": self.timestamp,
            "timestamp_ms": self.timestamp,
            "group_key": self.key,
        }
        return {name: place for name, place in named.items() if place is not None}

    @cached_property
    def head(self) -> int:
        """The code of the last section that the annotations of the log itself are in."""
        placed = (self.offset, self.timestamp, self.source_partition)
        return max(DELIVERY_ANNOTATIONS, *(place.section for place in placed if place is not None))


class StartFilter(NamedTuple):
    """A filter for the position where a link begins.

    Args:
        filter: the described filter.
        early: whether it begins before the wanted position, so that the client has to drop the first events.
    """

    filter: Described
    early: bool = False


class Conditions(NamedTuple):
    """Error conditions by meaning, beside those that mean the same in all dialects; a door sends the first of each.

    Args:
        not_found: there is no such stream, partition or group.
        stolen: another consumer took the partition.
        position_lost: the log does not have the position where the link was to begin.
        passes: temporary conditions: trying again helps, after a pause.
        busy: conditions of a temporary rejection, and for how many seconds the sender waits before it sends again.
        advice: phrases of a peer's description, and what to do about the fault that they name.
        unreadable: the condition by which the peer ends a reader's session at a message that it cannot show.
    """

    not_found: tuple[str, ...] = ("amqp:not-found",)
    stolen: tuple[str, ...] = ("amqp:link:stolen",)
    position_lost: tuple[str, ...] = ()
    passes: tuple[str, ...] = ("amqp:connection:forced", "amqp:resource-locked", "amqp:link:detach-forced")
    busy: tuple[tuple[str, float], ...] = ()
    advice: tuple[tuple[str, str], ...] = ()
    unreadable: str | None = None


class Seen(NamedTuple):
    """The signs that a peer has shown up to its open.

    Args:
        offered: the capabilities that its open offers.
        product: ``product`` of its open's properties; empty for none.
        mechanisms: the SASL mechanisms that it offers.
        host: the name that the client calls it by.
    """

    offered: tuple[str, ...] = ()
    product: str = ""
    mechanisms: tuple[str, ...] = ()
    host: str = ""


@dataclass(frozen=True)
class LinkProperties:
    """The properties of a link's attach; None for a property that the dialect gives elsewhere, or not at all.

    Args:
        partition: binds the link to a partition, a symbol; the peer's answer has it too.
        consumer_group: the group that a receiver joins, a string.
        epoch: the epoch with which a receiver claims its partition, a long.
    """

    partition: str | None = None
    consumer_group: str | None = None
    epoch: str | None = None


StartFilters = Callable[[Earliest | At | After, Earliest | After], tuple[StartFilter, ...]]
"""The filters that begin at the first position, the preferred one first; where a peer has no filter for it, at the
second, an earlier one."""


@dataclass(frozen=True)
class Dialect:
    """What differs between the kinds of peers.

    Args:
        name: the value of option ``dialect``.
        title: the name of such a peer for people.
        recognised: whether a peer that has shown this speaks the dialect.
        sign: the text for what shows that.
        places: where messages have offset, timestamp, partitions and key.
        source_address: the address of a receiver, by stream, partition and consumer group (None if there is none).
        target_address: the address of a sender, by stream and partition (None to leave the choice to the peer).
        link_properties: the names of the properties of attach.
        start_name: the key of the start filter in the filter set.
        start_filters: the filters that begin at a position.
        start_filters_at_time: the filters that match events not earlier than an instant in milliseconds.
        echoes_start: whether the peer's attach must echo the start filter, as the peer ignores the filter otherwise.
        conditions: error conditions by their meaning.
        numeric_offsets: whether offsets are numbers, which rows have with 20 digits; between two events, numbers may
            belong to none.
        drains: whether the peer gives credit back when a receiver drains it.
        virtual_hosts: whether a url may name a virtual host.
        groups: whether a receiver joins a consumer group: never; if one is named, which then has one reader for a
            partition at a time, and an epoch needs it; or always, by default one without a name of its own.
        event_stream_filters: whether a peer checks the filters of event streams.
        sql_filters: whether a peer checks full SQL filters; None where it shows that itself.
        partition_in_address: whether a producer names a partition in its address, and then no key beside it.
        batch_format: the message-format of a batch, each of whose data sections is a whole message, and whose message
            annotations have the key of all of them, if they have one; None where the peer takes single messages only.
        tokens: how the peer takes a token in place of a password: over ``$cbs`` after open, or as the password of SASL
            PLAIN; None for not at all.
    """

    name: str
    title: str
    recognised: Callable[[Seen], bool]
    sign: str
    places: Places
    source_address: Callable[[str, str | None, str | None], str]
    target_address: Callable[[str, str | None], str]
    link_properties: LinkProperties
    start_name: str
    start_filters: StartFilters
    start_filters_at_time: Callable[[int], tuple[StartFilter, ...]]
    echoes_start: bool
    conditions: Conditions
    numeric_offsets: bool
    drains: bool
    virtual_hosts: bool = False
    groups: Literal["never", "named", "always"] = "never"
    event_stream_filters: bool = False
    sql_filters: bool | None = False
    partition_in_address: bool = False
    batch_format: int | None = None
    tokens: Literal["cbs", "password"] | None = None

    def starts(self, at: Earliest | At | After, behind: Earliest | After = EARLIEST) -> tuple[StartFilter, ...]:
        """Return the filters that begin at ``at``, see ``StartFilters``."""
        return self.start_filters(at, behind)


AUTO: Final = "auto"
"""The value of option ``dialect`` with which the client recognises the peer's dialect."""
