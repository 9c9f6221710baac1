"""AMQP event logs and RabbitMQ streams as peers of the command line, which reads, writes and describes them.

These peers report where each partition ends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.cli.peers.peer import TIMEOUT_MS, Peer, PeerReader, PeerWriter, ReadRequest
from spark_streams.client import (
    AmqpClient,
    Bounds,
    RabbitClient,
    RabbitPublishing,
    RangeRead,
    StreamDescription,
    TaskPublisher,
    encode_columns,
)
from spark_streams.client.asked_times import Asked, warn_of_times
from spark_streams.errors import NotFound, OptionError, PositionLost, Refused
from spark_streams.options.positions import numbered_position
from spark_streams.options.values import instant_ms
from spark_streams.position import EARLIEST, After, At, AtTime, Earliest
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns
from spark_streams.wire.amqp.dialects import AUTO, DIALECTS
from spark_streams.wire.columnar.arrays import layout

_DECIDED: Final = frozenset({"stream", "partition", "offset", "timestamp"})
"""Columns that the target of a copy decides."""
_ARGUMENTS: Final = {
    "retention_max_bytes": "max-length-bytes",
    "retention_max_age_ms": "max-age",
    "segment_max_bytes": "stream-max-segment-size-bytes",
}
"""Setting of ``StreamConfig`` to RabbitMQ's argument of a stream."""


def in_order(partitions: Mapping[str, Bounds]) -> list[tuple[str, Bounds]]:
    """Return partitions with their bounds, sorted so that '2' precedes '10'."""
    return sorted(partitions.items(), key=lambda item: (len(item[0]), item[0]))


def splits(held: Any) -> dict[str, Any]:
    """Return the fields about the splits of a partition, of a peer's description or of a log; empty without splits."""
    found = {"closed": held.closed, "starts_after": held.starts_after, "cursor_from": list(held.cursor_from)}
    return found if any(found.values()) else {}


class LogPeer(Peer):
    """A stream of a peer whose client is a ``LogClient``.

    Attributes:
        kind: the name of this kind of peer.
        no_list: the reason why the user must name streams that the peer does not list.
    """

    kind: ClassVar[str]
    no_list: ClassVar[str]
    copied: ClassVar = (*Peer.columns, "message")

    @abstractmethod
    def client(self) -> AmqpClient | RabbitClient:
        """Return a client of the stream, or of the peer itself if none is named; the caller closes it.

        Raises:
            SparkStreamsError: the request that finds out the kind of the stream failed.
        """

    @abstractmethod
    def stream_kind(self, description: StreamDescription) -> str:
        """Return the name of this kind of stream."""

    @contextmanager
    def open_reader(self, request: ReadRequest) -> Iterator[PeerReader]:
        """Return a context with a reader; see ``Peer.open_reader``."""
        with self.client() as client:
            yield _LogReader(client, self.stream, request)

    def about(self) -> dict[str, Any] | None:
        """Return the peer's facts and streams, or the reason why the streams are unknown; see ``Peer.about``."""
        with self.client() as client:
            about = {"kind": self.kind, "peer": dict(client.capabilities()), "streams": client.streams()}
        if about["streams"] is None:
            name_them = f"Name those to show: spark-streams inspect {self.endpoint.url} STREAM..."
            about["why"] = f"{self.no_list}. {name_them}"
        return about

    def describe(self) -> dict[str, Any]:
        """Return the description of the stream; see ``Peer.describe``."""
        with self.client() as client:
            description = client.describe(self.stream)
            events = client.remaining(self.stream, dict.fromkeys(description.partitions, EARLIEST))
            about: dict[str, Any] = dict(client.capabilities())
        if description.incarnation is not None:
            about["created as"] = description.incarnation
        return {
            "kind": self.stream_kind(description),
            "peer": about,
            "partitions": [
                {
                    "partition": name,
                    "events": events.get(name),
                    "earliest": bounds.earliest,
                    "latest": bounds.latest,
                    "removed up to": bounds.truncated,
                    **splits(bounds),
                }
                for name, bounds in in_order(description.partitions)
            ],
            "unavailable": description.unavailable,
        }

    def create(self, partitions: int | None, settings: Mapping[str, str | int]) -> bool:
        """Create the stream; see ``Peer.create``."""
        with replace(self, stream="").client() as client:
            return client.create(self.stream, partitions, self.arguments(settings))

    def delete(self) -> None:
        """Delete the stream; see ``Peer.delete``."""
        with self.client() as client:
            client.delete(self.stream)

    @abstractmethod
    def arguments(self, settings: Mapping[str, str | int]) -> dict[str, str]:
        """Return settings of a new stream as arguments of the protocol.

        Raises:
            OptionError: the protocol lacks one of them.
        """


