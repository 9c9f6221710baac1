"""``spark-streams inspect``: what a peer has and can, as tables."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from spark_streams.cli.peers.peer import PEER_EPILOG, TIMEOUT_MS, Peer, partitions_option, read_peer, token_options
from spark_streams.cli.sign_in import password_option, tls_options
from spark_streams.client import AmqpClient, RabbitClient
from spark_streams.endpoint import Tls
from spark_streams.errors import OptionError
from spark_streams.position import EARLIEST

__all__ = ["inspect"]

_NO_LIST: Final = {
    False: "AMQP has no way to ask a peer which event streams it has",
    True: "the RabbitMQ stream protocol has no command that lists the streams of a broker",
}
"""Why streams have to be named, of a peer that is no RabbitMQ broker, and of one that is."""
_EPILOG = f"""{PEER_EPILOG}
\b
Without a STREAM, in the URL or after it, only what the peer says of itself is shown:
neither AMQP nor RabbitMQ's stream protocol can list streams. Of our log
`spark-streams log info --data-dir DIR` lists them, of a broker
`rabbitmqctl list_queues name type`. A feed's address is its name.

\b
Examples:
  spark-streams inspect amqp://guest:guest@localhost:5672
  spark-streams inspect amqp://guest:guest@localhost:5672#orders
  spark-streams inspect rabbitmq-stream://guest:guest@localhost:5552 orders payments
  spark-streams inspect https://example.com/feeds/orders --json
"""


@click.command(epilog=_EPILOG)
@click.argument("url")
@click.argument("streams", metavar="[STREAM]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a stream and line instead of tables.")
@partitions_option()
@tls_options
@password_option()
@token_options()
def inspect(
    url: str,
    streams: tuple[str, ...],
    as_json: bool,
    partitions: int | None,
    tls: Tls | None,
    password_file: str | None,
    token: str | None,
    token_file: str | None,
) -> None:
    """Show streams of any peer: their partitions, what they retain, and what the peer can do.

    Without a STREAM, and none in the URL, what can be known of the peer itself.
    """
    peer = read_peer(
        url,
        streams[0] if streams else None,
        tls,
        token,
        token_file=token_file,
        password_file=password_file,
        partitions=partitions,
        needs_stream=False,
    )
    if not all(streams):
        raise OptionError("STREAM", "is empty: expected the name of a stream")
    for each in (peer, *(replace(peer, stream=name) for name in streams[1:])):
        found = _feed(each) if each.is_feed else _log(each) if each.stream else _peer(each)
        if as_json:
            click.echo(json.dumps(found))
        else:
            _print(found)


def _print(found: dict[str, Any]) -> None:
    console = Console()
    what = found["kind"] if found["stream"] is None else f"{found['stream']} ({found['kind']})"
    # A table's own title would be broken where the table is narrow.
    console.print(f"{what} at {found['url']}", style="italic", soft_wrap=True, markup=False, highlight=False)
    facts = Table(show_header=False)
    for name, value in found["peer"].items():
        facts.add_row(name, ", ".join(value) if isinstance(value, list) else str(value))
    console.print(facts)
    if "streams" in found:
        console.print(f"Its streams are not known: {found['why']}", soft_wrap=True, markup=False, highlight=False)
        return
    partitions = Table()
    for name in found["partitions"][0] if found["partitions"] else ("partition",):
        partitions.add_column(name, justify="right" if name == "events" else "left", overflow="fold")
    for row in found["partitions"]:
        partitions.add_row(*("" if cell is None else str(cell) for cell in row.values()))
    console.print(partitions)
    for partition, why in found.get("unavailable", {}).items():
        console.print(f"partition {partition} is not there: {why}")


def _peer(peer: Peer) -> dict[str, Any]:
    """Return what a peer says of itself, and why its streams are not there."""
    with (RabbitClient if peer.is_rabbit else AmqpClient)(peer.endpoint, timeout_ms=TIMEOUT_MS) as client:
        told = client.capabilities()
    return {
        "url": str(peer.endpoint),
        "stream": None,
        "kind": "RabbitMQ broker" if peer.is_rabbit else "AMQP peer",
        "peer": dict(told),
        "streams": None,
        "why": f"{_NO_LIST[peer.is_rabbit]}. Name those to show: spark-streams inspect {peer.endpoint.url} STREAM...",
    }


def _log(peer: Peer) -> dict[str, Any]:
    with peer.log_client() as client:
        description = client.describe(peer.stream)
        events = client.remaining(peer.stream, dict.fromkeys(description.partitions, EARLIEST))
        told = client.capabilities()
    about: dict[str, Any] = dict(told)
    if description.incarnation is not None:
        about["created as"] = description.incarnation
    kind = "AMQP event stream"
    if peer.is_rabbit:
        # The one partition of a stream is the stream itself.
        plain = {*description.partitions, *description.unavailable} == {peer.stream}
        kind = "RabbitMQ stream" if plain else "RabbitMQ super stream"
    rows = sorted(description.partitions.items(), key=lambda item: (len(item[0]), item[0]))
    return {
        "url": str(peer.endpoint),
        "stream": peer.stream,
        "kind": kind,
        "peer": about,
        "partitions": [
            {
                "partition": name,
                "events": events.get(name),
                "earliest": bounds.earliest,
                "latest": bounds.latest,
                "removed up to": bounds.truncated,
            }
            for name, bounds in rows
        ],
        "unavailable": description.unavailable,
    }


def _feed(peer: Peer) -> dict[str, Any]:
    with peer.feed_client() as client:
        discovery = client.discover()
        assert client.dialect is not None
        about: dict[str, Any] = {
            "dialect": client.dialect.value,
            "exactly once": _yes(discovery.exactly_once),
            "long responses (stream)": _yes(discovery.stream),
            "filters": list(discovery.filters),
        }
        rows = [
            {
                "partition": str(p.id),
                "closed": _yes(p.closed),
                "last cursor": p.last_cursor or client.last_cursor(p.id),
                "starts after": p.starts_after,
                "cursors from": ", ".join(map(str, p.cursor_from)) or None,
            }
            for p in discovery.partitions
        ]
    return {"url": str(peer.endpoint), "stream": peer.stream, "kind": "feed", "peer": about, "partitions": rows}


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"
