"""A Spark Connect server on a free port of loopback, in a process that ends with whoever started it.

usage: connect_server.py FILE LOG_LEVEL SETTINGS

FILE is written when it serves: JSON with ``url`` for ``spark.remote``, ``ui`` and ``application``. SETTINGS are those
of Spark, as JSON. It serves until its standard input ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class Served(NamedTuple):
    """A server that runs: what clients connect to, the base of its pages if it has some, and Spark's name for it."""

    url: str
    ui: str | None
    application: str


@contextmanager
def connect_server(folder: Path, settings: dict[str, str], log_level: str = "ERROR") -> Iterator[Served]:
    """Start a server, whose process says on stderr what this one's does.

    Args:
        folder: where it says that it serves.
        settings: Spark's, by name.
        log_level: of the server's log.
    """
    from spark_streams.testing import eventually

    told = folder / "connect-server.json"
    command = [sys.executable, __file__, str(told), log_level, json.dumps(settings)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sys.stderr.fileno())
    assert process.stdin is not None

    def serves() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"the Spark Connect server ended with {process.returncode}")
        return told.exists()

    try:
        eventually(serves, "the Spark Connect server serves", 240)
        yield Served(**json.loads(told.read_text()))
    finally:
        process.stdin.close()
        try:
            process.wait(120)
        finally:
            process.kill()
            process.wait()


def main(told: Path, log_level: str, settings: dict[str, str]) -> None:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.master("local[2]")
    builder = builder.config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
    builder = builder.config("spark.connect.grpc.binding.port", "0")
    builder = builder.config("spark.connect.grpc.binding.address", "127.0.0.1")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    context = session.sparkContext
    context.setLogLevel(log_level)
    service = getattr(context._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    served = Served(f"sc://127.0.0.1:{port}", context.uiWebUrl, context.applicationId)
    new = told.with_suffix(".new")
    new.write_text(json.dumps(served._asdict()))
    new.replace(told)
    sys.stdin.read()
    session.stop()


if __name__ == "__main__":
    # No token is asked for, whatever the variable says.
    os.environ.pop("SPARK_CONNECT_AUTHENTICATE_TOKEN", None)
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
