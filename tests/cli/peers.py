"""Streams of the embedded log, as the commands name them, and the commands themselves."""

from __future__ import annotations

from click.testing import CliRunner, Result

from spark_streams.cli import main
from spark_streams.testing import LogStream

PEERS = ["amqp", "rabbitmq-stream", "feedapi"]


def url(stream: LogStream, door: str) -> str:
    """Return a stream's url at a door, with the default credentials."""
    where = stream.process.urls[door]
    return url_of(where if door == "feedapi" else where.replace("//", "//guest:guest@"), door, stream.name)


def url_of(address: str, door: str, name: str) -> str:
    """Return the url of a stream at the address of a door."""
    return f"{address}/{name}" if door == "feedapi" else f"{address}#{name}"


def run(*words: str, **environment: str) -> Result:
    """Run a command."""
    return CliRunner(env=environment).invoke(main, list(words), catch_exceptions=False)
