"""Reading in a Spark task: one range of a partition, over the task's own connection.

The task returns Arrow batches to Spark without conversion. No socket crosses a pickle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.client.data_loss import LossPolicy, is_past_end
from spark_streams.client.log_client import LogClient, RangeRead
from spark_streams.errors import NotFound
from spark_streams.options.common import SourceOptions
from spark_streams.position import After
from spark_streams.spark.source.checks import CREATED_AGAIN
from spark_streams.spark.source.driver import Connect, reaching
from spark_streams.spark.source.ranges import PlannedRead


def read_range(
    options: SourceOptions, planned: PlannedRead, schema: pa.Schema, connect: Connect
) -> Iterator[pa.RecordBatch]:
    """Read one range over its own connection.

    Args:
        options: of the query.
        planned: the range.
        schema: the exact schema of the batches.
        connect: opens a client, which is closed at the end.

    Raises:
        PositionLost: events of the range are gone, or the log was deleted and created again before the last event was
            read; and losses fail the query.
        NotFound: the log is gone after events were read, and losses fail the query.
    """
    read, until = planned.read, planned.until
    policy = LossPolicy(read.stream, read.fail_on_data_loss, options.label)
    with connect(reaching(options, planned.advertised)) as client:
        fetched, same = read if until is None else _with_offset(read), False
        for batch in client.fetch(fetched):
            if until is not None:
                batch = batch.filter(pc.less(batch.column("offset"), until)).select(list(read.columns))
            if not batch.num_rows:
                continue
            if not read.fail_on_data_loss:
                # The query will read another log from its beginning: that log's events at these offsets would come
                # twice.
                if not _same_log(client, planned, policy):
                    return
                same = True
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        if not same:
            _same_log(client, planned, policy)


def _same_log(client: LogClient, planned: PlannedRead, policy: LossPolicy) -> bool:
    """Return whether the log is still the one of the range; if it is after a read, it was during the read.

    Raises:
        PositionLost: it is another log, and losses fail the query.
        NotFound: the log is gone, and losses fail the query.
    """
    partition, asked = planned.read.partition, f"to offset '{planned.read.end}'"
    try:
        again = _created_again(client, planned)
    except NotFound as fault:
        # The events that were read did exist; nothing can tell any more whether they were of the same log.
        policy.report(partition, asked, str(fault), fault)
        return True
    if again:
        policy.report(partition, asked, CREATED_AGAIN)
    return not again


def _created_again(client: LogClient, planned: PlannedRead) -> bool:
    """Return whether the log was deleted and created again, or is an older copy."""
    read = planned.read
    if planned.incarnation is not None and client.describe(read.stream).incarnation != planned.incarnation:
        return True
    if planned.log_identity is None:
        return False
    offset, identity = planned.log_identity
    now = client.log_identity(read.stream, {read.partition: offset}).get(read.partition)
    if now is not None or read.fail_on_data_loss:
        return now is not None and now != identity
    # The offset has no event: retention removed it, or this is another log that ends before it.
    bounds = client.describe(read.stream, certain=(read.partition,)).partitions.get(read.partition)
    return bounds is not None and is_past_end(After(offset), bounds)


def _with_offset(read: RangeRead) -> RangeRead:
    return read if "offset" in read.columns else replace(read, columns=(*read.columns, "offset"))
