"""Asks Azure Event Hubs about a hub's partitions through ``$management``; in a compacted hub, numbers are missing.

Spec: docs/specifications.md, H-3 to H-10.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Final

from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.connections import Reached
from spark_streams.client.amqp.credit import DrainTimer
from spark_streams.client.amqp.dialects import Inquiries, Receive
from spark_streams.client.amqp.links import Binding
from spark_streams.client.amqp.management import Management
from spark_streams.client.amqp.pushdown import PushedFilter, nothing_pushed
from spark_streams.client.amqp.receive_buffer import ReceiveBuffer
from spark_streams.client.log_client import Bounds, RangeRead, StreamDescription
from spark_streams.errors import Refused, RemoteProtocolError
from spark_streams.filters.tree import Expression
from spark_streams.offsets import OFFSET_DIGITS
from spark_streams.wire.amqp.columns.decode import decode_columns
from spark_streams.wire.amqp.dialects.event_hubs import HUB_TYPE, PARTITION_TYPE
from spark_streams.wire.amqp.values import Array

MAX_READERS: Final = 5
"""Receivers without an epoch that the service allows for a partition and group; one more ends in an error."""


class EventHubsInquiries(Inquiries):
    """See ``Inquiries``.

    Args:
        consumer_group: the group that the links of ``first_at_time`` join; None for the default one.
    """

    def __init__(self, consumer_group: str | None = None) -> None:
        self._group = consumer_group
        self._management: Management | None = None

    def describe(self, to: Reached, stream: str) -> StreamDescription:
        """See ``Inquiries``; the time of the hub's creation is its incarnation."""
        hub, partitions = self._read(to.connection, stream)
        created = hub.get("created_at")
        return StreamDescription(
            stream,
            None if created is None else str(int(created)),
            {name: _bounds(told, stream) for name, told in partitions.items()},
            offset_digits=OFFSET_DIGITS,
            max_readers=MAX_READERS,
            dialect=to.connection.dialect.name,
        )

    def settings(self, connection: Connection, stream: str) -> dict[str, Any]:
        """Refuse: Azure tells a hub's settings elsewhere."""
        raise Refused(
            "not supported",
            "Event Hubs tells no settings of a hub: Azure does, and our log does at its other doors, such as "
            "amqp://host:port",
            f"the settings of hub '{stream}' at {connection.endpoint.address}",
        )

    def log_identity(self, to: Reached, stream: str, offsets: Mapping[str, str]) -> dict[str, str | None]:
        """Return nothing: the hub's time of creation identifies it."""
        return {}

    def first_at_time(
        self, connection: Connection, binding: Binding, timestamp_ms: int, receive: Receive
    ) -> str | None:
        """Return the sequence number of the first event that was enqueued at an instant or later.

        The time of the partition's last event shows whether there was one; if one is still there, the peer sends it.
        """
        hub = binding.stream
        ask = partial(self._manage, connection, hub, [_hub(hub), _of(hub, str(binding.partition))])
        _, told = ask()
        if told.get("is_partition_empty") or int(told.get("last_enqueued_time_utc") or 0) < timestamp_ms:
            return None
        starts = connection.dialect.start_filters_at_time(timestamp_ms)
        link = receive(replace(binding, consumer_group=self._group), starts)
        buffer, timer = ReceiveBuffer(1, 64 << 10), DrainTimer(link)
        with closing(link):
            link.deliveries.flow(1)
            while not buffer.take(link.deliveries):
                link.check()
                if timer.look_due() and timer.has_no_more(ask()) and not link.deliveries.queued:
                    return None  # the last event has been compacted away
                connection.turn(timer.timeout_s(False))
        return str(decode_columns(buffer.block(), ("offset",), places=connection.dialect.places)["offset"][0])

    def push(self, expression: Expression | None, connection: Connection, read: RangeRead | None) -> PushedFilter:
        """Push nothing: the service has no filters."""
        return nothing_pushed(expression)

    def _read(self, connection: Connection, stream: str) -> tuple[Mapping[str, Any], dict[str, Mapping[str, Any]]]:
        (hub,) = self._manage(connection, stream, [_hub(stream)])
        ids = hub.get("partition_ids")
        names = list(ids.items) if isinstance(ids, Array) else ids
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise RemoteProtocolError(f"hub '{stream}': 'partition_ids' is no array of strings")
        asked = [str(name) for name in names]
        return hub, dict(
            zip(asked, self._manage(connection, stream, [_of(stream, name) for name in asked]), strict=True)
        )

    def _manage(self, connection: Connection, stream: str, requests: list[dict[str, str]]) -> list[Mapping[str, Any]]:
        if self._management is None or self._management.connection is not connection:
            self._management = Management(connection)
        connection.grant(stream)
        token = None if connection.grants is None else connection.grants.held(stream)
        if token is not None:
            requests = [{**each, "security_token": token} for each in requests]
        return self._management.read(requests, f"hub '{stream}'")


def _hub(stream: str) -> dict[str, str]:
    return {"type": HUB_TYPE, "name": stream}


def _of(stream: str, partition: str) -> dict[str, str]:
    return {"type": PARTITION_TYPE, "name": stream, "partition": partition}


def _bounds(told: Mapping[str, Any], stream: str) -> Bounds:
    """Return what a partition retains; in an empty one, the next event follows the last one that it ever had."""
    first, last = told.get("begin_sequence_number"), told.get("last_enqueued_sequence_number")
    if not isinstance(first, int) or not isinstance(last, int):
        raise RemoteProtocolError(f"hub '{stream}': a partition without numbers: expected 'begin_sequence_number' …")
    return Bounds.of_numbers(last + 1 if told.get("is_partition_empty") or last < first else first, last)
