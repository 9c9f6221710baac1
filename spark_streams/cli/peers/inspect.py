"""Command ``spark-streams inspect``, which shows the streams and capabilities of a peer as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import click
from rich.console import Console

from spark_streams.cli.credentials import PeerOptions, tls_options
from spark_streams.cli.peers.peer import PEER_EPILOG, Peer, partitions_option, peer_options, read_peer
from spark_streams.cli.peers.tables import plain_console, print_facts, print_rows
from spark_streams.endpoint import Tls
from spark_streams.errors import NotFound, OptionError, SparkStreamsError

_EPILOG = f"""{PEER_EPILOG}
\b
Without a STREAM, in the URL or after it, all streams that the user may read are
shown, where the peer lists them: our log does, at each of its doors. The protocols
have no list: of any other peer only what it says of itself is shown, and
`rabbitmqctl list_queues name type` lists a broker's. A feed's address is its name.

\b
Examples:
  spark-streams inspect amqp://guest:guest@localhost:5672
  spark-streams inspect amqp://guest:guest@localhost:5672#orders
  spark-streams inspect rabbitmq-stream://guest:guest@localhost:5552 orders payments
  spark-streams inspect https://example.com/feeds/orders --json
  spark-streams inspect http://localhost:8080
"""


@click.command(epilog=_EPILOG)
@click.argument("url")
@click.argument("streams", metavar="[STREAM]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a stream and line instead of tables.")
@partitions_option()
@tls_options
@peer_options()
def inspect(url: str, streams: tuple[str, ...], as_json: bool, tls: Tls | None, options: PeerOptions) -> None:
    """Show streams of any peer: their partitions, what they retain, and the peer's capabilities.

    Without a STREAM, and none in the URL, all of them where the peer lists them, else the peer itself.
    """
    peer = read_peer(url, options, streams[0] if streams else None, tls, needs_stream=False)
    if not all(streams):
        raise OptionError("STREAM", "is empty: expected the name of a stream")
    console = plain_console()
    listed: list[dict[str, Any]] | None = None
    failed = False
    for found in _all(peer, streams):
        failed |= "fault" in found
        if as_json:
            click.echo(json.dumps(found))
        elif listed is not None:
            listed.append(found)
        else:
            _print_head(console, found)
            if "streams" not in found:
                print_rows(console, found["partitions"])
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
    if peer.names_stream:
        for each in (peer, *(replace(peer, stream=name) for name in streams[1:])):
            yield _stream(each)
        return
    found = peer.about()
    if found is None:
        yield _stream(peer)
        return
    yield {"url": str(peer.endpoint), "stream": None, **found}
    for name in found["streams"] or ():
        try:
            yield _stream(peer.named(name))
        except NotFound:
            continue  # deleted meanwhile
        except SparkStreamsError as fault:
            yield {"url": str(peer.endpoint), "stream": name, "partitions": [], "fault": str(fault)}


def _print_head(console: Console, found: dict[str, Any]) -> None:
    what = found["kind"] if found["stream"] is None else f"{found['stream']} ({found['kind']})"
    console.print(f"{what} at {found['url']}", style="italic", soft_wrap=True)
    if found["peer"]:
        print_facts(console, found["peer"])
    if "why" in found:
        console.print(f"Its streams are not known: {found['why']}", soft_wrap=True)


def _print_streams(console: Console, listed: list[dict[str, Any]]) -> None:
    """Print the partitions of several streams of one peer as one table."""
    if not listed:
        console.print("It has no streams, or none that this user may read.")
        return
    print_rows(console, [{"stream": found["stream"], **row} for found in listed for row in found["partitions"]])
    for found in listed:
        _print_unavailable(console, found)
        if "fault" in found:
            console.print(f"{found['stream']} cannot be shown: {found['fault']}", soft_wrap=True)


def _print_unavailable(console: Console, found: dict[str, Any]) -> None:
    for partition, why in found.get("unavailable", {}).items():
        console.print(f"partition {partition} of {found['stream']} is not there: {why}", soft_wrap=True)


def _stream(peer: Peer) -> dict[str, Any]:
    return {"url": str(peer.endpoint), "stream": peer.stream, **peer.describe()}
