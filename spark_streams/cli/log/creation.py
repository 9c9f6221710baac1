"""Commands ``spark-streams log create`` and ``delete``, for a served log, any other peer, or a data directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from spark_streams.cli.arguments import StreamRequest, stream_request
from spark_streams.cli.credentials import PeerOptions, tls_options
from spark_streams.cli.log.streams import FOLDER, existing_log, peer_stream
from spark_streams.cli.peers.peer import PEER_EPILOG, Peer, peer_options, read_peer
from spark_streams.endpoint import Tls
from spark_streams.errors import LogLocked, NotFound, StreamExists, UnknownStream
from spark_streams.log import ReferenceLog, StreamConfig

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
        LogLocked: a server uses it; the text says how streams are changed then.
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
    """Create a stream, and return whether it was not there.

    Raises:
        StreamExists: it was there.
        OptionError: it is there with another number of partitions.
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
