"""Makes publishing ids that a retry derives again from the same rows, and that show when the rows differ.

::

    id (u64) = batch(28 bits) | row + 1 (26 bits) | digest(10 bits)

``batch`` is Spark's number of the micro-batch, ``row`` the number of the row within the task, so ids rise with both, as
deduplication requires. ``digest`` covers the rows and their streams (``digested_rows.py``), so the last id that a
broker has stored shows a retry whether its rows equal those of the previous attempt.

docs/adr/0010-rabbitmq-exactly-once.md has the argument.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from spark_streams.client.digested_rows import DIGEST_BITS, RowBlock
from spark_streams.errors import DeliveryFailed, LocalProtocolError

_BATCH_BITS: Final = 28
_ROW_BITS: Final = 26
MAX_BATCH: Final = (1 << _BATCH_BITS) - 1
"""The number of the last micro-batch. A query with one every second reaches it in 8 years."""
MAX_ROWS: Final = (1 << _ROW_BITS) - 1
"""Rows of one task of one micro-batch."""


def id_parts(sequence: int) -> tuple[int, int, int]:
    """Return the parts of an id: the numbers of the micro-batch and of the row in its task, and the block's digest.

    An id of 0, which we never make, means that there is no id: the row is -1 then, and the others are 0.
    """
    row = (sequence >> DIGEST_BITS) & MAX_ROWS
    return sequence >> (_ROW_BITS + DIGEST_BITS), row - 1, sequence & ((1 << DIGEST_BITS) - 1)


def publishing_ids(batch: int, rows: NDArray[np.int64], digest: int) -> NDArray[np.uint64]:
    """Return the ids of rows of one block.

    Args:
        batch: number of the micro-batch.
        rows: their numbers within the task, from 0, ascending.
        digest: the digest of the block.

    Raises:
        LocalProtocolError: a number does not fit into an id.
    """
    if not 0 <= batch <= MAX_BATCH:
        raise LocalProtocolError(
            f"micro-batch {batch}: publishing ids have room for micro-batches up to {MAX_BATCH}; go on with a new "
            "query, that is a new checkpoint, which starts where this one has come to"
        )
    if len(rows) and int(rows[-1]) >= MAX_ROWS:
        raise LocalProtocolError(
            f"row {int(rows[-1])} of one task: publishing ids have room for {MAX_ROWS} rows; limit the micro-batches, "
            "or repartition the DataFrame into more partitions before it is written"
        )
    high = np.uint64(batch) << np.uint64(_ROW_BITS + DIGEST_BITS)
    ids: NDArray[np.uint64] = ((rows + 1).astype(np.uint64) << np.uint64(DIGEST_BITS)) | high | np.uint64(digest)
    return ids


class Resumed:
    """Compares the rows of this task that a broker already has with those of this attempt, for one destination stream.

    Args:
        stream: the destination.
        batch: number of this micro-batch.
        sequence: the last publishing id that the broker has for the task's reference.

    Raises:
        DeliveryFailed: the broker has a later micro-batch: the checkpoint is older than the stream.
    """

    def __init__(self, stream: str, batch: int, sequence: int) -> None:
        self.stream = stream
        last_batch, last_row, self._digest = id_parts(sequence)
        if last_batch > batch:
            raise DeliveryFailed(
                "not written",
                "rows-differ",
                f"the stream has micro-batch {last_batch} of this query already: the checkpoint is older than "
                "the stream, so a batch would be dropped as a duplicate. Go on with the newest checkpoint, or start "
                "with a new one, which is a new query",
                f"micro-batch {batch}",
                stream,
            )
        self.last_row = last_row if last_batch == batch else -1
        """The last row that the stream has of this task, -1 for none. The publisher sends it again, though the broker
        stores it no second time: brokers report an id as soon as their leader has written it, and confirm it, a
        repeated one too, when the replicas have it."""
        self.compared = self.last_row < 0
        """Whether the stream is known to have the same rows as this attempt."""

    def check(self, block: RowBlock) -> None:
        """Compare a block's digest; call this for the blocks in their order.

        Raises:
            DeliveryFailed: the rows differ from those that an earlier attempt has written.
        """
        if self.compared or self.last_row >= block.first_row + block.rows:
            return
        if self.last_row < block.first_row:
            raise self._differs(self.last_row, "has written it there, and now it goes elsewhere")
        if block.digest != self._digest:
            raise self._differs(
                self.last_row,
                "has written other rows, or the same ones in another order or to other streams, up to there",
            )
        self.compared = True

    def check_end(self, rows: int) -> None:
        """Compare the number of rows, at the end of the task.

        Raises:
            DeliveryFailed: an earlier attempt has written more rows.
        """
        if self.last_row >= rows:
            raise self._differs(self.last_row, f"has written it, and now the task has {rows} rows")

    def too_far_behind(self, rows: int, first_row: int) -> DeliveryFailed:
        """Return the error for more missing rows in other streams than an attempt can have left out.

        Args:
            rows: how many rows an attempt can have left out.
            first_row: number of the first missing row.
        """
        return self._differs(
            first_row,
            f"has come to row {self.last_row}, and more than {rows} rows before that would be missing in other "
            "streams, which is more than can have been under way",
        )

    def _differs(self, row: int, what: str) -> DeliveryFailed:
        why = f"an earlier attempt at this micro-batch {what}. {_NEEDED}"
        return DeliveryFailed("not written", "rows-differ", why, f"row {row}", self.stream)


_NEEDED: Final = (
    "Exactly once needs the rows of a Spark partition to be the same on every attempt: sort them before the write "
    "(sortWithinPartitions), and until the micro-batch is through keep the number of partitions, of the super stream's "
    "too, and option 'subEntrySize'"
)
