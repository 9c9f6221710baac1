"""Commands ``spark-streams log info`` and ``split``, which show and split streams of a log."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Final

import click

from spark_streams.cli.credentials import PeerOptions, tls_options
from spark_streams.cli.errors import fault_line
from spark_streams.cli.peers.log_peers import AmqpPeer, in_order
from spark_streams.cli.peers.peer import PEER_EPILOG, Peer, partitions_option, peer_options, read_peer
from spark_streams.cli.peers.tables import plain_console, print_facts, print_rows
from spark_streams.client import Bounds
from spark_streams.endpoint import Tls
from spark_streams.errors import OptionError, PeerError, SparkStreamsError
from spark_streams.log import ReferenceLog, Stream, format_offset
from spark_streams.position import EARLIEST

_OF_SPLITS: Final = ("closed", "starts_after", "cursor_from")
FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
"""The folder of a log that is there."""


def existing_log(data_dir: Path) -> ReferenceLog:
    """Return the log in a folder; the caller closes it.

    Raises:
        OptionError: the folder has no log.
    """
    if not (data_dir / "lock").exists():
        raise OptionError("--data-dir", f"{data_dir} holds no log: `spark-streams log create` makes one")
    return ReferenceLog(data_dir)


_INFO_EPILOG = f"""{PEER_EPILOG}
\b
Examples:
  spark-streams log info amqp://guest:guest@localhost:5672 orders
  spark-streams log info http://localhost:8080 orders
  spark-streams log info --data-dir ./data
"""


@click.command(epilog=_INFO_EPILOG)
@click.argument("where", nargs=-1, metavar="[URL] [STREAM]")
@click.option(
    "--data-dir", type=FOLDER, help="Look into a log that is not being served; without STREAM at all of its streams."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a stream and line.")
@partitions_option()
@tls_options
@peer_options()
def info(where: tuple[str, ...], data_dir: Path | None, as_json: bool, tls: Tls | None, options: PeerOptions) -> None:
    """Show a stream: its settings, and of each partition how many events, and the first and last offset retained.

    The URL is that of any door of a log that is being served, or of any other peer.
    """
    if data_dir is None:
        if len(where) != 2:
            raise click.UsageError(
                "expected URL STREAM, or --data-dir DIR [STREAM]; `spark-streams inspect URL` shows all of a log"
            )
        found = [_served(peer_stream(read_peer(where[0], options, tls=tls, needs_stream=False), where[1]))]
    else:
        if len(where) > 1:
            raise click.UsageError("with --data-dir only a STREAM is expected")
        with existing_log(data_dir) as log:
            found = [_stored(stream) for stream in ([log.stream(where[0])] if where else log.streams())]
    for stream in found:
        if as_json:
            click.echo(json.dumps(stream))
        else:
            _print(stream)


def peer_stream(peer: Peer, name: str) -> Peer:
    """Return a stream of a peer, whose url is to name none.

    Raises:
        OptionError: the url names one; or the protocol's urls cannot have the name.
    """
    if peer.names_stream:
        raise OptionError("URL", f"{peer} names a stream already: expected the address of the log, and names after it")
    return peer.named(name)


def _served(peer: Peer) -> dict[str, Any]:
    """Return a peer's description of a stream; ``config`` is None with ``why`` where that lacks the settings.

    A request for the settings that fails in any way does not lose the partitions that are found.
    """
    found = _partitions(peer)
    try:
        config, why = peer.settings(), {}
    except SparkStreamsError as fault:
        told = fault.description if isinstance(fault, PeerError) else ""
        config, why = None, {"why": told or fault_line(fault)}
    return {"stream": peer.stream, "config": config, **why, **found}


def _partitions(peer: Peer) -> dict[str, Any]:
    if not isinstance(peer, AmqpPeer):
        return peer.describe()
    with peer.client() as client:
        description = client.describe(peer.stream)
        events = client.remaining(peer.stream, dict.fromkeys(description.partitions, EARLIEST))
    return {
        "incarnation": description.incarnation,
        "partitions": [
            {"partition": p, "events": events.get(p), "earliest": b.earliest, "latest": b.latest, **_splits(b)}
            for p, b in in_order(description.partitions)
        ],
    }


def _splits(bounds: Bounds) -> dict[str, Any]:
    """Return the fields of splits of a partition, as in ``_stored``; an empty dict without splits."""
    splits = {"closed": bounds.closed, "starts_after": bounds.starts_after, "cursor_from": list(bounds.cursor_from)}
    return splits if any(splits.values()) else {}


def _stored(stream: Stream) -> dict[str, Any]:
    return {
        "stream": stream.name,
        "incarnation": stream.incarnation,
        "config": dataclasses.asdict(stream.config),
        "partitions": [
            {
                "partition": p.id,
                "events": p.next_offset - p.first_offset,
                "earliest": format_offset(p.first_offset) if p.next_offset > p.first_offset else None,
                "latest": format_offset(p.next_offset - 1) if p.next_offset > p.first_offset else None,
                "bytes": p.stored_bytes,
                "segments": p.segment_count,
                "closed": p.closed,
                "starts_after": p.starts_after,
                "cursor_from": list(p.cursor_from),
            }
            for p in stream.partitions.values()
        ],
    }


def _story(partition: dict[str, Any]) -> str:
    """Return the splits of a partition as text, empty without any."""
    facts = []
    if partition.get("starts_after") is not None:
        facts.append(f"starts after {partition['starts_after']}")
    if partition.get("cursor_from"):
        facts.append(f"history of {', '.join(partition['cursor_from'])}")
    if partition.get("closed") in (True, "yes"):  # a feed says it as text
        facts.append("closed")
    return "; ".join(facts)


def _print(stream: dict[str, Any]) -> None:
    """Print a stream: its settings, and its partitions as a table."""
    console, partitions = plain_console(), stream["partitions"]
    console.print(stream["stream"], style="italic", soft_wrap=True)
    if stream["config"]:
        settings = {name: "no limit" if value is None else value for name, value in stream["config"].items()}
        print_facts(console, {"partitions": len(partitions), **settings})
    elif "why" in stream:
        console.print(f"Its settings are not known: {stream['why']}", soft_wrap=True)
    stories = [_story(partition) for partition in partitions]
    rows = [{name: p[name] for name in p if name not in _OF_SPLITS} for p in partitions]
    if any(stories):
        rows = [{**row, "split": story} for row, story in zip(rows, stories, strict=True)]
    print_rows(console, rows)


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
