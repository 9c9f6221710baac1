"""The state store: keeps small durable values, no events, such as positions of durable links and epochs of groups.

SQLite holds them: it is in Python's standard library, and its file is whole after kill -9 and after a power cut. It
does not check its pages, so a CRC-32C of namespace, key and value, u32 big-endian, stands before each value: a flipped
bit must not resume a link at another position.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import google_crc32c

from spark_streams.errors import CorruptLog
from spark_streams.log.storage.files import OpenFile, logger

_CRC = struct.Struct(">I")
# As bytes, whatever type a flipped bit gave them: SQLite refuses to hand out a text that is no UTF-8.
_SELECT = "SELECT CAST(key AS BLOB), CAST(value AS BLOB) FROM state WHERE namespace=?"


def _crc(namespace: str, key: str, value: bytes) -> bytes:
    name = f"{len(namespace)}:{namespace}{key}".encode()
    return _CRC.pack(google_crc32c.extend(google_crc32c.value(name), value))


class StateStore:
    """Key to value, both in a namespace. Safe to use from several threads.

    A stored value survives kill -9 once the call returns. With ``power_safe`` (fsync policy ``always``) it survives a
    power cut too; otherwise a power cut may undo the last calls, the newest first, as it may undo the last appends.

    Args:
        path: the file; it is created if it is missing.
        power_safe: whether each change is forced to the disk.

    Raises:
        CorruptLog: SQLite finds the file damaged, or (``get`` and ``items``) a value does not pass its check.
        OSError: (methods that change something) the system refused; nothing has changed. ``errno.ENOSPC``: a full disk.
    """

    def __init__(self, path: Path, *, power_safe: bool = False) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._damaged: set[tuple[str, str]] = set()
        OpenFile(path, os.O_RDWR | os.O_CREAT)  # SQLite gives its other files the mode of this one
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            with self._use() as db:
                # As one process has the log, its index of the WAL can be in memory; a start on a full disk would have
                # no room for it as a file.
                db.execute("PRAGMA locking_mode=EXCLUSIVE")
                db.execute("PRAGMA journal_mode=WAL")
                db.execute(f"PRAGMA synchronous={'FULL' if power_safe else 'NORMAL'}")
                db.execute(
                    "CREATE TABLE IF NOT EXISTS state "
                    "(namespace TEXT, key TEXT, value BLOB, PRIMARY KEY (namespace, key))"
                )
                # A damaged key index would hide rows; the file is small, so this takes about a millisecond.
                (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise CorruptLog(str(path), 0, f"SQLite says: {found}")
        except BaseException:
            self._db.close()
            raise

    @contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection to one thread; damage that SQLite finds becomes ``CorruptLog``."""
        with self._lock:
            try:
                yield self._db
            except (sqlite3.DatabaseError, UnicodeDecodeError) as fault:
                # The subclasses of DatabaseError, such as that for a full disk, mean no damage.
                if isinstance(fault, UnicodeDecodeError) or type(fault) is sqlite3.DatabaseError:
                    raise CorruptLog(str(self._path), 0, f"SQLite says: {fault}") from fault
                raise

    @contextmanager
    def _written(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection for a change; a refusal of the system becomes ``OSError``, as for other files."""
        try:
            with self._use() as db:
                yield db
        except sqlite3.OperationalError as fault:
            number = errno.ENOSPC if "full" in str(fault) else errno.EIO
            raise OSError(number, str(fault), str(self._path)) from fault

    def _checked(self, namespace: str, key: str, stored: bytes | None) -> bytes:
        content = stored or b""
        value = content[_CRC.size :]
        if content[: _CRC.size] != _crc(namespace, key, value):
            raise CorruptLog(str(self._path), 0, f"the value of '{key}' in '{namespace}' does not pass its CRC-32C")
        return value

    def get(self, namespace: str, key: str) -> bytes | None:
        """Return the value, or None."""
        with self._use() as db:
            row = db.execute(f"{_SELECT} AND key=?", (namespace, key)).fetchone()
        return None if row is None else self._checked(namespace, key, row[1])

    def put(self, namespace: str, key: str, value: bytes) -> None:
        """Set the value."""
        stored = _crc(namespace, key, value) + value
        with self._written() as db:
            db.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (namespace, key, stored))

    def put_all(self, namespace: str, values: Mapping[str, bytes]) -> None:
        """Set many values, all or none of them; this is much faster than setting one after the other."""
        rows = [(namespace, key, _crc(namespace, key, value) + value) for key, value in values.items()]
        with self._written() as db, db:  # the inner one commits, or rolls back unless SQLite has done so
            db.execute("BEGIN")
            db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", rows)

    def delete_some(self, namespace: str, prefix: str, most: int) -> int:
        """Delete up to ``most`` values whose keys begin with ``prefix``, which is not empty; return how many."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        chosen = "SELECT rowid FROM state WHERE namespace=? AND key>=? AND key<? LIMIT ?"
        with self._written() as db:
            return db.execute(f"DELETE FROM state WHERE rowid IN ({chosen})", (namespace, prefix, end, most)).rowcount

    def delete(self, namespace: str, key: str) -> None:
        """Delete the value, if there is one."""
        with self._written() as db:
            db.execute("DELETE FROM state WHERE namespace=? AND key=?", (namespace, key))

    def drop(self, namespace: str, key: str) -> bool:
        """Delete a value that is not needed any more; return whether the system allowed it, and log a refusal."""
        try:
            self.delete(namespace, key)
        except OSError as fault:
            logger.warning("%s: the value of %r in '%s' stays for now: %s", self._path, key, namespace, fault)
            return False
        return True

    def items(self, namespace: str) -> list[tuple[str, bytes]]:
        """Return all keys and values of a namespace, by key."""
        with self._use() as db:
            rows = db.execute(f"{_SELECT} ORDER BY key", (namespace,)).fetchall()
        # A damaged key that is no UTF-8 becomes another key, with which the value then fails its check.
        named = [((key or b"").decode(errors="replace"), stored) for key, stored in rows]
        return [(key, self._checked(namespace, key, stored)) for key, stored in named]

    def walk(self, namespace: str, at_once: int = 1_000) -> Iterator[tuple[str, bytes]]:
        """Yield all keys and values of a namespace, by key; others may use the store after each ``at_once`` of them.

        A value that changes meanwhile is yielded in its old or its new form. A value that fails its check is left out,
        so that the caller sees the others, and is logged once.
        """
        after = b""
        while True:
            with self._use() as db:
                page = (namespace, after, at_once)
                rows = db.execute(f"{_SELECT} AND key>CAST(? AS TEXT) ORDER BY key LIMIT ?", page).fetchall()
            for key, stored in rows:
                after = key or b""
                name = after.decode(errors="replace")
                try:
                    value = self._checked(namespace, name, stored)
                except CorruptLog as damage:
                    if (namespace, name) not in self._damaged:
                        self._damaged.add((namespace, name))
                        logger.error("%s", damage)
                    continue
                yield name, value
            if len(rows) < at_once:
                return

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()
