"""``spark-streams log tail``: events of a stream as lines of text."""

from __future__ import annotations

import base64
import json
import signal
import sys
import time
from types import FrameType
from typing import Any, Final

import click
import numpy as np
import pyarrow as pa

from spark_streams.cli.faults import INTERRUPTED
from spark_streams.cli.words import endpoint_of, tls_options
from spark_streams.client import AmqpClient, Bounds, RangeRead
from spark_streams.errors import NotFound, OptionError, PositionLost
from spark_streams.option_values import instant_ms
from spark_streams.position import EARLIEST, After, At, Earliest
from spark_streams.rows import COMMON_SCHEMA

__all__ = ["tail"]

_POLL_S: Final = 0.2
_COLUMNS: Final = tuple(COMMON_SCHEMA.names)
_EPILOG = """\b
--from takes:
  earliest          all that is retained
  latest            what comes from now on
  offset:OFFSET     this event and what follows; needs --partition
  after:OFFSET      what follows this event; needs --partition
  timestamp:WHEN    from the first event not earlier than WHEN, which is milliseconds
                    since 1970 (negative before it) or ISO 8601

\b
Within a partition events come in their order; between partitions there is none.

\b
Examples:
  spark-streams log tail amqp://guest:guest@localhost:5672 orders
  spark-streams log tail amqp://guest:guest@localhost:5672 orders --from earliest --no-follow
  spark-streams log tail amqp://guest:guest@localhost:5672 orders --from timestamp:1957-10-04 --output json
"""


@click.command(epilog=_EPILOG)
@click.argument("url")
@click.argument("stream")
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
    help="text: partition, offset, timestamp, key and value between tabs; json: an object a line; value: bodies only.",
)
@tls_options
def tail(
    url: str,
    stream: str,
    start: str,
    partition: str | None,
    count: int | None,
    no_follow: bool,
    output: str,
    tls_ca: str | None,
) -> None:
    """Print the events of STREAM, and go on as new ones come until Ctrl-C."""
    left = count
    interrupted = _Interrupted()
    with AmqpClient(endpoint_of(url, tls_ca)) as client:
        reader = _Tail(client, stream, partition, start)
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
            time.sleep(_POLL_S)


class _Interrupted:
    """True once Ctrl-C came; the second Ctrl-C ends the process on the spot.

    A KeyboardInterrupt could be raised anywhere, in the middle of the AMQP engine too, and in a finaliser it is lost.
    """

    def __init__(self) -> None:
        self._came = False
        signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def __bool__(self) -> bool:
        return self._came


class _Tail:
    """Where reading stands in each partition."""

    def __init__(self, client: AmqpClient, stream: str, only: str | None, start: str) -> None:
        self._client = client
        self._stream = stream
        self._only = only
        self._incarnation = client.describe(stream).incarnation
        self._positions = {p: self._begin(start, p, bounds) for p, bounds in self._partitions().items()}

    def _partitions(self) -> dict[str, Bounds]:
        """Return the partitions that are wanted, and their bounds now."""
        description = self._client.describe(self._stream)
        if description.incarnation != self._incarnation:
            raise PositionLost(
                self._stream, None, "in the stream as it was", "it was deleted and created again under its name"
            )
        if self._only is None:
            return dict(sorted(description.partitions.items(), key=lambda item: (len(item[0]), item[0])))
        if self._only not in description.partitions:
            known = ", ".join(sorted(description.partitions))
            raise NotFound("amqp:not-found", f"there are: {known}", f"stream '{self._stream}' partition '{self._only}'")
        return {self._only: description.partitions[self._only]}

    def _begin(self, start: str, partition: str, bounds: Bounds) -> Earliest | At | After:
        end = EARLIEST if bounds.latest is None else After(bounds.latest)
        word, colon, operand = start.partition(":")
        if start == "earliest":
            return EARLIEST
        if start == "latest":
            return end
        if word in ("offset", "after") and operand:
            if self._only is None:
                raise OptionError("--from", f"'{start}': an offset means nothing without --partition")
            return At(operand) if word == "offset" else After(operand)
        if word == "timestamp" and colon:
            found = self._client.first_at_time(self._stream, partition, instant_ms("--from", operand))
            return end if found is None else At(found)
        raise OptionError(
            "--from", f"'{start}' is none of earliest, latest, offset:OFFSET, after:OFFSET, timestamp:WHEN"
        )

    def new_events(self) -> Any:
        """Yield what there is to read up to the ends of now, partition by partition."""
        for partition, bounds in self._partitions().items():
            position = self._positions.get(partition, EARLIEST)
            if bounds.latest is None or (isinstance(position, (At, After)) and _beyond(position, bounds.latest)):
                continue
            read = RangeRead(self._stream, partition, position, bounds.latest, _COLUMNS, fail_on_data_loss=False)
            for batch in self._client.fetch(read):
                self._positions[partition] = After(batch.column("offset")[-1].as_py())
                yield batch
            self._positions[partition] = After(bounds.latest)


def _beyond(position: At | After, latest: str) -> bool:
    return position.offset > latest or (isinstance(position, After) and position.offset == latest)


def _print(batch: pa.RecordBatch, output: str) -> None:
    values = batch.column("value").to_pylist()
    out = sys.stdout.buffer
    if output == "value":
        out.writelines(value + b"\n" for value in values)
    else:
        columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "key")]
        rows = zip(*columns, _instants(batch.column("timestamp")), values, strict=True)
        line = _json if output == "json" else _text
        out.writelines(line(batch.column("stream")[0].as_py(), *row) for row in rows)
    out.flush()


def _instants(column: pa.Array) -> list[str | None]:
    """Return instants as ISO 8601 in UTC with milliseconds, of any year; None where there is none."""
    known = column.is_valid().to_pylist()
    moments = column.cast(pa.int64()).fill_null(0).to_numpy().view("datetime64[us]").astype("datetime64[ms]")
    texts = np.datetime_as_string(moments)
    return [f"{text}Z" if there else None for text, there in zip(texts, known, strict=True)]


def _text(stream: str, partition: str, offset: str, key: str | None, when: str | None, value: bytes) -> bytes:
    fields = (partition, offset, when or "-", key or "-", value.decode("utf-8", "backslashreplace"))
    return ("\t".join(field.replace("\n", "\\n") for field in fields) + "\n").encode()


def _json(stream: str, partition: str, offset: str, key: str | None, when: str | None, value: bytes) -> bytes:
    event: dict[str, Any] = {"stream": stream, "partition": partition, "offset": offset, "timestamp": when, "key": key}
    try:
        event["value"] = value.decode()
    except UnicodeDecodeError:
        event["value_base64"] = base64.b64encode(value).decode()
    return (json.dumps(event, ensure_ascii=False) + "\n").encode()
