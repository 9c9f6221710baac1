#!/usr/bin/env bash
# One would guess: a timestamp that Spark writes to ORC comes back as it was, as it does from Parquet.
# What happens: with Spark 4.3.0 those of 1969-12-31T23:59:59.001 to 23:59:59.999999 UTC come back one second later, in 1970, and
# PyArrow reads the same of the file, so it is the writer; 23:59:59.000999 and all before are right. A time of -1 ms, a
# usual "none" of event logs, becomes 999 ms.
# Source: PyPI pyspark 4.3.0 (its ORC 2), pyarrow 26.0.1; Java 17 has to be there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check pyspark==4.3.0 pyarrow==26.0.1 pandas==2.3.3
cat >seen.py <<'PY'
import pathlib

import pyarrow as pa
import pyarrow.orc
import pyspark
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
print("pyspark", pyspark.__version__, "pyarrow", pa.__version__)
micros = [-1_000_001, -1_000_000, -999_001, -999_000, -1_000, -1, 0, 1]
rows = spark.createDataFrame([(us,) for us in micros], "us LONG").coalesce(1).selectExpr("timestamp_micros(us) AS t")
for kind in ("parquet", "orc"):
    rows.write.format(kind).save(kind)
    print(kind, "Spark reads", [row.us for row in spark.read.format(kind).load(kind).selectExpr("unix_micros(t) AS us").collect()])
(file,) = pathlib.Path("orc").glob("*.orc")
times = pa.orc.read_table(str(file)).column("t").combine_chunks().cast(pa.int64()).to_pylist()
print("orc PyArrow reads", [time // 1_000 for time in times])
spark.stop()
PY
TZ=UTC python/bin/python seen.py 2>err.txt | tee seen.txt
diff seen.txt - <<'EXPECTED' && echo "as described"
pyspark 4.3.0 pyarrow 26.0.1
parquet Spark reads [-1000001, -1000000, -999001, -999000, -1000, -1, 0, 1]
orc Spark reads [-1000001, -1000000, -999001, 1000, 999000, 999999, 0, 1]
orc PyArrow reads [-1000001, -1000000, -999001, 1000, 999000, 999999, 0, 1]
EXPECTED
