"""Command ``spark-streams log append``, which appends lines of text as events."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import click
import pyarrow as pa

from spark_streams.cli.credentials import PeerOptions, endpoint_of, password_option, tls_options
from spark_streams.cli.peers.terminal import EventBar
from spark_streams.client import AmqpClient
from spark_streams.endpoint import Tls
from spark_streams.errors import OptionError
from spark_streams.options.values import instant_ms
from spark_streams.rows import COMMON_SCHEMA

_READ_BYTES: Final = 1 << 20
_EPILOG = """\b
A line ends with a newline and nothing else; it is not part of the event. Exit code 0
says that the log has acknowledged every event.

\b
Examples:
  spark-streams log append amqp://guest:guest@localhost:5672 orders '{"id": 1}' --key alice
  spark-streams log append amqp://guest:guest@localhost:5672 orders < orders.jsonl
"""


@click.command(epilog=_EPILOG)
@click.argument("url")
@click.argument("stream")
@click.argument("lines", nargs=-1)
@click.option("--key", help="Grouping key: events with equal keys go into one partition, in order.")
@click.option("--partition", help="The partition to append to; without it the key decides, or else the log.")
@click.option(
    "--timestamp",
    metavar="WHEN",
    help="creation-time: milliseconds since 1970 (negative before it) or ISO 8601; for streams of type create.",
)
@tls_options
@password_option()
def append(
    url: str,
    stream: str,
    lines: tuple[str, ...],
    key: str | None,
    partition: str | None,
    timestamp: str | None,
    tls: Tls | None,
    password_file: str | None,
) -> None:
    """Append each of LINES, or without any each line of stdin, as an event to STREAM."""
    creation_us = None if timestamp is None else instant_ms("--timestamp", timestamp) * 1000
    if creation_us is not None and not -(2**63) <= creation_us < 2**63:
        raise OptionError("--timestamp", f"{timestamp} lies outside the years -290000 to 290000")
    appended = done = 0
    blocks: Any = [[line.encode() for line in lines]] if lines else lines_of(sys.stdin.fileno())
    hidden = bool(lines) or sys.stdin.isatty()  # a bar would write over what is typed
    with (
        AmqpClient(endpoint_of(url, PeerOptions(password_file), tls)) as client,
        EventBar(f"stdin to {stream}", None if hidden else _bytes_left(), in_events=False, hidden=hidden) as bar,
    ):
        publisher = client.publisher(stream)
        for block in blocks:
            columns = _columns(block, key, partition, creation_us)
            publisher.send(client.encode(columns), _labels(appended + 1))
            publisher.flush()
            appended += len(block)
            done += sum(map(len, block)) + len(block)
            bar.show(appended, done)
        publisher.close()
    click.echo(f"{appended} {'event' if appended == 1 else 'events'} appended to '{stream}'")


def _bytes_left() -> int | None:
    """Return how many bytes stdin has, if it is a file; None for a pipe, whose length nobody knows."""
    descriptor = sys.stdin.fileno()
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None
    return max(0, os.fstat(descriptor).st_size - os.lseek(descriptor, 0, os.SEEK_CUR))


def _labels(first: int) -> Callable[[int], str]:
    return lambda row: f"line {first + row}"


def _columns(
    values: list[bytes], key: str | None, partition: str | None, creation_us: int | None
) -> dict[str, pa.Array]:
    columns = {"value": pa.array(values, pa.binary())}
    for name, value in (("key", key), ("partition", partition), ("timestamp", creation_us)):
        if value is not None:
            columns[name] = pa.repeat(pa.scalar(value, COMMON_SCHEMA.field(name).type), len(values))
    return columns


def lines_of(fd: int) -> Iterator[list[bytes]]:
    """Yield the lines of a file descriptor in lists, as they arrive; the last line may lack its newline."""
    rest = b""
    while block := os.read(fd, _READ_BYTES):
        *whole, rest = (rest + block).split(b"\n")
        if whole:
            yield whole
    if rest:
        yield [rest]
