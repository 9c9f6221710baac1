"""Streams of the embedded log, as the commands name them, and the commands themselves."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

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


@contextmanager
def _as_in_a_new_process() -> Iterator[None]:
    """Let a command set up logging and signals as in a process of its own; both are as before afterwards."""
    root, urllib3 = logging.getLogger(), logging.getLogger("urllib3")
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = (root.handlers[:], root.level, urllib3.level, [signal.getsignal(number) for number in numbers])
    root.handlers[:] = []
    try:
        yield
    finally:
        root.handlers[:], level, of_urllib3, handlers = before
        root.setLevel(level)
        urllib3.setLevel(of_urllib3)
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def run(*words: str, stdin: BinaryIO | None = None, **environment: str) -> Result:
    """Run a command in this process; an error that is none of its own is raised here."""
    with _as_in_a_new_process():
        return CliRunner(env=environment).invoke(main, list(words), input=stdin, catch_exceptions=False)
