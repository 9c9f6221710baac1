"""Small durable facts that belong to the log but are no events: where durable links stand, epochs of groups.

SQLite holds them: it is in Python's standard library, and it keeps a committed value through kill -9 and a power cut.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

__all__ = ["StateStore"]


class StateStore:
    """Key to value, both in a namespace; each call is durable when it returns. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
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
