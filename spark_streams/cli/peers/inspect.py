"""Command ``spark-streams inspect``, which shows streams of a peer, or of a log in a folder, as tables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from spark_streams.cli.credentials import PeerOptions, tls_options
from spark_streams.cli.errors import fault_line
from spark_streams.cli.log.streams import FOLDER, existing_log, peer_stream
from spark_streams.cli.peers.log_peers import splits
from spark_streams.cli.peers.peer import PEER_EPILOG, Peer, peer_options, read_peer
from spark_streams.cli.peers.terminal import plain_console, print_facts, print_rows
from spark_streams.endpoint import Tls
from spark_streams.errors import NotFound, OptionError, PeerError, SparkStreamsError
from spark_streams.log import format_offset

_OF_SPLITS: Final = ("closed", "starts_after", "cursor_from")
_EPILOG = f"""{PEER_EPILOG}
\b
Without a STREAM, in the URL or after it, all streams that the user may read are
shown, where the peer lists them: our log does, at each of its doors. The protocols
have no list: of any other peer only what it says of itself is shown, and
`rabbitmqctl list_queues name type` lists a broker's. A feed's address is its name.
Of each stream that is named the settings are shown too, where the peer tells them.

\b
Examples:
  spark-streams inspect amqp://guest:guest@localhost:5672
  spark-streams inspect amqp://guest:guest@localhost:5672#orders
  spark-streams inspect rabbitmq-stream://guest:guest@localhost:5552 orders payments
  spark-streams inspect https://example.com/feeds/orders --json
  spark-streams inspect http://localhost:8080
  spark-streams inspect --data-dir ./data orders
"""


@click.command(epilog=_EPILOG)
@click.argument("words", metavar="[URL] [STREAM]...", nargs=-1)
@click.option("--data-dir", type=FOLDER, help="In place of a URL: look into a log that is not being served.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a stream and line instead of tables.")
@tls_options
@peer_options(partitions=True)
def inspect(
    words: tuple[str, ...], data_dir: Path | None, as_json: bool, tls: Tls | None, options: PeerOptions
) -> None:
    """Show streams of any peer: their settings and partitions, what they retain, and the peer's capabilities.

    Without a STREAM, and none in the URL, all of them where the peer lists them, else the peer itself.
    """
    if not words and data_dir is None:
        raise click.UsageError("expected a URL, or --data-dir DIR")
    names = words if data_dir is not None else words[1:]
    if not all(names):
        raise OptionError("STREAM", "is empty: expected the name of a stream")
    if data_dir is not None:
        told = _stored(data_dir, names)
    else:
        told = _all(read_peer(words[0], options, tls=tls, needs_stream=False), names)
    console = plain_console()
    listed: list[dict[str, Any]] | None = None
    failed = False
    for found in told:
        failed |= "fault" in found
        if as_json:
            click.echo(json.dumps(found))
        elif listed is not None:
            listed.append(found)
        else:
            _print_head(console, found)
            if "streams" not in found:
                print_rows(console, _rows(found))
                _print_unavailable(console, found)
            elif found["streams"] is not None:
                listed = []
    if listed is not None:
        _print_streams(console, listed)
    if failed:
        raise SystemExit(1)


def _all(peer: Peer, streams: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the results to show: each named stream; without any, the peer and each stream that it lists.

    A listed stream that cannot be described has key ``fault`` with the error; the other streams are shown all the same.
    """
    named = [peer_stream(peer, name) for name in streams] or ([peer] if peer.names_stream else [])
    found = None if named else peer.about()
    if found is None:
        for each in named or [peer]:
            yield _stream(each) | _settings(each)
        return
    yield {"url": str(peer.endpoint), "stream": None, **found}
    for name in found["streams"] or ():
        try:
            yield _stream(peer.named(name))
        except NotFound:
            continue  # deleted meanwhile
        except SparkStreamsError as fault:
            yield {"url": str(peer.endpoint), "stream": name, "partitions": [], "fault": str(fault)}


def _stored(data_dir: Path, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield each named stream of the log in a folder; without any, all of them."""
    with existing_log(data_dir) as log:
        for stream in map(log.stream, names) if names else log.streams():
            yield {
                "url": str(data_dir),
                "stream": stream.name,
                "kind": "stream of a log",
                "peer": {"created as": stream.incarnation},
                "config": dataclasses.asdict(stream.config),
                "partitions": [
                    {
                        "partition": p.id,
                        "events": p.next_offset - p.first_offset,
                        "earliest": format_offset(p.first_offset) if p.next_offset > p.first_offset else None,
                        "latest": format_offset(p.next_offset - 1) if p.next_offset > p.first_offset else None,
                        "bytes": p.stored_bytes,
                        "segments": p.segment_count,
                        **splits(p),
                    }
                    for p in stream.partitions.values()
                ],
            }


def _print_head(console: Console, found: dict[str, Any]) -> None:
    """Print what is shown, what its peer says of itself, and a stream's settings."""
    what = found["kind"] if found["stream"] is None else f"{found['stream']} ({found['kind']})"
    console.print(f"{what} at {found['url']}", style="italic", soft_wrap=True)
    facts = dict(found["peer"])
    if found.get("config"):
        facts["partitions"] = len(found["partitions"])
        facts |= {name: "no limit" if value is None else value for name, value in found["config"].items()}
    if facts:
        print_facts(console, facts)
    if "why" in found:
        unknown = "Its streams are not known: " if found["stream"] is None else "Its settings are not known: "
        console.print(unknown + found["why"], soft_wrap=True)


def _rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the partitions of a stream as rows, with their splits in words; a feed's have columns of their own."""
    return [_row(partition) if "starts_after" in partition else partition for partition in found["partitions"]]


def _row(partition: dict[str, Any]) -> dict[str, Any]:
    after, others = partition["starts_after"], partition["cursor_from"]
    facts = [
        *([] if after is None else [f"starts after {after}"]),
        *([f"history of {', '.join(others)}"] if others else []),
        *(["closed"] if partition["closed"] else []),
    ]
    rest = {name: each for name, each in partition.items() if name not in _OF_SPLITS}
    return {**rest, "split": "; ".join(facts)}


def _print_streams(console: Console, listed: list[dict[str, Any]]) -> None:
    """Print the partitions of several streams of one peer as one table."""
    if not listed:
        console.print("It has no streams, or none that this user may read.")
        return
    print_rows(console, [{"stream": found["stream"], **row} for found in listed for row in _rows(found)])
    for found in listed:
        _print_unavailable(console, found)
        if "fault" in found:
            console.print(f"{found['stream']} cannot be shown: {found['fault']}", soft_wrap=True)


def _print_unavailable(console: Console, found: dict[str, Any]) -> None:
    for partition, why in found.get("unavailable", {}).items():
        console.print(f"partition {partition} of {found['stream']} is not there: {why}", soft_wrap=True)


def _stream(peer: Peer) -> dict[str, Any]:
    return {"url": str(peer.endpoint), "stream": peer.stream, **peer.describe()}


def _settings(peer: Peer) -> dict[str, Any]:
    """Return what a peer tells of a stream's settings; ``config`` is None with ``why`` where it does not tell them.

    Whatever makes the request for the settings fail, the partitions that were found are still shown.
    """
    try:
        return {"config": peer.settings()}
    except SparkStreamsError as fault:
        told = fault.description if isinstance(fault, PeerError) else ""
        return {"config": None, "why": told or fault_line(fault)}
