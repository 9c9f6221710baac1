"""A port that a test's own function serves."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[tuple[int, list[int]]]:
    """A port, and the number of connections to it so far; each is served in a thread of its own."""
    listener, seen = socket.create_server(("127.0.0.1", 0)), [0]

    def run(peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            peer.settimeout(60)
            serve(peer)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                seen[0] += 1
                threading.Thread(target=run, args=(peer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1], seen
    finally:
        listener.close()
