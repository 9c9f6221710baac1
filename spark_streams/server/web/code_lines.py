"""The lines of PySpark that read and write a stream through each door, ready to copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from spark_streams.log import Stream
from spark_streams.protocols import PROTOCOLS, with_doors
from spark_streams.server.door_config import DEFAULT_USERS


@dataclass(frozen=True)
class CodeLines:
    """Lines for one door.

    Args:
        door: its name.
        title: what people call it.
        read: lines that read the stream.
        write: lines that write a frame to it.
    """

    door: str
    title: str
    read: str
    write: str


def code_of(stream: Stream, doors: Sequence[Any]) -> list[CodeLines]:
    """Return the lines for each door that is open and has a format; a password is never in them.

    Args:
        stream: the stream.
        doors: the doors of the server.
    """
    found = []
    for door in doors:
        if not door.url:
            continue
        options = _options(door, stream)
        if options is not None:
            entry = with_doors()[door.name]
            name, pairs = options
            found.append(CodeLines(door.name, entry.title, _read(name, pairs), _write(name, pairs)))
    return found


def _options(door: Any, stream: Stream) -> tuple[str, dict[str, str]] | None:
    """Return the format of a door, and the options that name a stream there; None for a door without a format."""
    if door.name == "event-hubs":
        return "amqp-events", {"connectionString": door.url, "stream": stream.name}
    entry = PROTOCOLS.get(door.name)
    if entry is None:
        return None
    users = {} if not door.config.users else _user(door)
    if entry.name == "feedapi":
        return entry.format, {"url": f"{door.url}/{quote(stream.name)}", **users}
    option = entry.stream_option
    if entry.partitioned_option is not None and len(stream.partitions) > 1:
        option = entry.partitioned_option
    return entry.format, {"url": door.url, option: stream.name, **users}


def _user(door: Any) -> dict[str, str]:
    """Return the options that sign in; of a user's own password only where it goes."""
    if dict(door.config.users) == dict(DEFAULT_USERS):
        return dict(zip(("username", "password"), next(iter(DEFAULT_USERS.items())), strict=True))
    return {"username": "...", "password": "..."}


def _read(name: str, pairs: dict[str, str]) -> str:
    lines = [f"    .option({_text(key)}, {_text(each)})" for key, each in pairs.items()]
    options = "\n".join(lines)
    return (
        f"events = (\n    spark.readStream.format({_text(name)})\n{options}\n"
        f'    .option("startingOffsets", "earliest")\n    .load()\n)'
    )


def _write(name: str, pairs: dict[str, str]) -> str:
    options = "\n".join(f"    .option({_text(key)}, {_text(each)})" for key, each in pairs.items())
    return (
        f"query = (\n    events.writeStream.format({_text(name)})\n{options}\n"
        f'    .option("checkpointLocation", "...")\n    .start()\n)'
    )


def _text(value: str) -> str:
    """Return a text as Python writes it, with double quotes where that is possible."""
    written = repr(value)
    plain = '"' not in value and "\\" not in written
    return f'"{value}"' if plain and value.isprintable() and "'" not in value else written
