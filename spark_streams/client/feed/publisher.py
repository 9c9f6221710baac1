"""Publishes the rows of one task to a feed as events, in parts, exactly once or at least once.

Delivery guarantee, with an identity: exactly once. Each part has the task's own reference, and a number made of the
micro-batch and the part's number, which are the same on every attempt; the log stores both together with the rows, and
adds nothing for a number that it has (docs/adr/0015-feed-sink.md)::

    number = batch (39 bits) | part (24 bits)

Without an identity: at least once. ``flush`` returns only when every row is confirmed, and raises otherwise.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final, Protocol

import pyarrow as pa

from spark_streams.client.digested_rows import PART_SCHEMA, Label, Part, Parts, RowLabels, TaskIdentity
from spark_streams.client.feed.client import FEED_BACKOFF
from spark_streams.client.feed.errors import first_line
from spark_streams.client.feed.http import FeedSession
from spark_streams.client.kept_connections import KeptConnections
from spark_streams.client.retry import Backoff, retrying
from spark_streams.endpoint import Endpoint
from spark_streams.errors import (
    DeliveryFailed,
    LocalProtocolError,
    NotFound,
    PeerError,
    Refused,
    RemoteProtocolError,
    SparkStreamsError,
)
from spark_streams.wire.feed.json_encode import encode_objects
from spark_streams.wire.feed.json_pointer import extract_text

_log = logging.getLogger(__name__)

ARROW: Final = "application/vnd.apache.arrow.stream"
_PART_BITS: Final = 24
MAX_PARTS: Final = 1 << _PART_BITS
"""Parts of one task of one micro-batch: some 64 TB."""
MAX_BATCH: Final = (1 << (63 - _PART_BITS)) - 1


class Target(Protocol):
    """A feed that rows can be published to."""

    def check(self) -> None:
        """Check that the feed exists and accepts rows.

        Raises:
            SparkStreamsError: it does not exist, accepts no rows, or does not answer.
        """

    def publish(
        self, rows: pa.RecordBatch, reference: str | None, number: int, digest: int
    ) -> tuple[int, int, int | None]:
        """Store rows, unless the feed has rows under this number.

        Args:
            rows: the rows, with ``PART_SCHEMA``.
            reference: the publisher's reference, None to store the rows on every call.
            number: the number of these rows, higher than those before.
            digest: the digest of the rows, 32 bits.

        Returns:
            How many rows the feed has stored now, how many it had already, and the highest number that it has for the
            reference; None without a reference.

        Raises:
            SparkStreamsError: the rows are not stored, or their state is unknown; ``retriable`` tells whether to
                publish them again.
        """

    def rest(self) -> None:
        """Release what others wait for, as the next rows may take long."""

    def close(self) -> None:
        """Release all resources."""


class HttpFeed:
    """A feed of the reference log's FeedAPI door, which takes rows by its publishing extension.

    Args:
        endpoint: the feed's address, with credentials and TLS.
        timeout_ms: how many milliseconds it may be silent.
        kept: the sessions of tasks that are over: one of them is used, and goes back there; None if there is none.
    """

    def __init__(self, endpoint: Endpoint, timeout_ms: int, kept: KeptConnections[FeedSession] | None = None) -> None:
        self._kept = kept or KeptConnections(0)
        self._key = self._kept.key(endpoint, timeout_ms)
        self._session = self._kept.take(self._key) or FeedSession(endpoint, timeout_ms)

    def check(self) -> None:
        """Publish no rows, to check that the feed exists and accepts our credentials.

        Raises:
            NotFound: there is no such feed.
            Refused: the feed cannot be published to, or it refuses for another reason.
            SparkStreamsError: the call failed otherwise (``FeedSession.send``).
        """
        self.publish(pa.RecordBatch.from_pylist([], schema=PART_SCHEMA), None, 0, 0)

    def publish(
        self, rows: pa.RecordBatch, reference: str | None, number: int, digest: int
    ) -> tuple[int, int, int | None]:
        """Send rows; see ``Target``."""
        headers = {"Content-Type": ARROW, "Accept": "application/json"}
        if reference is not None:
            headers |= {
                "Idempotency-Key": reference,
                "Idempotency-Sequence": str(number),
                "Idempotency-Digest": f"{digest:08x}",
            }
        try:
            with self._session.send("POST", body=_body(rows), headers=headers) as answer:
                body = answer.body()
                what, begins = answer.what, first_line(body)
        except NotFound as fault:
            raise NotFound(
                fault.condition,
                f"{fault.description}. The feed must be there: create it with spark-streams log create URL NAME, or "
                "with an HTTP PUT of its address",
                fault.context,
            ) from None
        except Refused as fault:
            if fault.condition in ("status 405", "status 501"):
                raise Refused(
                    fault.condition,
                    f"{fault.description}. This feed cannot be published to: FeedAPI has no call for that, so the sink "
                    "writes to the log of spark-streams alone",
                    fault.context,
                ) from None
            raise
        try:
            found = json.loads(body)
            return int(found["appended"]), int(found["repeated"]), None if reference is None else int(found["last"])
        except (ValueError, KeyError, TypeError):
            raise RemoteProtocolError(
                f"{what}: the answer does not say what was stored; it begins with '{begins}'"
            ) from None

    def rest(self) -> None:
        """Do nothing: the session pools its connections, and replaces those that the server has closed."""

    def close(self) -> None:
        """Close the connections, or leave them to the next task: each has given its whole answer, or is closed."""
        self._kept.give_back(self._key, self._session)


@dataclass
class FeedPublisher:
    """Publishes the rows of one task, in their order.

    Args:
        target: the feed; ``close`` closes it.
        stream: its name, for messages.
        identity: the task's identity, None for at least once.
        backoff: how many times to send a part, and how long the pauses are.
    """

    target: Target
    stream: str
    identity: TaskIdentity | None
    _: KW_ONLY
    backoff: Backoff = FEED_BACKOFF

    def __post_init__(self) -> None:
        if self.identity is not None and not 0 <= self.identity.batch <= MAX_BATCH:
            raise LocalProtocolError(f"micro-batch {self.identity.batch}: there is room for those up to {MAX_BATCH}")
        self._parts = Parts()
        self._labels = RowLabels()
        self._last = -1

    def send(self, columns: Mapping[str, pa.Array], label: Label) -> None:
        """Add rows; publish those that fill a part before returning.

        Args:
            columns: the rows' columns, with the names and types of ``PART_SCHEMA``.
            label: row i of these to its name in errors.

        Raises:
            DeliveryFailed: the feed did not confirm rows of this or an earlier call, or they differ from those of an
                earlier attempt; the error names the first one.
            LocalProtocolError: the task has more than ``MAX_PARTS`` parts.
        """
        rows = pa.RecordBatch.from_arrays([columns[name] for name in PART_SCHEMA.names], schema=PART_SCHEMA)
        self._labels.add(rows.num_rows, label)
        for part in self._parts.add(rows):
            self._publish(part)
        self.target.rest()

    def flush(self) -> None:
        """Publish the last part, and return once every row is confirmed.

        Raises:
            DeliveryFailed: as for ``send``; or an earlier attempt had more rows than this one.
        """
        for part in self._parts.finish():
            self._publish(part)
        self.target.rest()
        if self.identity is not None and self._parts.last_number >= 0:
            number = self._number(self._parts.last_number)
            if self._last > number:
                raise self._differs(f"it has part {self._last & (MAX_PARTS - 1)}, and this attempt ends before it")

    def close(self) -> None:
        """Close the feed; rows that are not confirmed may or may not be stored."""
        self.target.close()

    def _number(self, part: int) -> int:
        assert self.identity is not None
        return self.identity.batch << _PART_BITS | part

    def _publish(self, part: Part) -> None:
        label = self._labels.take(part.first_row + part.rows.num_rows)(part.first_row)
        reference, number = None, 0
        if self.identity is not None:
            if part.number >= MAX_PARTS:
                raise LocalProtocolError(f"a task of more than {MAX_PARTS} parts: limit the micro-batches")
            reference, number = self.identity.reference, self._number(part.number)
            if number < self._last:
                return  # an earlier attempt published a later part, so this one was confirmed
        try:
            appended, repeated, last = retrying(
                lambda: self.target.publish(part.rows, reference, number, part.digest), self.backoff
            )
        except SparkStreamsError as fault:
            raise self._failed(part, label, fault) from fault
        _log.debug("%s: part %d: %d rows stored, %d repeated", self.stream, part.number, appended, repeated)
        if self.identity is None or last is None:
            return
        self._last = max(self._last, last)
        if self._last >> _PART_BITS > self.identity.batch:
            raise DeliveryFailed(
                "refused",
                "rows-differ",
                f"the feed has micro-batch {self._last >> _PART_BITS} of this query already, and this is "
                f"{self.identity.batch}: the checkpoint is older than the feed. Go on with the newest one, or start "
                "with a new one, which is a new query",
                label,
                self.stream,
            )

    def _failed(self, part: Part, label: str, fault: SparkStreamsError) -> DeliveryFailed:
        if isinstance(fault, PeerError) and fault.condition == "status 422":
            return self._differs(str(fault), label)
        condition = fault.condition if isinstance(fault, PeerError) else type(fault).__name__
        words = f"{fault.description} ({fault.context})" if isinstance(fault, PeerError) else str(fault)
        return DeliveryFailed(
            "not confirmed",
            condition,
            f"{words}. It is the first of {part.rows.num_rows} rows that were published together; those before it are "
            "confirmed",
            label,
            self.stream,
        )

    def _differs(self, why: str, label: str | None = None) -> DeliveryFailed:
        assert self.identity is not None
        return DeliveryFailed(
            "refused",
            "rows-differ",
            f"an earlier attempt at micro-batch {self.identity.batch} has written other rows: {why}. Exactly once "
            "needs the same rows in the same order on every attempt, so use sortWithinPartitions after a shuffle, and "
            "keep the number of Spark partitions",
            label or self._labels(self._labels.rows - 1),
            self.stream,
        )


def _body(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def event_columns(columns: Mapping[str, pa.Array], key_field: str | None) -> dict[str, pa.Array]:
    """Return value, key and timestamp of the event of each row: the columns of ``PART_SCHEMA``.

    Args:
        columns: with ``value``, and ``key`` and ``timestamp`` or not; or without ``value``: all columns but ``key`` are
            then the members of a JSON object.
        key_field: JSON pointer to the key within the event, None when column ``key`` has it.

    Raises:
        SchemaError: a column has no JSON form.
    """
    nothing = pa.nulls(len(next(iter(columns.values()))))
    key, instants = columns.get("key", nothing), nothing
    if "value" in columns:
        value = columns["value"].cast(pa.large_binary())
        instants = columns.get("timestamp", nothing)
    else:
        members = {name: column for name, column in columns.items() if name != "key"}
        value = encode_objects(members, len(nothing)).cast(pa.large_binary())
    if key_field is not None:
        key = extract_text(value.cast(pa.binary()), key_field)
    return {field.name: each.cast(field.type) for field, each in zip(PART_SCHEMA, (value, key, instants), strict=True)}
