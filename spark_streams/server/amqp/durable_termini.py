"""Durable source termini: keeps the positions of a receiver whose link has ended, for its next attach.

A terminus is durable when its durability is not ``none`` and it is to outlive the link: expiry-policy ``never``, or a
timeout. Its key is the user, the peer's container-id and the link's name; the same names of another user are another
terminus. It keeps the position in each partition and the events below the position that were sent and not settled:
these are sent again, settled events are not. The state is written soon after it changes, and at once when the link, the
connection or the server ends in order. A server that is killed in between may repeat events that were settled in its
last tenth of a second, and never omits one.

Spec: AMQP 1.0 part 3 §3.5.5, §3.5.6; Event Stream Extensions §3.2 (ES-016).
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from spark_streams.log import ReferenceLog, Stream
from spark_streams.server.amqp.error_conditions import STOLEN, LinkRefused
from spark_streams.server.counters import logger
from spark_streams.server.turns import Timer
from spark_streams.wire.amqp.engine.session import RESOURCE_LIMIT

NAMESPACE: Final = "amqp-termini"
SAVE_DELAY_S: Final = 0.1
RETRY_S: Final = 1.0
"""Seconds after which a write that the system refused is tried again."""
_VERSION: Final = 1


class Kept(msgspec.Struct):
    """The state of a terminus, as it is kept.

    Args:
        incarnation: the log's.
        filter: the fingerprint of the link's filters.
        partition: the partition that the link was bound to, or None.
        positions: partition to (offset of the next event to examine, offset that ``@latest`` means).
        pending: partition to the events below its position that are to be sent again, ascending, as pairs of first and
            last offset, both inclusive.
        expires_ms: when it is forgotten, in ms since the epoch; None while it has a link, or is kept forever.
        version: of this form.
    """

    incarnation: str
    filter: str
    partition: str | None
    positions: dict[str, tuple[int, int]]
    pending: dict[str, list[tuple[int, int]]]
    expires_ms: int | None = None
    version: int = _VERSION

    def _again(self, partition: str) -> list[int]:
        return [n for first, last in self.pending.get(partition, ()) for n in range(first, last + 1)]

    def on(self, stream: Stream, name: str) -> tuple[tuple[int, int] | None, list[int]]:
        """Return the position in a partition and the events to send again, translated where it was split meanwhile.

        Raises:
            CorruptLog: the record of the split fails its check.
        """
        if name in self.positions:
            return self.positions[name], self._again(name)
        for origin in stream.partitions[name].cursor_from:
            if origin in self.positions:
                here = functools.partial(stream.translate, name, origin)
                position, latest = self.positions[origin]
                moved = ((here(offset), here(offset + 1)) for offset in self._again(origin))
                return (here(position), here(latest)), [offset for offset, following in moved if offset < following]
        return None, []


@dataclass
class Terminus:
    """One durable terminus in use by a link.

    Args:
        key: user, container-id and link name.
        snapshot: returns the state to keep.
        displaced: ends the link when the same terminus is attached again.
        timeout_s: how long it is kept without a link; None: forever.
    """

    key: str
    snapshot: Callable[[], Kept]
    displaced: Callable[[LinkRefused], None]
    timeout_s: int | None
    dirty: bool = field(default=False)


class Termini:
    """All durable termini of a server.

    Args:
        log: its state store keeps them.
        loop: where delayed writes are scheduled.
        most: how many one user may have.
    """

    def __init__(self, log: ReferenceLog, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._log = log
        self._active: dict[str, Terminus] = {}
        self._timer = Timer(loop)
        self._unwritten: dict[str, bytes | None] = {}
        """Key to the state whose write the system refused; None: a delete that it refused."""
        self._most = most
        self._of: dict[str, dict[str, tuple[str, int | None]]] = {}
        """User to the keys of its termini, each with the log's incarnation and when it expires."""
        for key, stored in log.state.items(NAMESPACE):
            self._note(key, msgspec.json.decode(stored, type=Kept))
        self._remove_old(self._of.values())

    @staticmethod
    def key(user: str, container: str, link: str) -> str:
        """Return the key of a terminus."""
        return json.dumps([user, container, link])

    def check_room(self, key: str) -> None:
        """Check that a user may have this terminus, which may be a new one.

        Raises:
            LinkRefused: the user has as many as a user may have (amqp:resource-limit-exceeded).
        """
        user = _user(key)
        kept = self._of.get(user, {})
        if key in kept or len(kept) < self._most:
            return
        self._remove_old([kept])
        if len(kept) >= self._most:
            raise LinkRefused(
                RESOURCE_LIMIT,
                f"user '{user}' has {len(kept)} durable links, and max_durable_links is {self._most}: close those that "
                "are of no more use, by attaching as before and detaching with closed, or have the setting raised",
            )

    def displace(self, key: str) -> None:
        """End the link that has this terminus now, if any: a peer may attach again before its old socket is closed."""
        terminus = self._active.get(key)
        if terminus is not None:
            terminus.displaced(LinkRefused(STOLEN, "the same container attached a link of this name again"))

    def resume(self, key: str, incarnation: str, fingerprint: str) -> Kept | None:
        """Return the kept state of a key; None when none fits the log and the filters of the link."""
        stored = self._unwritten[key] if key in self._unwritten else self._log.state.get(NAMESPACE, key)
        kept = None if stored is None else msgspec.json.decode(stored, type=Kept)
        if kept is None or kept.version != _VERSION or _is_past(kept.expires_ms):
            return None
        return kept if (kept.incarnation, kept.filter) == (incarnation, fingerprint) else None

    def activate(self, terminus: Terminus) -> None:
        """Take a terminus into use, and write its state."""
        self._active[terminus.key] = terminus
        self.save(terminus)

    def changed(self, terminus: Terminus) -> None:
        """Note a change of a terminus; its state is written soon."""
        terminus.dirty = True
        self._write_later(RETRY_S if self._unwritten else SAVE_DELAY_S)

    def _write_later(self, seconds: float) -> None:
        if not self._timer.due:
            self._timer.start(seconds, self._save_dirty)

    def save(self, terminus: Terminus, *, suspended: bool = False) -> None:
        """Write the state of a terminus now.

        Args:
            terminus: the terminus.
            suspended: whether its link has ended, so that its timeout begins.
        """
        terminus.dirty = False
        kept = terminus.snapshot()
        if suspended and terminus.timeout_s is not None:
            kept.expires_ms = int(time.time() * 1000) + 1000 * terminus.timeout_s
        self._keep(terminus.key, kept)

    def _keep(self, key: str, kept: Kept | None) -> None:
        """Note and write the state of a key; None deletes it."""
        self._note(key, kept)
        self._write(key, None if kept is None else msgspec.json.encode(kept))

    def _write(self, key: str, content: bytes | None) -> None:
        """Write the state of a key; a write that the system refuses is tried again."""
        try:
            if content is None:
                self._log.state.delete(NAMESPACE, key)
            else:
                self._log.state.put(NAMESPACE, key, content)
        except OSError as fault:
            # A full disk must not end links that only read. A server that is killed before a write succeeds repeats
            # the events that were settled since.
            if not self._unwritten:
                logger.error("positions of durable links cannot be written, and are tried again: %s", fault)
            self._unwritten[key] = content
            self._write_later(RETRY_S)
        else:
            self._unwritten.pop(key, None)

    def release(self, terminus: Terminus, *, closed: bool) -> None:
        """Keep a terminus whose link has ended; delete it if the peer has closed the link."""
        if self._active.get(terminus.key) is not terminus:
            return
        del self._active[terminus.key]
        if closed:
            self._keep(terminus.key, None)
        else:
            self.save(terminus, suspended=True)

    def _note(self, key: str, kept: Kept | None) -> None:
        """Count the termini of a user."""
        of_user = self._of.setdefault(_user(key), {})
        if kept is None:
            of_user.pop(key, None)
        else:
            of_user[key] = (kept.incarnation, kept.expires_ms)

    def _remove_old(self, kept: Iterable[dict[str, tuple[str, int | None]]]) -> None:
        """Delete termini that timed out or whose stream is gone."""
        there = {stream.incarnation for stream in self._log.streams()}
        for key, (incarnation, expires_ms) in [entry for of_user in kept for entry in of_user.items()]:
            if incarnation not in there or _is_past(expires_ms):
                self._keep(key, None)

    def close(self) -> None:
        """Write all states that are not written yet."""
        self._save_dirty()
        self._timer.stop()

    def _save_dirty(self) -> None:
        self._timer.stop()
        for key, content in list(self._unwritten.items()):
            self._write(key, content)
        for terminus in self._active.values():
            if terminus.dirty:
                self.save(terminus)


def kept_in(log: ReferenceLog) -> Iterator[tuple[str, str, str, dict[str, int]]]:
    """Yield the termini that are kept, in any thread.

    Each is the user, the container-id and the name of the link, the log's incarnation, and a map of partition to the
    position there.
    """
    for key, stored in log.state.walk(NAMESPACE):
        kept = msgspec.json.decode(stored, type=Kept)
        user, *names = json.loads(key)
        yield user, "/".join(names), kept.incarnation, {partition: at for partition, (at, _) in kept.positions.items()}


def _is_past(expires_ms: int | None) -> bool:
    return expires_ms is not None and expires_ms < time.time() * 1000


def _user(key: str) -> str:
    """Return the user of a terminus."""
    return str(json.loads(key)[0])
