"""Defines what Spark's readers need of a client of a log: the protocol ``LogClient``, its requests and its answers.

The clients of AMQP and RabbitMQ streams implement it, and so does the tests' fake. Requests and answers are frozen
values, which can be pickled and hold no socket.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import pyarrow as pa

from spark_streams.endpoint import Node
from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.filters.tree import Expression
from spark_streams.offsets import MAX_OFFSET, first_wanted, format_offset, offset_number, start_hint
from spark_streams.position import After, At, Earliest, Position
from spark_streams.rows import FULL_MESSAGE_SCHEMA

PRODUCT: Final = "spark-streams"
"""The name of our log's doors: the AMQP door sends it as ``product``, the RabbitMQ one as ``implementation``."""


@dataclass(frozen=True)
class Bounds:
    """What a partition retains.

    Args:
        earliest: offset of the oldest retained event, None when there is none.
        latest: offset of the newest retained event (inclusive, A-18), None when there is none.
        truncated: offset of the newest event that retention has removed; None when there is none, or when the peer
            does not report it (extension ``x-opt-truncated-offset``).
        tells_truncated: whether the peer reports ``truncated`` at all.
        closed: whether the partition was split and takes no more events (extension ``x-opt-closed``).
        starts_after: the closed partition with the events before its first one, None where there is none
            (``x-opt-starts-after``).
        cursor_from: removed partitions whose events were redistributed to it and others (``x-opt-cursor-from``).
    """

    earliest: str | None
    latest: str | None
    truncated: str | None = None
    tells_truncated: bool = False
    closed: bool = False
    starts_after: str | None = None
    cursor_from: tuple[str, ...] = ()

    @classmethod
    def of_numbers(cls, first: int, last: int | None) -> Bounds:
        """Return the bounds of a partition by the first number that it may have, and the last one, None for none."""
        truncated = format_offset(first - 1) if first > 0 else None
        if last is None or last < first:
            return cls(None, None, truncated, tells_truncated=True)
        return cls(format_offset(first), format_offset(last), truncated, tells_truncated=True)

    def count_from(self, position: Position) -> int | None:
        """Return how many offsets there are from a position on, where they are numbers; None for no offset."""
        if not isinstance(position, (Earliest, At, After)):
            return None
        if self.earliest is None or self.latest is None:
            return 0
        first = max(offset_number(self.earliest), first_wanted(position) or 0)
        return max(0, offset_number(self.latest) + 1 - first)


@dataclass(frozen=True)
class StreamDescription:
    """The answer of ``<stream>/$info``.

    Args:
        stream: the stream's name.
        incarnation: identity of this creation of the stream, None where the peer gives none (extension
            ``x-opt-incarnation``).
        partitions: partition identifier to bounds.
        unavailable: partitions that the stream's description lists and that do not exist: partition identifier to the
            peer's answer. None of them is in ``partitions``.
        offset_digits: how many decimal digits every offset of the stream has, leading zeros included; None when the
            form of its offsets is unknown.
        max_readers: how many links may read a partition at a time; None for any number.
        dialect: the dialect that the peer answered in, where its protocol has several; None where it has one.
    """

    stream: str
    incarnation: str | None
    partitions: dict[str, Bounds] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    offset_digits: int | None = None
    max_readers: int | None = None
    dialect: str | None = None

    def no_offset(self, text: str) -> str | None:
        """Return why no event of the stream can have the offset ``text``; None when one may.

        An offset of another form would still be compared: '5' sorts after every offset of 20 digits.
        """
        digits = self.offset_digits
        if digits is None:
            return None
        is_offset = re.fullmatch("[0-9]{1,40}", text) is not None and int(text) <= MAX_OFFSET
        if is_offset and len(text) == digits:
            return None
        meant = f"{int(text) if is_offset else 42:0{digits}d}"
        return (
            f"no event there can have the offset '{text}': expected {digits} decimal digits, up to 2^63-1, such as "
            f"'{meant}'{start_hint(text)}"
        )

    def __post_init__(self) -> None:
        """Check the names of the partitions, which messages, log lines and rows show.

        Raises:
            RemoteProtocolError: a name has characters that are not printable, such as a newline.
        """
        for name in (*self.partitions, *self.unavailable):
            if not name.isprintable():
                raise RemoteProtocolError(
                    f"stream '{self.stream}' has a partition {name!r:.100}: expected printable characters"
                )


