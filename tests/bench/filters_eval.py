"""A filter on rows in memory: as an Arrow mask, and row by row in Python.

    python tests/bench/filters_eval.py [--rows N]

``arrow`` is what a client does with the rest of a filter: the batch in, the batch of those that match out. ``by row``
is what it would do without: the columns that the filter needs become Python rows, a predicate written by hand looks at
each, and the rows that it wants are taken from the batch. ``predicate`` is that predicate alone, over tuples and
dictionaries that are there already, and ``mask`` the Arrow expression alone. ``evaluate`` is this package's evaluation
of one event, over the same tuples. All must keep the same rows. Figures are ns a row; ratios are what counts.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spark_streams.filters.evaluate_many import mask
from spark_streams.filters.evaluate_one import evaluate
from spark_streams.filters.row_columns import columns_needed, message_columns, rows_that_match
from spark_streams.filters.tree import (
    BODY_SIZE,
    KEY,
    PUBLISH_TIME,
    Expression,
    Operator,
    Predicate,
    Reference,
    ReferenceKind,
    ValueType,
    all_of,
    any_of,
    property_of,
)
from spark_streams.rows import MESSAGE_SCHEMA, PROPERTIES_TYPE, TIMESTAMP

TURNS = 7
START_MS = 1_760_000_000_000
Row = tuple[Any, ...]
TEXT, LONG, DOUBLE = ValueType.STRING, ValueType.LONG, ValueType.DOUBLE


def predicate_on(name: Reference | str, op: Operator, *values: Any, kind: ValueType = TEXT) -> Predicate:
    """Return one predicate; a str names a property."""
    return Predicate(property_of(name) if isinstance(name, str) else name, op, values, kind)


def of_type(row: Row) -> bool:
    p = row[7]
    return p is not None and p.get("type") == "order"


def in_time(row: Row) -> bool:
    return row[5] is not None and row[5] >= START_MS + 990_000


def with_amount(row: Row) -> bool:
    p = row[7]
    amount = None if p is None else p.get("amount")
    return amount is not None and amount.isdecimal() and int(amount) > 9_900


def with_price(row: Row) -> bool:
    p = row[7]
    price = None if p is None else p.get("price")
    try:
        return price is not None and float(price) > 99.0  # a decimal would be exact, and slower
    except ValueError:
        return False


def like_eu(row: Row) -> bool:
    return row[6] is not None and row[6]["subject"] is not None and row[6]["subject"].startswith("eu-")


def mixed(row: Row) -> bool:
    return of_type(row) and in_time(row) and like_eu(row)


def either(row: Row) -> bool:
    key = row[1]
    return (key is not None and key in ("k1", "k2", "k3")) or (len(row[0]) > 100 and with_amount(row))


TYPE = predicate_on("type", Operator.EQUALS, "order")
TIME = predicate_on(PUBLISH_TIME, Operator.GREATER_THAN_EQUALS, START_MS + 990_000, kind=LONG)
AMOUNT = predicate_on("amount", Operator.GREATER_THAN, 9_900, kind=LONG)
PRICE = predicate_on("price", Operator.GREATER_THAN, 99.0, kind=DOUBLE)
SUBJECT = predicate_on("properties.subject", Operator.LIKE, "eu-%")
CASES: dict[str, tuple[Expression, Callable[[Row], bool]]] = {
    "type = 'order'": (TYPE, of_type),
    "publish_time >= …": (TIME, in_time),
    "amount > 9900": (AMOUNT, with_amount),
    "price > 99.0": (PRICE, with_price),
    "properties.subject LIKE 'eu-%'": (SUBJECT, like_eu),
    "type = … AND publish_time >= … AND properties.subject LIKE …": (all_of([TYPE, TIME, SUBJECT]), mixed),
    "key IN (…) OR body_size > 100 AND amount > 9900": (
        any_of(
            [
                predicate_on(KEY, Operator.IN, "k1", "k2", "k3"),
                all_of([predicate_on(BODY_SIZE, Operator.GREATER_THAN, 100, kind=LONG), AMOUNT]),
            ]
        ),
        either,
    ),
}


def batch_of(rows: int, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Return rows such as a client decodes: three application properties, a subject, a body of 90 to 110 bytes."""
    random = np.random.default_rng(1)
    numbers = np.arange(rows)
    kinds = np.where(random.random(rows) < 0.01, "order", "click")
    entries = np.empty(3 * rows, object)
    entries[0::3], entries[1::3] = kinds, random.integers(0, 10_000, rows).astype(str)
    entries[2::3] = [f"{price:.2f}" for price in random.random(rows) * 100]
    maps = pa.MapArray.from_arrays(
        pa.array(np.arange(0, 3 * rows + 1, 3), pa.int32()),
        pa.array(["type", "amount", "price"] * rows),
        pa.array(entries),
    )
    subjects = np.where(random.random(rows) < 0.1, "eu-north", "us-east")
    fields = [
        pa.array(subjects) if field.name == "subject" else pa.nulls(rows, field.type)
        for field in (PROPERTIES_TYPE.field(i) for i in range(PROPERTIES_TYPE.num_fields))
    ]
    sizes = random.integers(90, 111, rows)
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    arrays = {
        "value": pa.BinaryArray.from_buffers(
            pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(bytes(int(ends[-1])))]
        ),
        "key": pa.array([f"k{n}" for n in random.integers(0, 1000, rows)]),
        "stream": pa.repeat("orders", rows),
        "partition": pa.repeat("0", rows),
        "offset": pa.array([f"{n:020d}" for n in numbers]),
        "timestamp": pa.array((START_MS + numbers * 1_000_000 // rows) * 1000).cast(TIMESTAMP),
        "properties": pa.StructArray.from_arrays(fields, fields=list(PROPERTIES_TYPE)),
        "application_properties": maps,
        "message_annotations": pa.nulls(rows, MESSAGE_SCHEMA.field("message_annotations").type),
    }
    return pa.RecordBatch.from_arrays(
        [arrays[name] for name in columns], schema=pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])
    )