class AmqpPeer(LogPeer):
    """An event stream of an AMQP peer."""

    kind: ClassVar = "AMQP peer"
    no_list: ClassVar = "AMQP has no way to ask a peer which event streams it has"

    def client(self) -> AmqpClient:
        """Return a client of the peer; the caller closes it."""
        dialect = DIALECTS.get(self.options.dialect or AUTO)
        return AmqpClient(self.endpoint, timeout_ms=TIMEOUT_MS, dialect=dialect)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the stream; see ``Peer.settings``."""
        with self.client() as client:
            return client.settings(self.stream)

    def arguments(self, settings: Mapping[str, str | int]) -> dict[str, str]:
        """Return the settings as they are: those of our log."""
        return {name: str(value) for name, value in settings.items()}

    def stream_kind(self, description: StreamDescription) -> str:
        """Return the name of this kind of stream."""
        # Only RabbitMQ's partitions, which are queues, have names that begin with the super stream's name.
        is_super = bool(description.partitions) and all(p.startswith(f"{self.stream}-") for p in description.partitions)
        return "RabbitMQ super stream" if is_super else "AMQP event stream"

    @contextmanager
    def open_writer(self) -> Iterator[PeerWriter]:
        """Return a context with a writer; see ``Peer.open_writer``."""
        with self.client() as client:
            yield PeerWriter(client.publisher(self.stream), lambda rows: (client.encode(_sent(rows)),))


class RabbitPeer(LogPeer):
    """A stream or a super stream of a RabbitMQ broker."""

    kind: ClassVar = "RabbitMQ broker"
    no_list: ClassVar = "the RabbitMQ stream protocol has no command that lists the streams of a broker"

    def client(self) -> RabbitClient:
        """Return a client of the stream or super stream, or of the broker; see ``LogPeer.client``."""
        is_super_stream = self.names_stream and self.is_super_stream()
        return RabbitClient(self.endpoint, super_stream=is_super_stream, timeout_ms=TIMEOUT_MS)

    def arguments(self, settings: Mapping[str, str | int]) -> dict[str, str]:
        """Return settings as RabbitMQ's arguments of a stream."""
        found: dict[str, str] = {}
        for name, value in settings.items():
            if name not in _ARGUMENTS:
                option = f"--{name.replace('_', '-')}"
                raise OptionError(
                    option, "RabbitMQ's stream protocol has no such setting: give the url of another door"
                )
            found[_ARGUMENTS[name]] = str(value)
            if name == "retention_max_age_ms":
                seconds, rest = divmod(int(value), 1_000)
                if rest:
                    raise OptionError("--retention-ms", f"{value} is no whole second, which RabbitMQ's protocol wants")
                found[_ARGUMENTS[name]] = f"{seconds}s"
        return found

    def settings(self) -> dict[str, Any]:
        """Refuse, as the protocol has no request for the settings; see ``Peer.settings``."""
        where = "our log and RabbitMQ 4 tell them over AMQP, with a url amqp://host:port"
        raise Refused("not supported", f"RabbitMQ's stream protocol has no request for settings: {where}", str(self))

    def is_super_stream(self) -> bool:
        """Return whether the broker has a super stream of this name; False also if there is no such stream at all."""
        with RabbitClient(self.endpoint, super_stream=True, timeout_ms=TIMEOUT_MS) as client:
            try:
                client.partitions(self.stream)
            except NotFound:
                return False
        return True

    def stream_kind(self, description: StreamDescription) -> str:
        """Return the name of this kind of stream; the one partition of a plain stream is the stream itself."""
        plain = {*description.partitions, *description.unavailable} == {self.stream}
        return "RabbitMQ stream" if plain else "RabbitMQ super stream"

    @contextmanager
    def open_writer(self) -> Iterator[PeerWriter]:
        """Return a context with a writer; see ``Peer.open_writer``."""
        super_stream = self.stream if self.is_super_stream() else None
        if super_stream is None:
            with RabbitClient(self.endpoint, timeout_ms=TIMEOUT_MS) as client:
                client.check(self.stream)

        def arguments(rows: pa.RecordBatch) -> tuple[pa.Array, pa.Array | str, None]:
            # The partition replaces a missing key, so that events without a key stay together and in their order.
            keys = pc.coalesce(rows.column("key"), rows.column("partition"))
            return encode_columns(_sent(rows)), self.stream if super_stream is None else keys, None

        how = RabbitPublishing(super_stream=super_stream, request_timeout_ms=TIMEOUT_MS)
        with closing(TaskPublisher(self.endpoint, how, None)) as publisher:
            yield PeerWriter(publisher, arguments)


