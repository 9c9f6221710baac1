"""Command ``spark-streams copy``, which copies a stream from one peer to another, between any two protocols."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Final

import click
import pyarrow as pa

from spark_streams.cli.credentials import PeerOptions, tls_options
from spark_streams.cli.errors import INTERRUPTED
from spark_streams.cli.peers.peer import (
    PEER_EPILOG,
    POSITIONS_EPILOG,
    PeerReader,
    PeerWriter,
    ReadRequest,
    peer_options,
    read_peer,
    speaks_tls,
)
from spark_streams.cli.peers.terminal import EventBar
from spark_streams.cli.tail import POLL_S, Interrupted
from spark_streams.endpoint import Tls
from spark_streams.errors import OptionError, PositionLost, SparkStreamsError

_FLUSH_ROWS: Final = 50_000
"""Number of sent events from which the copy waits for confirms, and then updates the positions to continue from."""
_STEP_ROWS: Final = 1_000
"""The most events that are sent together, and so between two updates of the bar."""
_EPILOG = f"""{PEER_EPILOG}
{POSITIONS_EPILOG}
\b
Each side has variables of its own that take precedence: SPARK_STREAMS_FROM_PASSWORD,
SPARK_STREAMS_TO_TOKEN_FILE and so on. Use them where the two peers are not one:
SPARK_STREAMS_PASSWORD goes to both.

\b
What is copied: value, key, properties, application properties and annotations, as
a Spark query would copy them, or the event as it is stored where columns cannot say
it; feeds have value and key. Events of one key stay in
their order. It is at least once: when a copy ends early, a line of JSON says how far
each partition has come, to go on with --partition and --from.


Events that are gone before they are read (retention) end a copy with exit code 1,
when all that was read before them is confirmed. With --allow-loss a warning says
what is missing, and the copy goes on with what is left.

\b
Examples:
  spark-streams copy amqp://localhost:5672#orders http://localhost:8080/copies
  spark-streams copy http://localhost:8080/orders rabbitmq-stream://localhost:5552#orders --follow
"""


@click.command(epilog=_EPILOG)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--from", "start", default="earliest", show_default=True, metavar="WHERE", help="Where to begin; see below."
)
@click.option("--partition", help="Only this one.  [default: all]")
@click.option("--allow-loss", is_flag=True, help="Go on where events are gone, with a warning.  [default: fail]")
@click.option("--follow", is_flag=True, help="Go on as new events come, until Ctrl-C.")
@tls_options
@peer_options("FROM", "FROM's user", "FROM, if it is a feed", partitions=True)
@peer_options("TO", "TO's user", "TO, if it is a feed")
def copy(
    source: str,
    target: str,
    start: str,
    partition: str | None,
    allow_loss: bool,
    follow: bool,
    tls: Tls | None,
    from_options: PeerOptions,
    to_options: PeerOptions,
) -> None:
    """Copy a stream from one peer to another, between any two protocols."""
    # If just one of the two urls has a TLS scheme, the TLS options apply only to it.
    both = speaks_tls(source) == speaks_tls(target)
    origin = read_peer(source, from_options, tls=tls if both or speaks_tls(source) else None)
    destination = read_peer(target, to_options, tls=tls if both or speaks_tls(target) else None)
    if str(origin) == str(destination):
        raise OptionError("TO", f"is {destination}, which is what is read: expected another stream")
    interrupted = Interrupted()
    with (
        destination.open_writer() as writer,
        origin.open_reader(ReadRequest(start, partition, origin.copied, not allow_loss)) as reader,
    ):
        job = _Job(reader, writer)
        try:
            with EventBar(f"{origin.stream} to {destination.stream}", reader.left()) as bar:
                job.run(bar, follow, interrupted)
        except SparkStreamsError as fault:
            job.tell_positions()
            if isinstance(fault, PositionLost):
                raise SparkStreamsError(_missing(fault)) from fault
            raise
    click.echo(f"{job.confirmed} {'event' if job.confirmed == 1 else 'events'} copied from {origin} to {destination}")
    if interrupted:
        job.tell_positions()
        raise click.exceptions.Exit(INTERRUPTED)


class _Job:
    """The state of a copy: the events sent and confirmed, and the confirmed positions."""

    def __init__(self, reader: PeerReader, writer: PeerWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sent = 0
        self.confirmed = 0
        self._positions = reader.positions

    def run(self, bar: EventBar, follow: bool, interrupted: Interrupted) -> None:
        while True:
            try:
                for batch in self._reader.new_events():
                    for rows in _steps(batch):
                        self._writer.send(rows)
                        self._sent += rows.num_rows
                        bar.show(self._sent)
                    if self._sent - self.confirmed >= _FLUSH_ROWS:
                        self._confirm()
                    if interrupted:
                        break
            except PositionLost:
                self._confirm()  # the events before the loss
                raise
            self._confirm()
            if not follow or interrupted:
                return
            time.sleep(POLL_S)

    def tell_positions(self) -> None:
        """Print to stderr the position from which each partition can continue."""
        click.echo(json.dumps({"copied": self.confirmed, "from": self._positions}), err=True)

    def _confirm(self) -> None:
        self._writer.flush()
        self.confirmed, self._positions = self._sent, self._reader.positions


def _steps(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, _STEP_ROWS):
        yield batch.slice(start, _STEP_ROWS)


def _missing(fault: PositionLost) -> str:
    """Return the message about a loss, with the options of the command that help."""
    if fault.partition is None:
        return f"stream '{fault.stream}': {fault.available}: copy the new one with --from earliest"
    return (
        f"stream '{fault.stream}' partition '{fault.partition}': copying was to go on {fault.asked}, but "
        f"{fault.available}. Events may be missing: say --allow-loss to go on with what is left"
    )
