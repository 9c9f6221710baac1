"""What a notebook needs before its first line of its own, on Databricks and elsewhere."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

import spark_streams
from spark_streams.testing.log_process import LogProcess
from spark_streams.testing.spark_session import spark_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VOLUME: Final = "/Volumes/main/default/spark_streams"
SCOPE: Final = "spark-streams"
_DOORS: Final = {"amqp-url": "amqp", "rabbitmq-url": "rabbitmq-stream", "feed-url": "feedapi"}
_SETTINGS: Final = {"spark.app.name": "spark-streams-notebook", "spark.log.level": "ERROR"}


class Notebook:
    """A Spark with the formats in it, a folder for checkpoints, and where the peer is.

    On Databricks these are the notebook's own session, a folder of a volume, and secrets of the scope
    ``spark-streams``. Elsewhere they are a Spark of two cores and a log in a process of its own, both started here,
    and a temporary folder.

    Args:
        name: the folder's name.
        streams: of that log, as ``log serve --stream`` takes them: ``"orders:4"``.
        volume: the folder on Databricks that has that one; it outlives the cluster.
    """

    def __init__(self, name: str, *streams: str, volume: str | None = None) -> None:
        self.on_databricks = "DATABRICKS_RUNTIME_VERSION" in os.environ
        self._log: LogProcess | None = None
        with ExitStack() as ending:  # what is begun ends if what comes after it fails
            if self.on_databricks:
                self.folder = str(PurePosixPath(volume or VOLUME, name))
                self.spark = _own_session()
            else:
                self.folder = tempfile.mkdtemp(prefix="spark-streams-")
                ending.callback(shutil.rmtree, self.folder, ignore_errors=True)
                arguments = [word for stream in streams for word in ("--stream", stream)]
                self._log = ending.enter_context(LogProcess(arguments=arguments))
                self.spark = spark_until(ending, _SETTINGS)
            self._ending = ending.pop_all()

    def secret(self, name: str) -> str:
        """Return where a peer is, with what signs in.

        Args:
            name: ``amqp-url``, ``rabbitmq-url``, ``feed-url`` or ``event-hubs-connection``. On Databricks it is a
                secret; elsewhere an environment variable, ``SPARK_STREAMS_AMQP_URL``, or the log's own.
        """
        if self.on_databricks:
            from pyspark.dbutils import DBUtils

            return str(DBUtils(self.spark).secrets.get(SCOPE, name))
        assert self._log is not None
        told = os.environ.get(f"SPARK_STREAMS_{name.upper().replace('-', '_')}")
        if told is not None:
            return told
        if name == "event-hubs-connection":
            return self._log.event_hubs_connection_string
        return self._log.urls[_DOORS[name]].replace("//", "//guest:guest@")

    def stop(self) -> None:
        """End what was started here, and remove the temporary folder; a Spark that was there goes on.

        Raises:
            RuntimeError: the log did not end in time, or with an error; see ``LogProcess.stop``.
        """
        self._ending.close()


def _own_session() -> SparkSession:
    """Return the notebook's own session, with our formats."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate()
    spark_streams.register(session)
    return session
