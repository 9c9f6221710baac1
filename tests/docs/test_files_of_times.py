"""What docs/guides/to-table.md says of old times in Parquet and in ORC, by this environment's Spark and PyArrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
YEAR_1_US = -62_135_596_800_000_000
LAST_MS_US = -1_000
"""0001-01-01, and the last millisecond of 1969."""


def written(spark: SparkSession, folder: Path, kind: str, micros: list[int]) -> str:
    """Write a file, and return its path; Spark itself reads what was written but for ORC's last second."""
    rows = spark.createDataFrame([(us,) for us in micros], "us LONG").coalesce(1)
    rows.selectExpr("timestamp_micros(us) AS t").write.format(kind).mode("overwrite").save(str(folder))
    (file,) = folder.glob("*." + kind)
    return str(file)


def read(column: pa.ChunkedArray) -> list[int]:
    found: list[int] = column.combine_chunks().cast(pa.int64()).to_pylist()
    return found


def test_parquet_has_int96_unless_told_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    file = written(spark, tmp_path / "default", "parquet", [YEAR_1_US])
    assert pa.parquet.ParquetFile(file).schema.column(0).physical_type == "INT96"
    (nanos,) = read(pa.parquet.read_table(file).column("t"))
    assert nanos == (YEAR_1_US * 1_000 + 2**63) % 2**64 - 2**63, "it wraps around, to 1754-08-30"
    assert str(pa.scalar(nanos, pa.timestamp("ns")))[:10] == "1754-08-30"
    assert read(pa.parquet.read_table(file, coerce_int96_timestamp_unit="us").column("t")) == [YEAR_1_US]
    again = spark.read.parquet(str(tmp_path / "default")).selectExpr("unix_micros(t) AS us").collect()
    assert [row.us for row in again] == [YEAR_1_US]
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    try:
        file = written(spark, tmp_path / "micros", "parquet", [YEAR_1_US])
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    assert read(pa.parquet.read_table(file).column("t")) == [YEAR_1_US]


def test_orc_moves_the_last_second_before_1970(spark: SparkSession, tmp_path: Path) -> None:
    micros = [-1_000_000, -999_001, -999_000, LAST_MS_US, -1, 0]
    moved = [us + 1_000_000 if -999_000 <= us < 0 else us for us in micros]
    file = written(spark, tmp_path / "orc", "orc", micros)
    assert [nanos // 1_000 for nanos in read(pa.orc.read_table(file).column("t"))] == moved
    again = spark.read.orc(str(tmp_path / "orc")).selectExpr("unix_micros(t) AS us").collect()
    assert [row.us for row in again] == moved
