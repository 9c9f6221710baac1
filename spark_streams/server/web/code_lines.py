"""The lines of PySpark that read and write a stream through each door, ready to copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from spark_streams.log import Stream
from spark_streams.protocols import PROTOCOLS, DoorEntry, with_doors
from spark_streams.server.door_config import DEFAULT_USERS


@dataclass(frozen=True)
class CodeLines:
    """Lines for one door.

    Args:
        title: what people call it.
        read: lines that read the stream.
        write: lines that write a frame to it.
    """

    title: str
    read: str
    write: str


def code_of(stream: Stream, doors: Sequence[Any]) -> list[CodeLines]:
    """Return the lines for each door that is open and has a format; they never hold a user's own password.

    Args:
        stream: the stream.
        doors: the doors of the server.
    """
    found = []
    entries = with_doors()
    for door in doors:
        entry = entries.get(door.name)
        if door.url and entry is not None and entry.format is not None:
            pairs = _options(door, entry, stream)
            found.append(CodeLines(entry.title, _read(entry.format, pairs), _write(entry.format, pairs)))
    return found


def _options(door: Any, entry: DoorEntry, stream: Stream) -> dict[str, str]:
    """Return the options that lead to a stream through a door."""
    protocol = PROTOCOLS.get(entry.name)
    if protocol is not None and protocol.path == "any":  # its urls name the stream
        return {entry.url_option: f"{door.url}/{quote(stream.name)}", **_user(door)}
    option = "stream" if protocol is None else protocol.stream_option
    if protocol is not None and protocol.partitioned_option is not None and len(stream.partitions) > 1:
        option = protocol.partitioned_option
    where = {entry.url_option: door.url, option: stream.name}
    return where if protocol is None else {**where, **_user(door)}


def _user(door: Any) -> dict[str, str]:
    """Return the options that sign in: the well-known password, or a placeholder for the user's own or for a token."""
    if not door.config.users:
        return {"token": "..."} if getattr(door.config, "tokens", ()) else {}
    if dict(door.config.users) == dict(DEFAULT_USERS):
        return dict(zip(("username", "password"), next(iter(DEFAULT_USERS.items())), strict=True))
    return {"username": "...", "password": "..."}


def _read(name: str, pairs: dict[str, str]) -> str:
    options = _lines({**pairs, "startingOffsets": "earliest"})
    return f"events = (\n    spark.readStream.format({_text(name)})\n{options}\n    .load()\n)"


def _write(name: str, pairs: dict[str, str]) -> str:
    options = _lines({**pairs, "checkpointLocation": "..."})
    return f"query = (\n    events.writeStream.format({_text(name)})\n{options}\n    .start()\n)"


def _lines(options: dict[str, str]) -> str:
    return "\n".join(f"    .option({_text(key)}, {_text(each)})" for key, each in options.items())


def _text(value: str) -> str:
    """Return a text as Python writes it, with double quotes where that is possible."""
    written = repr(value)
    plain = '"' not in value and "\\" not in written
    return f'"{value}"' if plain and value.isprintable() and "'" not in value else written
