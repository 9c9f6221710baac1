"""Describes the clients of a door: connections, readers, writers, and the offsets that it keeps.

A door that supports this has two methods, and keeps no extra records: each call walks its connections.

::

    activity()  yields what is connected; on the server's loop, where the caller lets others have their turns
    stored()    yields what is kept in the log for clients that may be gone; in any thread

A reader is a link, a subscription, or a connection that fetches; a reader of several partitions is yielded once for
each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from spark_streams.log import ReferenceLog
from spark_streams.redaction import one_line

MOST_TEXT: Final = 120
"""The most characters of a peer's own description that are shown."""


@dataclass(frozen=True)
class ConnectionInfo:
    """A connection whose peer has introduced itself.

    Args:
        door: the door's name.
        peer: host and port that it comes from.
        user: who signed in.
        client: the peer's own description: its product, version and name; empty without one.
        since_ms: when it connected, in ms since the epoch.
    """

    door: str
    peer: str
    user: str
    client: str
    since_ms: int


@dataclass(frozen=True)
class ReaderInfo:
    """A reader of one partition.

    Args:
        door: the door's name.
        peer: host and port of its connection.
        user: who signed in there.
        stream: the stream's name.
        partition: the partition's identifier; empty while it waits for one.
        next_offset: the offset of the next event that it gets, or of an earlier one that it skips; None while it gets
            nothing.
        name: its name; empty without one.
        group: its consumer group, or None.
        owner: the user that the group belongs to; empty for a group of everybody.
        epoch: its epoch in the group, or None.
        part: which of its partitions this is, counted from 0.
    """

    door: str
    peer: str
    user: str
    stream: str
    partition: str
    next_offset: int | None
    name: str = ""
    group: str | None = None
    owner: str = ""
    epoch: int | None = None
    part: int = 0


@dataclass(frozen=True)
class WriterInfo:
    """A writer to a stream.

    Args:
        door: the door's name.
        peer: host and port of its connection.
        user: who signed in there.
        stream: the stream's name.
        partition: the partition that it is bound to; empty when its events are spread over all.
        name: its name; empty without one.
    """

    door: str
    peer: str
    user: str
    stream: str
    partition: str
    name: str = ""


@dataclass(frozen=True)
class StoredOffset:
    """The state that the log keeps of a reader, which may be gone.

    Args:
        door: the door's name.
        user: who stored it.
        stream: the stream's name.
        partition: the partition's identifier.
        next_offset: where the reader goes on; None where only an epoch is kept.
        group: the name under which the state is kept.
        owner: as in ``ReaderInfo``.
        epoch: the last epoch, or None.
        kind: the door's word for it.
    """

    door: str
    user: str
    stream: str
    partition: str
    next_offset: int | None
    group: str
    owner: str
    epoch: int | None
    kind: str


Item = ConnectionInfo | ReaderInfo | WriterInfo | StoredOffset
Who = tuple[str, str, str]
"""The door, the peer and the user of a connection, which its readers and writers share."""


def peer_text(address: Any) -> str:
    """Return one of asyncio's addresses as the text ``host:port``."""
    if not isinstance(address, (tuple, list)) or len(address) < 2:
        return str(address or "?")
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def client_text(*words: object) -> str:
    """Return a peer's own description as one short line; words that are None or empty are left out."""
    return one_line(" ".join(f"{word:.{MOST_TEXT}}" for word in map(str, filter(None, words))))[:MOST_TEXT]


def behind(log: ReferenceLog, stream: str, partition: str, next_offset: int | None) -> int | None:
    """Return how many events a reader has still to read, without those that retention has removed.

    Returns:
        None where its offset is not known, or the partition is gone.
    """
    found = log.find(stream)
    there = None if found is None else found.partitions.get(partition)
    if there is None or next_offset is None:
        return None
    return max(0, there.next_offset - max(next_offset, there.first_offset))