class _LogReader(PeerReader):
    """A reader of a ``LogPeer``'s stream."""

    _client: AmqpClient | RabbitClient

    def _begin(self) -> None:
        described = self._client.describe(self._stream)
        self._incarnation = described.incarnation
        bounds = self._partitions()
        self._positions = {p: self._position(p, bounds[p], described) for p in bounds}
        word, operand = self._request.position
        if word == "timestamp":
            at = AtTime(instant_ms("--from", operand))
            starts = [Asked(p, at, self._positions[p], bounds[p]) for p in bounds]
            warn_of_times(f"stream '{self._stream}'", "--from", starts)

    @property
    def positions(self) -> dict[str, str]:
        words = {At: "offset:", After: "after:"}
        return {
            p: "earliest" if isinstance(at, Earliest) else f"{words[type(at)]}{at.offset}"
            for p, at in self._positions.items()
        }

    def left(self) -> int | None:
        counts = self._client.remaining(self._stream, self._positions).values()
        return None if any(count is None for count in counts) else sum(count or 0 for count in counts)

    def new_events(self) -> Iterator[pa.RecordBatch]:
        for partition, bounds in self._partitions().items():
            position = self._positions.get(partition, EARLIEST)
            if bounds.latest is None or (isinstance(position, (At, After)) and _beyond(position, bounds.latest)):
                continue
            where = (self._stream, partition, position, bounds.latest)
            read = RangeRead(*where, self._request.columns_read, self._request.fail_on_loss, "null")
            for batch in self._client.fetch(read):
                self._positions[partition] = After(batch.column("offset")[-1].as_py())
                yield batch
            self._positions[partition] = After(bounds.latest)

    def _partitions(self) -> dict[str, Bounds]:
        """Return the requested partitions and their current bounds."""
        description = self._client.describe(self._stream)
        if description.incarnation != self._incarnation:
            raise PositionLost(
                self._stream, None, "in the stream as it was", "it was deleted and created again under its name"
            )
        only, partitions = self._request.only, description.partitions
        if only is None:
            return dict(in_order(partitions))
        if only not in partitions:
            known = ", ".join(sorted(partitions))
            raise NotFound("amqp:not-found", f"there are: {known}", f"stream '{self._stream}' partition '{only}'")
        return {only: partitions[only]}

    def _position(self, partition: str, bounds: Bounds, described: StreamDescription) -> Earliest | At | After:
        end = EARLIEST if bounds.latest is None else After(bounds.latest)
        word, operand = self._request.position
        if word == "earliest":
            return EARLIEST
        if word == "latest":
            return end
        if word == "timestamp":
            found = self._client.first_at_time(self._stream, partition, instant_ms("--from", operand))
            return end if found is None else At(found)
        if self._client.numeric_offsets:
            position = numbered_position("--from", partition, {"at" if word == "offset" else "after": operand})
            assert isinstance(position, (At, After))
            return position
        fault = described.no_offset(operand)
        if fault is not None:
            raise OptionError("--from", f"'{self._request.start}': {fault}")
        return At(operand) if word == "offset" else After(operand)


def _beyond(position: At | After, latest: str) -> bool:
    return position.offset > latest or (isinstance(position, After) and position.offset == latest)


def _sent(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns that are written: all but those that the target decides.

    An event that columns cannot express is sent as it is stored: one with non-ASCII text in a symbol, which RabbitMQ
    stores, or with an instant that no row can show.
    """
    columns = {name: rows.column(name) for name in rows.schema.names if name not in _DECIDED}
    message = columns.pop("message", None)
    if message is not None:
        whole, properties = _symbols_beyond_ascii(rows), columns["properties"]
        there = np.flatnonzero(np.asarray(properties.is_valid()))
        whole[there] |= _lost_instants(properties.take(pa.array(there)), message.take(pa.array(there)))
        if whole.any():
            columns["message"] = pc.if_else(pa.array(whole), message, None)
    return columns


def _symbols_beyond_ascii(rows: pa.RecordBatch) -> NDArray[np.bool_]:
    annotations, properties = rows.column("message_annotations"), rows.column("properties")
    offsets = np.asarray(annotations.offsets)
    odd = ~np.asarray(pc.string_is_ascii(annotations.keys.slice(offsets[0], offsets[-1] - offsets[0])))
    found = np.zeros(rows.num_rows, np.bool_)
    found[np.repeat(np.arange(rows.num_rows), np.diff(offsets))[odd]] = True
    for name in ("content_type", "content_encoding"):
        found |= ~np.asarray(pc.fill_null(pc.string_is_ascii(pc.struct_field(properties, name)), True))
    return found


def _lost_instants(properties: pa.StructArray, message: pa.BinaryArray) -> NDArray[np.bool_]:
    """Return which events have an instant in the stored message that is null in the row's properties."""
    bounds, content = layout(message)
    stored = decode_columns(MessageBlock(content, bounds[:-1], bounds[1:]), ("properties_ms",))["properties_ms"]
    lost = np.zeros(len(message), np.bool_)
    for name in ("creation_time", "absolute_expiry_time"):
        there, shown = pc.struct_field(stored, name), pc.struct_field(properties, name)
        lost |= np.asarray(there.is_valid()) & np.asarray(shown.is_null())
    return lost
