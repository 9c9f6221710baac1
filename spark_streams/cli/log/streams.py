"""Commands ``spark-streams log create``, ``delete`` and ``split``: streams of a served log, or of one in a directory.

Any other peer creates and deletes streams too, where its protocol can do it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from spark_streams.cli.arguments import StreamRequest, stream_request
from spark_streams.cli.credentials import PeerOptions, tls_options
from spark_streams.cli.peers.peer import PEER_EPILOG, Peer, peer_options, read_peer
from spark_streams.endpoint import Tls
from spark_streams.errors import LogLocked, NotFound, OptionError, StreamExists, UnknownStream
from spark_streams.log import ReferenceLog, StreamConfig

FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
"""The folder of an existing log."""


def existing_log(data_dir: Path) -> ReferenceLog:
    """Return the log in a folder; the caller closes it.

    Raises:
        OptionError: the folder has no log.
    """
    if not (data_dir / "lock").exists():
        raise OptionError("--data-dir", f"{data_dir} holds no log: `spark-streams log create` makes one")
    return ReferenceLog(data_dir)


def peer_stream(peer: Peer, name: str) -> Peer:
    """Return a stream of a peer, whose url must name no stream.

    Raises:
        OptionError: the url names a stream, or the protocol's urls cannot have the name.
    """
    if peer.names_stream:
        raise OptionError("URL", f"{peer} names a stream already: expected the address of the log, and names after it")
    return peer.named(name)


_CREATE_EPILOG: Final = f"""\b
The url is that of any door of the log but its Event Hubs door. Its user needs
permission 'configure' on the names. A RabbitMQ creates streams too, by
rabbitmq-stream://; with PARTITIONS a super stream of NAME-0, NAME-1 and so on.
--data-dir is for a log that nobody serves: the server alone may touch its directory
while it runs.

{PEER_EPILOG}
\b
Examples:
  spark-streams log create amqp://guest:guest@localhost:5672 orders:4 payments
  spark-streams log create http://localhost:8080 orders:4 --retention-ms 86400000
  spark-streams log create --data-dir ./data orders:4 --timestamp-type create
"""
_DELETE_EPILOG: Final = f"""\b
The url is that of any door of the log but its Event Hubs door. Its user needs
permission 'configure' on the names.

{PEER_EPILOG}
\b
Examples:
  spark-streams log delete amqp://guest:guest@localhost:5672 orders
  spark-streams log delete --data-dir ./data orders payments
