"""Reads a partition of a feed from a cursor to an end, page after page, for a task of a batch query.

A read ends at a cursor, or at the end of the feed. Cursors can only be compared for equality.

Delivery guarantee: the reader returns each event that the feed sends between the two cursors once. It requests a
response that breaks off again from its last checkpoint, and never returns events that no checkpoint covers. Events that
the feed itself repeats (``exactlyOnce`` false) come repeatedly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from spark_streams.client.data_loss import LossPolicy
from spark_streams.client.feed.client import FEED_BACKOFF, FeedClient
from spark_streams.client.feed.http import Expired
from spark_streams.client.feed.row_decoder import FeedRows
from spark_streams.client.retry import Attempts
from spark_streams.errors import SparkStreamsError

BEGINNING: Final = "_first"
"""The cursor that means the beginning of a partition (FeedAPI, "fetch call")."""

EMPTY_RESPONSES: Final = 1_000
"""This many responses in a row without events mean the end, though each had another cursor. With fewer, reading would
end early where a filter leaves out most events; without a limit it would never end where cursors are times."""


@dataclass(frozen=True)
class FeedRange:
    """Events of one partition after a cursor; picklable.

    Args:
        partition: its id.
        start: the cursor that reading starts after; ``_first`` for the beginning.
        stops: cursors where reading ends, at the first that comes; reading also ends at the feed's end: a response
            without events that repeats the requested cursor.
        required: whether one of ``stops`` has to come: a range that ends without it differs from the planned one.
    """

    partition: int
    start: str
    stops: tuple[str, ...] = ()
    required: bool = False


def scan(
    client: FeedClient, wanted: FeedRange, rows: FeedRows, *, fail_on_data_loss: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range.

    Raises:
        PositionLost: the range had to end at a cursor that did not come, or the feed has lost the events after a
            cursor, or does not know it, as it was created again; and losses fail the query.
        RemoteProtocolError: a response has no cursor, or cannot be decoded.
        SparkStreamsError: the call failed, as for ``FeedClient.lines``, after retries when it is retriable.
    """
    policy = LossPolicy(client.address.stream, fail_on_data_loss)
    partition, cursor, empty = str(wanted.partition), wanted.start, 0
    attempts = Attempts(FEED_BACKOFF, client.pause)
    while cursor not in wanted.stops:
        events = 0
        requested = cursor
        try:
            for lines in client.lines(wanted.partition, requested, wanted.stops):
                batch = rows.take(lines)
                events += lines.count
                if len(lines.cursors):
                    before, cursor = cursor, lines.cursors[-1].as_py()
                    if int(lines.covered[-1]) or cursor != before:
                        attempts.progressed()
                if batch is not None:
                    yield batch
        except Expired as fault:
            if cursor == BEGINNING:
                raise
            policy.report(partition, f"after cursor '{cursor}'", str(fault))
            cursor = BEGINNING
            continue
        except SparkStreamsError as fault:
            attempts.after(fault)
            continue
        finally:
            rows.drop_waiting()
        empty = 0 if events else empty + 1
        if (not events and cursor == requested) or empty >= EMPTY_RESPONSES:
            break
    if wanted.required and cursor not in wanted.stops:
        policy.report(
            partition,
            f"after cursor '{wanted.start}' until cursor '{wanted.stops[0]}'",
            f"the feed has come to its end, '{cursor}', without that cursor",
        )
