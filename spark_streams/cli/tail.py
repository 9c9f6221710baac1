"""Command ``spark-streams tail``, which prints events of any peer as lines of text."""

from __future__ import annotations

import base64
import json
import signal
import sys
import time
from types import FrameType
from typing import Any, Final

import click
import pyarrow as pa

from spark_streams.cli.credentials import PeerOptions, tls_options
from spark_streams.cli.errors import INTERRUPTED
from spark_streams.cli.peers.peer import (
    PEER_EPILOG,
    POSITIONS_EPILOG,
    ReadRequest,
    peer_options,
    read_peer,
)
from spark_streams.endpoint import Tls
from spark_streams.instants import iso_instants
from spark_streams.rows import COMMON_SCHEMA

POLL_S: Final = 0.2
"""Seconds between two polls for new events."""
_COLUMNS: Final = tuple(COMMON_SCHEMA.names)
_ORDER: Final = ("stream", "partition", "offset", "timestamp", "key")
"""The columns with which a line of JSON begins."""
_EPILOG = f"""{PEER_EPILOG}
{POSITIONS_EPILOG}
\b
Examples:
  spark-streams tail amqp://guest:guest@localhost:5672#orders
  spark-streams tail http://localhost:8080/orders --from earliest --no-follow
  spark-streams tail rabbitmq-stream://guest:guest@localhost:5552 orders --output json
"""


@click.command(epilog=_EPILOG)
@click.argument("url")
@click.argument("stream", required=False)
@click.option(
    "--from", "start", default="latest", show_default=True, metavar="WHERE", help="Where to begin; see below."
)
@click.option("--partition", help="Only this one.  [default: all]")
@click.option("--count", type=click.IntRange(1), help="Stop after so many events.")
@click.option("--no-follow", is_flag=True, help="Stop at the end that there is now.")
@click.option(
    "--output",
    type=click.Choice(["text", "json", "value"]),
    default="text",
    show_default=True,
    help="text: partition, offset, timestamp, key and value between tabs; json: an object a line, with properties and "
    "annotations too; value: bodies only.",
)
@tls_options
@peer_options(partitions=True)
def tail(
    url: str,
    stream: str | None,
    start: str,
    partition: str | None,
    count: int | None,
    no_follow: bool,
    output: str,
    tls: Tls | None,
    options: PeerOptions,
) -> None:
    """Print the events of a stream, and go on as new ones come until Ctrl-C.

    STREAM is needed where the URL does not name it.
    """
    left = count
    interrupted = Interrupted()
    peer = read_peer(url, options, stream, tls)
    columns = peer.columns if output == "json" else _COLUMNS
    with peer.open_reader(ReadRequest(start, partition, columns)) as reader:
        while True:
            for batch in reader.new_events():
                if interrupted:
                    break
                shown = batch if left is None else batch.slice(0, left)
                _print(shown, output)
                if left is not None:
                    left -= shown.num_rows
                    if not left:
                        return
            if interrupted:
                raise click.exceptions.Exit(INTERRUPTED)
            if no_follow:
                return
            time.sleep(POLL_S)


class Interrupted:
    """True after the first Ctrl-C; the second Ctrl-C ends the process at once.

    Python could raise a KeyboardInterrupt anywhere, even in the middle of the AMQP engine, and loses it in a finaliser.
    """

    def __init__(self) -> None:
        self._came = False
        signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def __bool__(self) -> bool:
        return self._came


def _print(batch: pa.RecordBatch, output: str) -> None:
    out = sys.stdout.buffer
    if output == "json":
        times = _instants(batch.column("timestamp"))
        texts = batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", pa.array(times, pa.string()))
        out.writelines(_json(event) for event in _with_instants(texts).to_pylist())
    else:
        values = batch.column("value").to_pylist()
        if output == "value":
            out.writelines((value or b"") + b"\n" for value in values)
        else:
            columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "key")]
            rows = zip(*columns, _instants(batch.column("timestamp")), values, strict=True)
            out.writelines(_text(*row) for row in rows)
    out.flush()


def _with_instants(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose properties have instants as text: Python's datetime has only four digits for a year."""
    place = batch.schema.get_field_index("properties")
    if place < 0:
        return batch
    column = batch.column(place)
    names = [field.name for field in column.type]
    parts = [
        pa.array(_instants(part), pa.string()) if pa.types.is_timestamp(part.type) else part
        for part in column.flatten()
    ]
    texts = pa.StructArray.from_arrays(parts, names=names, mask=column.is_null())
    return batch.set_column(place, "properties", texts)


def _instants(column: pa.Array) -> list[str | None]:
    """Return instants of any year as ISO 8601 in UTC with milliseconds, and None for null."""
    texts = iso_instants(column.cast(pa.int64()).fill_null(0).to_numpy())
    return [
        f"{text[:-3]}Z" if there else None for text, there in zip(texts, column.is_valid().to_pylist(), strict=True)
    ]


def _text(partition: str, offset: str, key: str | None, when: str | None, value: bytes | None) -> bytes:
    body = "-" if value is None else value.decode("utf-8", "backslashreplace")
    fields = (partition, offset, when or "-", key or "-", body)
    return ("\t".join(field.replace("\n", "\\n") for field in fields) + "\n").encode()


def _json(event: dict[str, Any]) -> bytes:
    """Return a row as a line: the columns as Spark names them, without the fields of properties that are null."""
    shown = {name: event[name] for name in _ORDER if name in event} | _binary("value", event["value"])
    if event.get("properties") is not None:
        properties = {name: value for name, value in event["properties"].items() if value is not None}
        user = properties.pop("user_id", None)
        shown["properties"] = properties if user is None else properties | _binary("user_id", user)
    for name in ("application_properties", "message_annotations"):
        if event.get(name) is not None:
            shown[name] = dict(event[name])
    return (json.dumps(shown, ensure_ascii=False) + "\n").encode()


def _binary(name: str, value: bytes | None) -> dict[str, str | None]:
    """Return a binary value as text if it is UTF-8, else in base64 under a name that says so."""
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError as fault:
        return {f"{name}_base64": base64.b64encode(fault.object).decode()}