"""


@click.command(epilog=_CREATE_EPILOG)
@click.argument("words", metavar="[URL] NAME[:PARTITIONS]...", nargs=-1, required=True)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="In place of a URL: where a log lives that is not being served; made when it is not there.",
)
@click.option(
    "--timestamp-type",
    type=click.Choice(["append", "create"]),
    help="An event's timestamp: when it was appended, or its producer's creation-time.  [default: append]",
)
@click.option(
    "--retention-bytes",
    "retention_max_bytes",
    type=click.IntRange(0),
    help="Keep about this much of each partition.  [default: all]",
)
@click.option(
    "--retention-ms",
    "retention_max_age_ms",
    type=click.IntRange(0),
    help="Keep events for this long.  [default: forever]",
)
@click.option(
    "--segment-bytes",
    "segment_max_bytes",
    type=click.IntRange(1),
    help=f"Size of a segment file; whole segments are removed.  [default: {StreamConfig.segment_max_bytes}]",
)
@click.option(
    "--if-not-exists",
    is_flag=True,
    help="A stream that is there already is no error; with a number of PARTITIONS, if it has as many.",
)
@tls_options
@peer_options()
def create(
    words: tuple[str, ...],
    data_dir: Path | None,
    if_not_exists: bool,
    tls: Tls | None,
    options: PeerOptions,
    **settings: Any,
) -> None:
    """Create streams, each NAME[:PARTITIONS], in a log that is being served, or in its directory."""
    given = {name: value for name, value in settings.items() if value is not None}
    url, names = _arguments(words, data_dir)
    streams = [stream_request(name) for name in names]
    if data_dir is not None:
        _create_stored(data_dir, streams, StreamConfig(**given), if_not_exists)
        return
    peer = read_peer(url, options, tls=tls, needs_stream=False)
    for request in streams:
        created = _create_served(peer_stream(peer, request.name), request, given, if_not_exists)
        click.echo(f"{request.name}: {'created' if created else 'was there'}")


@click.command(epilog=_DELETE_EPILOG)
@click.argument("words", metavar="[URL] NAME...", nargs=-1, required=True)
@click.option("--data-dir", type=FOLDER, help="In place of a URL: where a log lives that is not being served.")
@click.option("--if-exists", is_flag=True, help="A stream that is not there is no error.")
@tls_options
@peer_options()
def delete(
    words: tuple[str, ...], data_dir: Path | None, if_exists: bool, tls: Tls | None, options: PeerOptions
) -> None:
    """Delete streams with all their events, of a log that is being served, or in its directory."""
    url, names = _arguments(words, data_dir)
    if data_dir is not None:
        with _unserved(existing_log, data_dir) as log:
            _delete(names, log.delete_stream, if_exists)
    else:
        peer = read_peer(url, options, tls=tls, needs_stream=False)
        _delete(names, lambda name: peer_stream(peer, name).delete(), if_exists)


def _arguments(words: Sequence[str], data_dir: Path | None) -> tuple[str, Sequence[str]]:
    """Return the url, which is empty with a data directory, and the names."""
    if data_dir is not None:
        found = next((word for word in words if "://" in word), None)
        if found is not None:
            raise click.UsageError("expected a URL or --data-dir, not both")
        return "", words
    if len(words) < 2 or ("://" not in words[0] and not words[0].startswith("Endpoint=")):
        raise click.UsageError("expected the URL of a log and names of streams, or --data-dir DIR and names")
    return words[0], words[1:]


def _unserved(opened: Callable[[Path], ReferenceLog], data_dir: Path) -> ReferenceLog:
    """Return the log in a folder; the caller closes it.

    Raises:
        LogLocked: a server uses the folder; the message says how to change streams then.
    """
    try:
        return opened(data_dir)
    except LogLocked as fault:
        raise LogLocked(f"{fault}. While a log is served, name its url in place of --data-dir") from fault


def _create_stored(data_dir: Path, streams: Sequence[StreamRequest], config: StreamConfig, if_not_exists: bool) -> None:
    with _unserved(ReferenceLog, data_dir) as log:
        there = {stream.name for stream in log.streams()}
        for request in streams:
            if request.name in there and not if_not_exists:
                raise _exists(request.name)
            dataclasses.replace(request, config=config).ensure(log)
            click.echo(f"{request.name}: {'was there' if request.name in there else 'created'}")


def _create_served(peer: Peer, request: StreamRequest, settings: dict[str, Any], if_not_exists: bool) -> bool:
    """Create a stream, and return whether this call created it.

    Raises:
        StreamExists: it existed, and ``if_not_exists`` is False.
        OptionError: it existed with another number of partitions.
    """
    if peer.create(request.partitions, settings):
        return True
    if not if_not_exists:
        raise _exists(request.name)
    if request.partitions is not None:
        found = len(peer.describe()["partitions"])
        if request.partitions != found:
            raise request.with_others("NAME", found)
    return False


def _exists(name: str) -> StreamExists:
    return StreamExists(f"there is a stream '{name}' already: choose another name, or say --if-not-exists")


def _delete(names: Sequence[str], delete_stream: Callable[[str], None], if_exists: bool) -> None:
    for name in names:
        try:
            delete_stream(name)
        except (NotFound, UnknownStream):
            if not if_exists:
                raise
            click.echo(f"{name}: was not there")
        else:
            click.echo(f"{name}: deleted")


_SPLIT_EPILOG = """\b
Without --history the partition is closed: it keeps its events and takes no more,
and the new ones start after it. With --history its events are redistributed onto
the new ones, by their keys, and it is gone; FeedAPI cursors of it stay valid.
Events of one key are always on one open partition.

\b
The server alone may touch its directory: while it runs, ask its FeedAPI door,
POST /NAME/partitions/PARTITION/split?into=N&history=true

\b
Examples:
  spark-streams log split --data-dir ./data orders 0
  spark-streams log split --data-dir ./data orders 0 --into 4 --history
"""


@click.command(epilog=_SPLIT_EPILOG)
@click.argument("name")
@click.argument("partition")
@click.option("--into", type=click.IntRange(2), default=2, show_default=True, help="How many take its place.")
@click.option("--history", is_flag=True, help="Redistribute its events too.")
@click.option("--data-dir", type=FOLDER, required=True, help="Where the log lives; it must not be served.")
def split(name: str, partition: str, into: int, history: bool, data_dir: Path) -> None:
    """Split PARTITION of the stream NAME into several."""
    with existing_log(data_dir) as log:
        before = set(log.stream(name).partitions)
        try:
            stream = log.split_partition(name, partition, into, history=history)
        except ValueError as fault:
            raise OptionError("PARTITION", f"partition '{partition}' of '{name}' cannot be split: {fault}") from fault
        new = [number for number in stream.partitions if number not in before]
    became = "redistributed onto" if history else "closed, followed by"
    click.echo(f"{name}: partition {partition} {became} {', '.join(new)}")
