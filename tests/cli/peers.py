"""Streams of the embedded log, as the commands name them, and the commands themselves."""

from __future__ import annotations

from click.testing import CliRunner, Result

from spark_streams.cli import main
from spark_streams.testing import LogStream

PEERS = ["amqp", "rabbitmq-stream", "feedapi"]


def url(stream: LogStream, door: str) -> str:
    """Return a stream's url at a door, with the default credentials."""
    where = stream.process.urls[door]
    if door == "feedapi":
        return f"{where}/{stream.name}"
    return f"{where.replace('//', '//guest:guest@')}#{stream.name}"


def run(*words: str, **environment: str) -> Result:
    """Run a command."""
    return CliRunner(env=environment).invoke(main, list(words), catch_exceptions=False)
