"""Prepares a notebook before its own first line, on Databricks and elsewhere."""

from __future__ import annotations

import html
import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import quote

import spark_streams
from spark_streams.testing.log_process import SETTINGS, LogProcess
from spark_streams.testing.spark_session import spark_until

VOLUME: Final = "/Volumes/main/default/spark_streams"
SCOPE: Final = "spark-streams"
_DOORS: Final = {"amqp-url": "amqp", "rabbitmq-url": "rabbitmq-stream", "feed-url": "feedapi"}
_SETTINGS: Final = {"spark.app.name": "spark-streams-notebook", "spark.log.level": "ERROR"}


FRAME_ANCESTORS: Final = ("http://localhost:*", "http://127.0.0.1:*", "https://localhost:*", "vscode-webview:")
"""The addresses of notebooks on the log's own machine, whose pages may show the log's page in a frame."""
_LOG: Final = f"{SETTINGS}[web]\nframe_ancestors = {list(FRAME_ANCESTORS)}\n"


class Notebook:
    """A Spark with the formats in it, a folder for checkpoints, and the peer's address.

    On Databricks these are the notebook's own session, a folder of a volume, and secrets of the scope
    ``spark-streams``. Elsewhere they are a Spark of two cores and a log in a process of its own, both started here,
    and a temporary folder.

    Args:
        name: the folder's name.
        streams: streams of the log that is started here, as ``log serve --stream`` takes them: ``"orders:4"``.
        volume: the folder on Databricks that holds the notebook's folder; it outlives the cluster.
    """

    def __init__(self, name: str, *streams: str, volume: str | None = None) -> None:
        self.on_databricks = "DATABRICKS_RUNTIME_VERSION" in os.environ
        self._log: LogProcess | None = None
        with ExitStack() as ending:  # each part ends if a later one fails
            if self.on_databricks:
                self.folder = str(PurePosixPath(volume or VOLUME, name))
                from pyspark.sql import SparkSession

                self.spark = SparkSession.builder.getOrCreate()
                spark_streams.register(self.spark)
            else:
                self.folder = tempfile.mkdtemp(prefix="spark-streams-")
                ending.callback(shutil.rmtree, self.folder, ignore_errors=True)
                settings = Path(self.folder, "log.toml")
                settings.write_text(_LOG)
                arguments = ["--config", str(settings)]
                arguments += [word for stream in streams for word in ("--stream", stream)]
                self._log = ending.enter_context(LogProcess(arguments=arguments))
                self.spark = spark_until(ending, _SETTINGS)
            self._ending = ending.pop_all()

    def secret(self, name: str) -> str:
        """Return the address of a peer, with its credentials.

        Args:
            name: ``amqp-url``, ``rabbitmq-url``, ``feed-url`` or ``event-hubs-connection``. On Databricks it is a
                secret; elsewhere an environment variable, ``SPARK_STREAMS_AMQP_URL``, or the log's own.
        """
        if self._log is None:
            from pyspark.dbutils import DBUtils

            return str(DBUtils(self.spark).secrets.get(SCOPE, name))
        told = os.environ.get(f"SPARK_STREAMS_{name.upper().replace('-', '_')}")
        if told is not None:
            return told
        if name == "event-hubs-connection":
            return self._log.event_hubs_connection_string
        return self._log.urls[_DOORS[name]].replace("//", "//guest:guest@")

    def window(self, stream: str | None = None, height: int = 600) -> LogFrame:
        """Return the page that shows the log; as a cell's last line it is shown below the cell.

        Args:
            stream: a stream's name, for its own page; None for the page of all streams.
            height: in pixels.
        """
        if self._log is None:
            return LogFrame(None, height)
        page = self._log.urls["web"].rstrip("/")
        return LogFrame(f"{page}/stream?stream={quote(stream)}" if stream is not None else f"{page}/", height)

    def stop(self) -> None:
        """End all that was started here, and remove the temporary folder; a Spark that was there before goes on.

        Raises:
            RuntimeError: the log did not end in time, or with an error; see ``LogProcess.stop``.
        """
        self._ending.close()


@dataclass(frozen=True)
class LogFrame:
    """The page of a notebook's log, which the notebook shows inline.

    Args:
        url: the page's address; None where there is no log of the notebook's own.
        height: in pixels.
    """

    url: str | None
    height: int

    def __str__(self) -> str:
        return self.url or (
            "There is no page to show: on Databricks the notebook starts no log, its peer is one that you run. "
            "Open the page of that one, or run the notebook elsewhere, where it starts a log of its own"
        )

    def _repr_html_(self) -> str:
        if self.url is None:
            return f"<p>{html.escape(str(self))}</p>"
        url = html.escape(self.url)
        return (
            f'<iframe src="{url}" width="100%" height="{self.height}" style="border: 0" title="The log"></iframe>'
            f'<p>On the machine of the notebook: <a href="{url}" target="_blank" rel="noopener">{url}</a></p>'
        )