def python_rows(batch: pa.RecordBatch, columns: tuple[str, ...]) -> list[Row]:
    """Return rows as tuples, of which only some columns are filled; maps as dictionaries, times in ms."""
    found: list[Any] = []
    for name in MESSAGE_SCHEMA.names:
        column = batch.column(name)
        if name not in columns:
            found.append(itertools.repeat(None, batch.num_rows))
        elif name == "timestamp":
            found.append(None if ms is None else ms // 1000 for ms in column.cast(pa.int64()).to_pylist())
        elif name in ("application_properties", "message_annotations"):
            found.append(None if pairs is None else dict(pairs) for pairs in column.to_pylist())
        else:
            found.append(column.to_pylist())
    return list(zip(*found, strict=True))


def by_row(batch: pa.RecordBatch, columns: tuple[str, ...], predicate: Callable[[Row], bool]) -> pa.RecordBatch:
    """Filter a batch without Arrow's help."""
    return batch.take(
        pa.array([at for at, row in enumerate(python_rows(batch, columns)) if predicate(row)], pa.int64())
    )


def lookup_of(row: Row) -> Callable[[Reference], str | int | None]:
    """Return what this package's row evaluation asks."""

    def lookup(reference: Reference) -> str | int | None:
        name = reference.name
        if name == "properties.subject":
            return row[6]["subject"]
        if name is not None:
            return row[7].get(name)
        if reference.kind is ReferenceKind.BODY_SIZE:
            return len(row[0])
        return row[1] if reference.kind is ReferenceKind.KEY else row[5]

    return lookup


def seconds(work: Callable[[], Any]) -> float:
    """Return the median of some turns."""
    taken = []
    for _ in range(TURNS):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=200_000)
    rows = arguments.parse_args().rows
    columns = tuple(MESSAGE_SCHEMA.names)
    batch = batch_of(rows, columns)
    part = batch.slice(0, rows // 10)
    ready = python_rows(batch, columns)
    print(f"{rows} rows; ns a row, median of {TURNS}")
    print("  kept |  arrow  by row  ratio |   mask predicate  ratio | evaluate  ratio")
    for name, (expression, predicate) in CASES.items():
        needed = columns_needed(expression)
        kept = rows_that_match(batch, expression, columns)
        by_hand = [row for row in ready if predicate(row)]
        ours = sum(evaluate(expression, lookup_of(row)) is True for row in ready)
        assert kept.num_rows == len(by_hand) == ours, (name, kept.num_rows, len(by_hand), ours)
        arrow = seconds(lambda e=expression: rows_that_match(batch, e, columns)) / rows * 1e9
        slow = seconds(lambda n=needed, p=predicate: by_row(part, n, p)) / part.num_rows * 1e9
        alone = seconds(lambda e=expression: mask(e, message_columns(batch), rows)) / rows * 1e9
        hand = seconds(lambda p=predicate: [row for row in ready if p(row)]) / rows * 1e9
        one = seconds(lambda e=expression: [r for r in ready[::10] if evaluate(e, lookup_of(r))]) * 10 / rows * 1e9
        print(
            f"{kept.num_rows / rows:6.1%} | {arrow:6.1f} {slow:7.0f} {slow / arrow:6.0f} | {alone:6.1f} {hand:9.0f} "
            f"{hand / alone:6.1f} | {one:8.0f} {one / alone:6.0f} | {name}"
        )


if __name__ == "__main__":
    main()
