"""Keeps a connection from one task of a worker to the next, so that a micro-batch does not begin with a handshake.

Spark runs task after task in one Python worker, and each task of a sink needs a connection. To open one takes six to
eight round trips, more with TLS, and brokers write lines for each; Kafka's sink keeps its producer, too. The decisions
are in docs/adr/0045-processes-and-connections.md.

A task has the connection to itself: it takes the connection, and gives it back once the peer has all of the task's
rows. A connection that broke meanwhile is not given out, and a task never gives back one on which something failed.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from spark_streams.endpoint import Endpoint, Tls
from spark_streams.errors import OptionError, SparkStreamsError
from spark_streams.secrets import Secret

KEPT_S: Final = 10.0
"""Seconds after which a connection that no task takes is closed: more than most triggers, less than the minute after
which Spark ends an idle worker, as brokers warn of connections that end without a close."""
SERVED_S: Final = 1.0
"""Seconds between two turns of an idle connection; peers' idle-time-outs and heartbeats are tens of seconds."""


class Keepable(Protocol):
    """A connection of any protocol."""

    broken: bool

    def turn(self) -> object:
        """Send and receive what is due, without waiting.

        Raises:
            SparkStreamsError: it broke.
        """

    def close(self) -> None:
        """Close it in the protocol's way; never raise."""


_C = TypeVar("_C", bound=Keepable)


def kept_key(endpoint: Endpoint, timeout_ms: int, also: Hashable = None) -> Hashable | None:
    """Return the key of a client's connections: the peer, the user, the time-out, and whatever is in ``also``.

    Returns:
        The key, which changes with the content of a file with a password, a token, a certificate, its key or the
        authorities. None, for connections that are not to be kept, where a file cannot be read, and where only a
        refusal by the peer would show that the secret has changed.
    """
    secret, tls = endpoint.token or endpoint.password or Secret(""), endpoint.tls or Tls()
    if not secret.is_cheap:
        return None
    try:
        signs_in = [Path(each).read_bytes() for each in (tls.ca_file, tls.cert_file, tls.key_file) if each is not None]
        signs_in.append(secret.reveal().encode())
    except (OSError, ValueError, OptionError):
        return None  # the attempt to connect says what is wrong
    return endpoint, timeout_ms, also, tuple(hashlib.sha256(each).digest() for each in signs_in)


class KeptConnections(Generic[_C]):
    """The connections of a process that no task has now, at most one of each key; for any thread.

    A thread answers their peers' heartbeats and closes them in the end; it exists as long as there are any.

    Args:
        kept_s: how many seconds a connection stays that no task takes; 0 to keep none.
    """

    def __init__(self, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._idle: dict[Hashable, tuple[_C, float]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def key(self, endpoint: Endpoint, timeout_ms: int, also: Hashable = None) -> Hashable | None:
        """Return the key of a client's connections, see ``kept_key``; None where none are kept."""
        return kept_key(endpoint, timeout_ms, also) if self._kept_s else None

    def take(self, key: Hashable | None) -> _C | None:
        """Return the connection that was given back last under this key, if it is still there and not broken.

        Args:
            key: as ``kept_key`` returns it; there is none under None.
        """
        with self._lock:
            connection, _ = self._idle.pop(key, (None, 0.0))
        return connection if connection is not None and _lives(connection) else None

    def give_back(self, key: Hashable | None, connection: _C) -> None:
        """Keep a connection that its task is done with, or close it.

        Args:
            key: as ``kept_key`` returned it before the connection was opened; None: it is closed. One that was kept
                under this key is closed, too.
            connection: the connection; a broken one is not kept.
        """
        former: _C | None = connection
        if key is not None and not connection.broken:
            with self._lock:
                former, _ = self._idle.pop(key, (None, 0.0))
                self._idle[key] = connection, time.monotonic() + self._kept_s
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name="spark-streams-kept", daemon=True)
                    self._thread.start()
        if former is not None:
            former.close()

    def _serve(self) -> None:
        while True:
            time.sleep(min(SERVED_S, self._kept_s))
            with self._lock:
                now = time.monotonic()
                closing = [connection for connection, until in self._idle.values() if until <= now]
                self._idle = {
                    key: kept for key, kept in self._idle.items() if kept[0] not in closing and _lives(kept[0])
                }
                ended = not self._idle
                if ended:
                    self._thread = None
            for connection in closing:  # may take seconds
                connection.close()
            if ended:
                return


def _lives(connection: Keepable) -> bool:
    try:
        connection.turn()
    except SparkStreamsError:
        return False  # it has closed itself; the next task opens another one, and sees the error
    return not connection.broken
