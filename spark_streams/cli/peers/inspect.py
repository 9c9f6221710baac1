"""``spark-streams inspect``: what a peer has and can, as tables."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from spark_streams.cli.peers.peer import PEER_EPILOG, Peer, read_peer, token_options
from spark_streams.cli.sign_in import password_option, tls_options
from spark_streams.endpoint import Tls
from spark_streams.position import EARLIEST

__all__ = ["inspect"]

_EPILOG = f"""{PEER_EPILOG}
\b
Examples:
  spark-streams inspect amqp://guest:guest@localhost:5672#orders
  spark-streams inspect rabbitmq-stream://guest:guest@localhost:5552 orders
  spark-streams inspect https://example.com/feeds/orders --json
"""


@click.command(epilog=_EPILOG)
@click.argument("url")
@click.argument("stream", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@tls_options
@password_option()
@token_options()
def inspect(
    url: str,
    stream: str | None,
    as_json: bool,
    tls: Tls | None,
    password_file: str | None,
    token: str | None,
    token_file: str | None,
) -> None:
    """Show a stream of any peer: its partitions, what they retain, and what the peer can do.

    STREAM is needed where the URL does not name it.
    """
    peer = read_peer(url, stream, tls, token, token_file=token_file, password_file=password_file)
    found = _feed(peer) if peer.is_feed else _log(peer)
    if as_json:
        click.echo(json.dumps(found))
        return
    console = Console()
    title = f"{found['stream']} ({found['kind']}) at {found['url']}"
    facts = Table(title=title, title_justify="left", show_header=False)
    for name, value in found["peer"].items():
        facts.add_row(name, ", ".join(value) if isinstance(value, list) else str(value))
    console.print(facts)
    partitions = Table()
    for name in found["partitions"][0] if found["partitions"] else ("partition",):
        partitions.add_column(name, justify="right" if name == "events" else "left", overflow="fold")
    for row in found["partitions"]:
        partitions.add_row(*("" if cell is None else str(cell) for cell in row.values()))
    console.print(partitions)
    for partition, why in found.get("unavailable", {}).items():
        console.print(f"partition {partition} is not there: {why}")


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