@dataclass(frozen=True)
class RangeRead:
    """One contiguous range of one partition, and the columns to decode of it.

    Args:
        stream: the stream's name.
        partition: the partition's identifier.
        start: where to begin; ``After`` excludes its offset, ``At`` includes it.
        end: offset of the last event of the range, inclusive.
        columns: names of ``rows.FULL_MESSAGE_SCHEMA`` in the order of the rows; other columns are not decoded.
        fail_on_data_loss: whether lost events raise ``PositionLost``; otherwise the client logs a warning.
        timestamp_overflow: the treatment of an instant beyond int64 microseconds, which AMQP's milliseconds can hold:
            ``fail`` ends the read with an error, ``null`` makes the cell null.
        filter: the rows are the events for which it is true; None for all. The client pushes what the peer accepts, and
            checks the rest itself, so that the rows are the same whatever the peer can do.
    """

    stream: str
    partition: str
    start: Earliest | At | After
    end: str
    columns: tuple[str, ...]
    fail_on_data_loss: bool = True
    timestamp_overflow: Literal["fail", "null"] = "fail"
    filter: Expression | None = None

    def __post_init__(self) -> None:
        """Check the columns.

        Raises:
            LocalProtocolError: there is no such column.
        """
        unknown = set(self.columns) - set(FULL_MESSAGE_SCHEMA.names)
        if unknown:
            raise LocalProtocolError(f"no such column: {', '.join(sorted(unknown))}")

    @property
    def what(self) -> str:
        """What is read, for messages."""
        return f"stream '{self.stream}' partition '{self.partition}'"


@dataclass(frozen=True)
class Pushdown:
    """How a filter is split between one peer and the client; a query logs it once.

    Both parts together are the whole filter: an event is a row when the peer sends it and the residual is true for it.

    Args:
        pushed: the part that the peer checks, in its own syntax; None for nothing.
        residual: the part that the client checks on every event that the peer delivers; None for nothing.
    """

    pushed: str | None
    residual: Expression | None


class OffsetWalk(Protocol):
    """A walk over the offsets of a partition, which does not decode bodies."""

    def take(self, n: int) -> list[str]:
        """Return the next ``n`` offsets, fewer when there are no more now."""

    def close(self) -> None:
        """Detach the link."""


class LogClient(AbstractContextManager["LogClient"], Protocol):
    """One connection to a log, used by one thread."""

    @property
    def numeric_offsets(self) -> bool:
        """Whether offsets are numbers, written as decimal digits of a fixed width.

        If so, nobody calls ``remaining``: callers compute its result. If not, the client is an ``OpaqueLogClient``.
        """

    @property
    def advertised(self) -> tuple[Node, ...]:
        """Nodes that the peer has named so far, to try when no host of ``url`` answers; mostly none."""

    def describe(self, stream: str, *, certain: Collection[str] = ()) -> StreamDescription:
        """Return the partitions and their bounds.

        Args:
            stream: the stream's name.
            certain: partitions whose bounds must not come from a node that lags behind others.
        """

    def remaining(self, stream: str, positions: Mapping[str, Position]) -> dict[str, int | None]:
        """Return the number of events after each position, from it on for ``At``; None where the peer has no count."""

    def first_at_time(self, stream: str, partition: str, timestamp_ms: int) -> str | None:
        """Return the offset of the first event, in log order, that is not earlier; None when there is none."""

    def first_matching(self, stream: str, partition: str, expression: Expression) -> str | None:
        """Return the offset of the first event, in log order, for which an expression is true; None if there is none.

        The peer checks what it can of the expression; the answer is the same without that.
        """

    def pushdown(self, stream: str, expression: Expression) -> Pushdown:
        """Return the parts of a filter that this peer and ``fetch`` would check; no event is read."""

    def log_identity(self, stream: str, offsets: Mapping[str, str]) -> dict[str, str | None]:
        """Return, for each partition, a text that identifies the content at an offset: other content has another text.

        Two different answers for one partition and offset mean that the log was deleted and created again in between,
        or restored from an older copy and continued; equal answers mean nearly always that it was not.

        Args:
            stream: the stream's name.
            offsets: partition to the offset, inclusive, of an event or of anything else that uses up an offset.

        Returns:
            A text for each partition; None or left out where there is nothing at the offset (any more). Empty where
            the peer gives no such text.
        """

    def fetch(self, read: RangeRead, *, max_rows: int = ..., max_bytes: int = ...) -> Iterator[pa.RecordBatch]:
        """Return the rows of a range that match ``read.filter``, columns in the order of ``read.columns``.

        The client finds the end of the range, and detects lost events, as if there were no filter.
        """


class OpaqueLogClient(LogClient, Protocol):
    """One connection to a log whose offsets have an order and no other meaning."""

    def offsets(self, stream: str, partition: str, start: Position, end: str | None) -> OffsetWalk:
        """Return a walk from ``start`` to ``end`` (inclusive; None for no end)."""
