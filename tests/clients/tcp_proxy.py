"""A TCP proxy that breaks connections on order: after so many bytes from the server, or by swallowing everything."""

from __future__ import annotations

import contextlib
import socket
import threading


class TcpProxy:
    """Forwards 127.0.0.1:port to a target; a context manager.

    ``cuts`` lists after how many bytes from the server each connection, in order, is cut; later ones are not. ``stall``
    makes it stop forwarding, in both directions, without closing anything. ``from_server`` counts the bytes that came
    from there.
    """

    def __init__(self, target_port: int, cuts: list[int] | None = None) -> None:
        self._target = target_port
        self._cuts = list(cuts or [])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        self.connections = self.from_server = 0
        self.stall = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self.connections += 1
            limit = self._cuts.pop(0) if self._cuts else None
            self._open += [client, server]
            threading.Thread(target=self._pump, args=(client, server, None, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, limit, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, limit: int | None, counted: bool) -> None:
        passed = 0
        try:
            while chunk := source.recv(65_536):
                if self.stall.is_set():
                    continue
                if limit is not None and passed + len(chunk) > limit:
                    sink.sendall(chunk[: limit - passed])
                    break
                passed += len(chunk)
                self.from_server += len(chunk) if counted else 0
                sink.sendall(chunk)
        except OSError:
            pass  # the other direction was closed: that is how a connection ends here
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
