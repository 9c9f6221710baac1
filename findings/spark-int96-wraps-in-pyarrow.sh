#!/usr/bin/env bash
# One would guess: PyArrow reads the times of a Parquet file that Spark wrote, or says that it cannot.
# What happens: Spark 4.3.0 writes TIMESTAMP as INT96 by default; PyArrow 26.0.1 reads that as nanoseconds, which hold 1677 to
# 2262 only, and wraps all others around without an error: 0001-01-01 becomes 1754-08-30, 9999-12-31 becomes 1816-03-29.
# coerce_int96_timestamp_unit="us" is right for these, and so is Spark's setting outputTimestampType=TIMESTAMP_MICROS.
# Source: PyPI pyspark 4.3.0, pyarrow 26.0.1; Java 17 has to be there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check pyspark==4.3.0 pyarrow==26.0.1 pandas==2.3.3
cat >seen.py <<'PY'
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
print("pyspark", pyspark.__version__, "pyarrow", pa.__version__)
days = ["0001-01-01", "2020-02-29", "9999-12-31"]
rows = spark.createDataFrame([(n, day) for n, day in enumerate(days)], "n INT, day STRING").coalesce(1)
rows = rows.selectExpr("n", "CAST(day AS TIMESTAMP) AS t")


def shown(folder, **how):
    (file,) = pathlib.Path(folder).glob("*.parquet")
    column = pq.read_table(file, **how).sort_by("n").column("t").combine_chunks()
    times = column.cast(pa.int64()).to_numpy().view(f"datetime64[{column.type.unit}]")
    return pq.ParquetFile(file).schema.column(1).physical_type, np.datetime_as_string(times, "D").tolist()


rows.write.parquet("default")
print("default", *shown("default"))
print("coerced", *shown("default", coerce_int96_timestamp_unit="us"))
spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
rows.write.parquet("micros")
print("micros", *shown("micros"))
spark.stop()
PY
PYSPARK_PYTHON="$PWD/python/bin/python" TZ=UTC python/bin/python seen.py 2>err.txt | tee seen.txt || { tail -5 err.txt; exit 1; }
diff seen.txt - <<'EXPECTED' && echo "as described"
pyspark 4.3.0 pyarrow 26.0.1
default INT96 ['1754-08-30', '2020-02-29', '1816-03-29']
coerced INT96 ['0001-01-01', '2020-02-29', '9999-12-31']
micros INT64 ['0001-01-01', '2020-02-29', '9999-12-31']
EXPECTED
