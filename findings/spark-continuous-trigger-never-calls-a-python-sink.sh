#!/usr/bin/env bash
# One would guess: a streaming sink of the Python Data Source API writes its rows under trigger(continuous=…), or the query
# is refused, as a Python source is with such a trigger.
# What happens: Spark 4.3.0 starts the query, never calls the sink's write, and calls its commit for each epoch with None for
# each task: the query runs, its checkpoint grows, and no row arrives.
# Source: PyPI pyspark 4.3.0; Java 17 has to be there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check pyspark==4.3.0 pyarrow==26.0.1 pandas==2.3.3
cat >seen.py <<'PY'
import pathlib
import time

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

HERE = pathlib.Path.cwd()


class Sink(DataSource):
    @classmethod
    def name(cls):
        return "sink"

    def streamWriter(self, schema, overwrite):
        return Writer()


class Writer(DataSourceStreamWriter):
    def write(self, iterator):
        rows = sum(1 for _ in iterator)
        if rows:
            (HERE / "written").touch()
        return WriterCommitMessage()

    def commit(self, messages, batchId):
        names = sorted({type(message).__name__ for message in messages})
        (HERE / "new").write_text(",".join(names))
        (HERE / "new").rename(HERE / "committed")


spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(Sink)
print("pyspark", pyspark.__version__)
rows = spark.readStream.format("rate").option("rowsPerSecond", 100).option("numPartitions", 1).load()
for kind in ("processingTime", "continuous"):
    for name in ("written", "committed"):
        (HERE / name).unlink(missing_ok=True)
    writer = rows.writeStream.format("sink").option("checkpointLocation", f"checkpoint-{kind}")
    query = writer.trigger(**{kind: "1 second"}).start()
    epochs = HERE / f"checkpoint-{kind}" / "commits"
    while len([file for file in epochs.glob("*") if file.name.isdigit()] if epochs.exists() else []) < 5:
        assert query.isActive, query.exception()
        time.sleep(0.2)
    query.stop()
    wrote = "rows written" if (HERE / "written").exists() else "write never called with a row"
    print(kind, "5 commits,", wrote + ", commit got", (HERE / "committed").read_text())
spark.stop()
PY
PYSPARK_PYTHON="$PWD/python/bin/python" python/bin/python seen.py 2>err.txt | tee seen.txt || { tail -5 err.txt; exit 1; }
diff seen.txt - <<'EXPECTED' && echo "as described"
pyspark 4.3.0
processingTime 5 commits, rows written, commit got WriterCommitMessage
continuous 5 commits, write never called with a row, commit got NoneType
EXPECTED
