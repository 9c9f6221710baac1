"""Checks the part of a filter that the peer did not take, as a mask over the rows of a batch."""

from __future__ import annotations

import pyarrow as pa

from spark_streams.filters.evaluate_columns import mask
from spark_streams.filters.row_columns import columns_needed, feed_columns, message_columns
from spark_streams.filters.tree import Expression

__all__ = ["rows_that_match", "wanted_columns"]


def wanted_columns(columns: tuple[str, ...], residual: Expression | None, feed: bool = False) -> tuple[str, ...]:
    """Return the columns to decode: those of the rows, in their order, and then what only the residual looks at.

    Args:
        columns: of the rows.
        residual: what is left to check; None for nothing.
        feed: whether the rows are those of a feed.

    Raises:
        FilterError: the residual looks at what such rows cannot have.
    """
    needed = () if residual is None else columns_needed(residual, feed)
    return (*columns, *(name for name in needed if name not in columns))


def rows_that_match(
    batch: pa.RecordBatch, residual: Expression | None, columns: tuple[str, ...], feed: bool = False
) -> pa.RecordBatch:
    """Return the rows of which the residual is true, with the columns of the rows only.

    Args:
        batch: has the columns that ``wanted_columns`` says.
        residual: what is left to check; None for nothing.
        columns: of the rows, in the order that is wanted.
        feed: whether the rows are those of a feed.

    Shape:
        ``columns`` of ``batch``, in their order; the batch may have no row.
    """
    rows = batch.select(list(columns))
    if residual is None:
        return rows
    matching = mask(residual, (feed_columns if feed else message_columns)(batch), batch.num_rows)
    return rows if matching.true_count == batch.num_rows else rows.filter(matching)
