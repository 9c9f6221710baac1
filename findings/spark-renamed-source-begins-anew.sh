#!/usr/bin/env bash
# One would guess: with spark.sql.streaming.queryEvolution.enableSourceEvolution, a source that is given another .name() is
# refused by a checkpoint that knows it under the old one, or goes on where it stood.
# What happens: in Spark 4.3.0 it begins anew without a word: its rows come a second time into the same sink, of the same
# checkpoint. Under its old name it would have gone on.
# Source: PyPI pyspark 4.3.0; Java 17 has to be there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check pyspark==4.3.0 pyarrow==26.0.1 pandas==2.3.3
cat >seen.py <<'PY'
import pathlib

import pyspark
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")
print("pyspark", pyspark.__version__)
pathlib.Path("in").mkdir()
for number, name in enumerate(("orders", "orders", "purchases")):
    pathlib.Path(f"in/{number}.txt").write_text(f"row {number}\n")
    rows = spark.readStream.format("text").name(name).load("in")
    query = rows.writeStream.format("json").option("checkpointLocation", "checkpoint").option("path", "out")
    query.trigger(availableNow=True).start().awaitTermination()
    print("named", name + ":", sorted(row.value for row in spark.read.schema("value STRING").json("out").collect()))
spark.stop()
PY
python/bin/python seen.py 2>err.txt | tee seen.txt || { tail -5 err.txt; exit 1; }
diff seen.txt - <<'EXPECTED' && echo "as described"
pyspark 4.3.0
named orders: ['row 0']
named orders: ['row 0', 'row 1']
named purchases: ['row 0', 'row 0', 'row 1', 'row 1', 'row 2']
EXPECTED
