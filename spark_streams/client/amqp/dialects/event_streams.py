"""Asks peers of event streams about their logs: by the information source ``<stream>/$info``, and by filters.

::

    {"partitions": [{"partition": symbol, "earliest-offset": symbol|null, "latest-offset": symbol|null,
                     "x-opt-truncated-offset": symbol|null, "x-opt-remaining": ulong, "x-opt-closed": true,
                     "x-opt-starts-after": symbol, "x-opt-cursor-from": [symbol, …], "x-opt-witness": string}, …],
     "x-opt-incarnation": string}

An information source about the whole log, ``$streams``, is an extension too: ``{"x-opt-streams": [string, …]}``.

The keys that begin with ``x-opt-`` are extensions of the reference log. It sends ``x-opt-remaining`` in answer to the
link property ``x-opt-positions`` (partition to the offset after which reading continues), and ``x-opt-witness`` in
answer to ``x-opt-witnesses`` (partition to an event's offset). With ``x-opt-named-only`` it describes only the
partitions that these properties name. It sends ``x-opt-closed``, ``x-opt-starts-after`` and ``x-opt-cursor-from`` where
partitions were split. The client ignores unknown keys (ES-406).

Spec: Event Stream Extensions §5.2, §6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Any, Final

from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.connections import Reached
from spark_streams.client.amqp.dialects import Inquiries, Receive
from spark_streams.client.amqp.links import Binding, attach_receiver
from spark_streams.client.amqp.management import Management
from spark_streams.client.amqp.offset_walk import first_message, first_offset
from spark_streams.client.amqp.pushdown import PushedFilter, push
from spark_streams.client.log_client import Bounds, RangeRead, StreamDescription
from spark_streams.errors import NotFound, Refused, RemoteProtocolError
from spark_streams.filters.tree import Expression
from spark_streams.offsets import OFFSET_DIGITS
from spark_streams.position import After, At, Earliest, Latest, Position
from spark_streams.wire.amqp.message import AMQP_VALUE, decode_sections
from spark_streams.wire.amqp.values import Symbol

STREAMS: Final = "$streams"
"""The address of our log's information source about the whole log; other peers have none."""
_POSITIONS: Final = "x-opt-positions"
_REMAINING: Final = "x-opt-remaining"
_WITNESSES: Final = "x-opt-witnesses"
_WITNESS: Final = "x-opt-witness"
_MAX_WITNESSES: Final = 64
"""The most offsets for which our log answers one request."""
_MAX_POSITIONS: Final = 256
"""The most positions of one request: they travel in an attach, which is one frame of limited size."""
_NAMED_ONLY: Final = "x-opt-named-only"
_TRUNCATED: Final = "x-opt-truncated-offset"
_INCARNATION: Final = "x-opt-incarnation"
_MAX_BYTES: Final = 16 << 20
"""Bytes of an answer at most: an entry has about 150 bytes, so this holds a hundred thousand partitions."""


def info_address(stream: str) -> str:
    """Return the address of a stream's information source."""
    return f"{stream}/$info"


def _some(wanted: Mapping[Any, Any], most: int) -> Iterator[dict[Any, Any]]:
    """Yield the entries in maps of ``most`` entries at most; one empty map where there are none."""
    left = iter(wanted.items())
    yield dict(islice(left, most))
    while some := dict(islice(left, most)):
        yield some


def _after(position: Position) -> str | None:
    if isinstance(position, Earliest):
        return "@earliest"
    return position.offset if isinstance(position, (After, At)) and position.offset.isascii() else None


def _ask(to: Reached, stream: str, properties: Mapping[str, Any]) -> Mapping[Any, Any]:
    """Return the answer of an information source."""
    connection, address = to.connection, to.at or info_address(stream)
    link = attach_receiver(connection, address, Binding(stream), properties=properties, max_bytes=_MAX_BYTES)
    with closing(link):
        block = first_message(link, f"{connection.endpoint.address}: no answer from '{address}'")
    assert block is not None
    body = dict(decode_sections(bytes(block.buffer[int(block.starts[0]) : int(block.ends[0])]))).get(AMQP_VALUE)
    if not isinstance(body, Mapping):
        raise RemoteProtocolError(f"'{address}': the answer's body is no amqp-value map (ES-403)")
    return {str(k): v for k, v in body.items()}


def _entries(answer: Mapping[Any, Any], stream: str, *, some: bool = True) -> dict[str, Mapping[str, Any]]:
    """Return a map from partition to entry; with ``some``, an answer without entries is an error."""
    entries = answer.get("partitions")
    if not isinstance(entries, list) or (some and not entries) or not all(isinstance(e, Mapping) for e in entries):
        raise RemoteProtocolError(f"'{info_address(stream)}': 'partitions' is no list of maps (ES-404)")
    named = [{str(k): v for k, v in entry.items()} for entry in entries]
    if not all(isinstance(entry.get("partition"), str) for entry in named):
        raise RemoteProtocolError(f"'{info_address(stream)}': an entry without 'partition' (ES-405)")
    return {str(entry["partition"]): entry for entry in named}


