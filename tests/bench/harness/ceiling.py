"""Spark's own ceiling: a source of ready Arrow batches with our columns, the most that Spark takes from Python."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_streams.rows import MESSAGE_SCHEMA
from spark_streams.spark.schemas import spark_schema
from tests.bench.harness.formats import BODY_BYTES
from tests.bench.harness.peers import PARTITIONS

BATCH_ROWS = 10_000


class Ceiling(DataSource):  # type: ignore[misc]
    """Format ``ceiling``; option ``rows`` says how many rows there are, in as many partitions as a stream has."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        return spark_schema(MESSAGE_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(int(self.options["rows"]) // PARTITIONS)


class _Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = ready_batch()
        for start in range(0, self._rows, BATCH_ROWS):
            yield batch.slice(0, min(BATCH_ROWS, self._rows - start))


def ready_batch() -> pa.RecordBatch:
    """Return rows as the formats' are: with a body, where they are in the stream and when they came, no headers."""
    filled = {
        "value": pa.array([b"x" * BODY_BYTES] * BATCH_ROWS),
        "offset": pa.array([f"{number:020d}" for number in range(BATCH_ROWS)]),
        "stream": pa.array(["bench-00000000"] * BATCH_ROWS),
        "partition": pa.array(["bench-00000000-0"] * BATCH_ROWS),
        "timestamp": pa.array([1_700_000_000_000_000] * BATCH_ROWS).cast(pa.timestamp("us", "UTC")),
    }
    columns = [
        filled[field.name].cast(field.type) if field.name in filled else pa.nulls(BATCH_ROWS, field.type)
        for field in MESSAGE_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(MESSAGE_SCHEMA))
