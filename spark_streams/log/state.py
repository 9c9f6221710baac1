"""Small durable facts that belong to the log but are no events: where durable links stand, epochs of groups.

SQLite holds them: it is in Python's standard library, and its file is whole after kill -9 and after a power cut.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

__all__ = ["StateStore"]


class StateStore:
    """Key to value, both in a namespace. Safe to use from several threads.

    What a call has stored survives kill -9 once it returns. With ``power_safe`` (fsync policy ``always``) it survives a
    power cut too; without it a power cut may take the last calls back, in order, as it may the log's last records.
    """

    def __init__(self, path: Path, *, power_safe: bool = False) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={'FULL' if power_safe else 'NORMAL'}")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS state (namespace TEXT, key TEXT, value BLOB, PRIMARY KEY (namespace, key))"
        )

    def get(self, namespace: str, key: str) -> bytes | None:
        """Return the value, or None."""
        with self._lock:
            row = self._db.execute("SELECT value FROM state WHERE namespace=? AND key=?", (namespace, key)).fetchone()
        return None if row is None else bytes(row[0])

    def put(self, namespace: str, key: str, value: bytes) -> None:
        """Set the value."""
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (namespace, key, value))

    def delete(self, namespace: str, key: str) -> None:
        """Forget the value; it may be gone already."""
        with self._lock:
            self._db.execute("DELETE FROM state WHERE namespace=? AND key=?", (namespace, key))

    def items(self, namespace: str) -> list[tuple[str, bytes]]:
        """Return all keys and values of a namespace, by key."""
        with self._lock:
            rows = self._db.execute(
                "SELECT key, value FROM state WHERE namespace=? ORDER BY key", (namespace,)
            ).fetchall()
        return [(key, bytes(value)) for key, value in rows]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()