def _names(value: object) -> tuple[str, ...]:
    return tuple(str(name) for name in value) if isinstance(value, (list, tuple)) else ()


def _offset(entry: Mapping[str, Any], key: str, stream: str) -> str | None:
    offset = entry.get(key)
    if offset is None or isinstance(offset, str):
        return None if offset is None else str(offset)
    raise RemoteProtocolError(f"'{info_address(stream)}': '{key}' is no symbol (ES-405)")


class EventStreamsInquiries(Inquiries):
    """See ``Inquiries``."""

    def describe(self, to: Reached, stream: str) -> StreamDescription:
        """Return the partitions of a stream and what they retain, as the peer reports it now."""
        answer = _ask(to, stream, {})
        partitions = {
            partition: Bounds(
                _offset(entry, "earliest-offset", stream),
                _offset(entry, "latest-offset", stream),
                _offset(entry, _TRUNCATED, stream),
                _TRUNCATED in entry,
                entry.get("x-opt-closed") is True,
                _offset(entry, "x-opt-starts-after", stream),
                _names(entry.get("x-opt-cursor-from")),
            )
            for partition, entry in _entries(answer, stream).items()
        }
        incarnation = answer.get(_INCARNATION)
        known = str(incarnation) if isinstance(incarnation, str) else None
        # Offsets are opaque (ES-301), except those of our log, whose form this project defines.
        digits = OFFSET_DIGITS if to.connection.peer.is_reference_log else None
        return StreamDescription(stream, known, partitions, offset_digits=digits, dialect=to.connection.dialect.name)

    def list_streams(self, connection: Connection) -> list[str] | None:
        """Return the streams of our log that we may read, in the order of their names; None for another peer."""
        # Other peers might take the address for a queue's, and create the queue.
        if not connection.peer.is_reference_log:
            return None
        try:
            names = _ask(Reached(connection, STREAMS), STREAMS, {}).get("x-opt-streams")
        except NotFound:
            return None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise RemoteProtocolError(f"'{STREAMS}': 'x-opt-streams' is no list of strings")
        return [str(name) for name in names]

    def settings(self, connection: Connection, stream: str) -> dict[str, Any]:
        """Return the settings of a stream of our log; other peers have no request for them."""
        what = f"the settings of stream '{stream}'"
        if not connection.peer.is_reference_log:
            context = f"{what} at {connection.endpoint.address}"
            raise Refused("not supported", "AMQP has no request for the settings of an event stream", context)
        with closing(Management(connection)) as management:
            return management.settings(stream, what)

    def remaining(self, to: Reached, stream: str, positions: Mapping[str, Position]) -> dict[str, int | None]:
        """Return how many events there are after each position; None where the peer does not report it, or cannot."""
        after = {p: _after(at) for p, at in positions.items()}
        wanted = {Symbol(p): Symbol(offset) for p, offset in after.items() if offset is not None}
        counts = {p: 0 if isinstance(at, Latest) else None for p, at in positions.items()}
        for asked in _some(wanted, _MAX_POSITIONS) if to.connection.peer.is_reference_log else [wanted]:
            properties = {_POSITIONS: asked} if asked else {}
            alone = len(asked) == len(wanted)
            answer = _ask(to, stream, properties if alone else {**properties, _NAMED_ONLY: True})
            for partition, entry in _entries(answer, stream, some=alone).items():
                count = entry.get(_REMAINING)
                if partition in counts and isinstance(count, int) and after[partition] is not None:
                    # The read includes the event at the position itself, which the peer did not count.
                    counts[partition] = int(count) + (1 if isinstance(positions[partition], At) else 0)
        return counts

    def log_identity(self, to: Reached, stream: str, offsets: Mapping[str, str]) -> dict[str, str | None]:
        """Return a text for each event, None for one that is not retained; empty for other peers than our log."""
        if not to.connection.peer.is_reference_log:
            return {}
        found: dict[str, str | None] = dict.fromkeys(offsets)
        wanted = {Symbol(p): Symbol(offset) for p, offset in offsets.items()}
        for asked in _some(wanted, _MAX_WITNESSES) if wanted else ():
            # Without ``x-opt-named-only``, each of the answers would describe all partitions.
            answer = _ask(to, stream, {_WITNESSES: asked, _NAMED_ONLY: True})
            for partition, entry in _entries(answer, stream, some=False).items():
                text = entry.get(_WITNESS)
                if partition in asked and isinstance(text, str):
                    found[partition] = str(text)
        return found

    def first_at_time(
        self, connection: Connection, binding: Binding, timestamp_ms: int, receive: Receive
    ) -> str | None:
        """Return the offset of the first event whose timestamp passes a filter.

        Raises:
            StartRefused, Refused: the peer has no filter for the instant.
        """
        starts = connection.dialect.start_filters_at_time(timestamp_ms)
        return first_offset(receive(binding, starts))

    def push(self, expression: Expression | None, connection: Connection, read: RangeRead | None) -> PushedFilter:
        """See ``pushdown.push``."""
        return push(expression, connection, read)
