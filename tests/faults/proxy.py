"""The TCP proxy of the tests: it passes connections on, and does to them on order what networks do."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

__all__ = ["Balancer", "Break", "TcpProxy"]

PIECE_BYTES = 16_384
NO_LINGER = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Break:
    """What happens once to the first connection that gets so far.

    Args:
        how: ``cut`` ends it in order, in both directions; ``cut-all`` ends all that there are; ``reset`` ends it with
            RST; ``half-close`` ends this direction and leaves the other one open; ``corrupt`` flips a bit of the next
            byte; ``stall`` passes nothing on any more, in both directions, and closes nothing; ``mute`` passes on
            only what goes to the server.
        after: bytes that pass in this direction before, counted from when the break was ordered.
        to_server: which direction is counted and, with ``half-close`` and ``corrupt``, hit.
        within: happens only in the middle of these bytes, where they pass in one piece; empty for anywhere.
    """

    how: str
    after: int = 0
    to_server: bool = False
    within: bytes = b""

    def __post_init__(self) -> None:
        if self.how not in ("cut", "cut-all", "reset", "half-close", "corrupt", "stall", "mute"):
            raise ValueError(f"'{self.how}' is no break")

    def place(self, piece: bytes, passed: int) -> int | None:
        """Return where in a piece it happens, None for not there.

        Args:
            piece: of the break's direction.
            passed: bytes of the connection that went before.
        """
        start = max(0, self.after - passed)
        if self.within:
            found = piece.find(self.within, start)
            return None if found < 0 else found + len(self.within) // 2
        return start if start < len(piece) else None


class TcpProxy:
    """Listens on 127.0.0.1 and forwards to a target; a context manager.

    Args:
        target: where to: a port of 127.0.0.1, or host and port. None: ``target`` is set later.
        cuts: after how many bytes from the server each connection, in order, is cut; later ones are not.
        rewrite: makes, for each connection, what changes the bytes that come from the server.
    """

    def __init__(
        self,
        target: int | tuple[str, int] | None = None,
        cuts: Iterable[int] = (),
        *,
        rewrite: Callable[[], Callable[[bytes], bytes]] | None = None,
    ) -> None:
        self.target = ("127.0.0.1", target) if isinstance(target, int) else target
        # Bound and never listening: it keeps the port ours while ``refuse`` has closed the listener.
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind(("127.0.0.1", 0))
        self.port: int = self._holder.getsockname()[1]
        self.connections = 0
        """How many were made so far."""
        self.from_server = self.to_server = 0
        """Bytes that were passed on."""
        self.struck: list[Break] = []
        """What has happened of what was ordered."""
        self.delay_s = 0.0
        """How long each piece is held back."""
        self.bytes_per_s: float | None = None
        """How much passes a second, in each direction of each connection; None for no limit."""
        self.slowed = 0
        """How many pieces were delayed or throttled."""
        self._cuts = list(cuts)
        self._rewrite = rewrite
        self._lock = threading.Lock()
        self._ordered: list[Break] = []
        self._lines: list[_Line] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener: socket.socket | None = None
        self.accept()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        self._holder.close()
        self._flowing.set()
        self.cut()

    def url(self, url: str) -> str:
        """Return an url with the proxy's address in place of host and port."""
        where = urlsplit(url).netloc.rpartition("@")[2]
        return url.replace(where, f"127.0.0.1:{self.port}", 1)

    # --- what it does on order

    def order(self, *breaks: Break) -> None:
        """Let these happen, each once, each to the first connection that gets so far from now on."""
        with self._lock:
            for line in self._lines:
                line.passed = [0, 0]
            self._ordered += breaks

    @property
    def pending(self) -> int:
        """How many breaks have been ordered and did not happen."""
        return len(self._ordered)

    def cut(self) -> int:
        """Cut all connections there are; return how many."""
        with self._lock:
            lines, self._lines = self._lines, []
        for line in lines:
            line.end()
        return len(lines)

    def stall(self) -> None:
        """Hold back all that comes, in both directions; connections stay open, and are taken."""
        self._flowing.clear()

    def flow(self) -> None:
        """Pass on again, beginning with what was held back."""
        self._flowing.set()

    def refuse(self) -> None:
        """Refuse new connections; those there are stay."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()

    def accept(self) -> None:
        """Take new connections again."""
        with self._lock:
            if self._listener is None:
                self._listener = socket.create_server(("127.0.0.1", self.port))
                threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def heal(self) -> None:
        """Do nothing any more but pass on; forget what was ordered and did not happen."""
        with self._lock:
            self._ordered.clear()
        self.delay_s, self.bytes_per_s = 0.0, None
        self.accept()
        self.flow()

    # --- passing on

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                target = self.target
                assert target is not None, "the proxy has no target yet"
                server = socket.create_connection(target)
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            cut = self._cuts.pop(0) if self._cuts else None
            line = _Line(client, server, None if cut is None else Break("cut", cut))
            with self._lock:
                self.connections += 1
                self._lines.append(line)
            rewrite = self._rewrite() if self._rewrite else None
            threading.Thread(target=self._pump, args=(line, True, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(line, False, rewrite), daemon=True).start()

    def _pump(self, line: _Line, to_server: bool, rewrite: Callable[[bytes], bytes] | None) -> None:
        source, sink = (line.client, line.server) if to_server else (line.server, line.client)
        with contextlib.suppress(OSError):  # the other direction has ended the connection
            while piece := source.recv(PIECE_BYTES):
                if self.delay_s:
                    time.sleep(self.delay_s)
                    self.slowed += 1
                self._flowing.wait()
                self._pass_on(line, sink, to_server, rewrite(piece) if rewrite else piece)
            if not line.over:
                sink.shutdown(socket.SHUT_WR)
        with self._lock:
            last = line.ended_direction()
            if last and line in self._lines:
                self._lines.remove(line)
        if last:
            line.close()

    def _pass_on(self, line: _Line, sink: socket.socket, to_server: bool, piece: bytes) -> None:
        while piece:
            due, before = self._due(line, to_server, piece)
            self._forward(line, sink, to_server, piece[:before])
            piece = piece[before:]
            if due is None:
                return
            self.struck.append(due)
            if due.how == "corrupt":
                piece = bytes([piece[0] ^ 0x10]) + piece[1:]
            elif due.how == "half-close":
                line.closed[to_server] = True
                sink.shutdown(socket.SHUT_WR)
            elif due.how == "stall":
                line.stalled = True
            elif due.how == "mute":
                line.muted = True
            elif due.how == "cut-all":
                self.cut()
            else:
                line.end(reset=due.how == "reset")

    def _due(self, line: _Line, to_server: bool, piece: bytes) -> tuple[Break | None, int]:
        """Take what happens within the next bytes; return it, and how many pass before."""
        with self._lock:
            if line.stalled or line.muted or line.over or line.closed[to_server]:
                return None, len(piece)
            own, passed = line.own, line.passed[to_server]
            if own is not None and not to_server and (at := own.place(piece, passed)) is not None:
                line.own = None
                return own, at
            for each in self._ordered:
                if each.to_server == to_server and (at := each.place(piece, passed)) is not None:
                    self._ordered.remove(each)
                    return each, at
        return None, len(piece)

    def _forward(self, line: _Line, sink: socket.socket, to_server: bool, piece: bytes) -> None:
        if line.stalled or line.closed[to_server] or (line.muted and not to_server):
            return  # it comes to nobody
        if self.bytes_per_s:
            time.sleep(len(piece) / self.bytes_per_s)
            self.slowed += 1
        sink.sendall(piece)
        with self._lock:
            line.passed[to_server] += len(piece)
            if to_server:
                self.to_server += len(piece)
            else:
                self.from_server += len(piece)


class Balancer(TcpProxy):
    """A load balancer: each connection goes to the next of some ports of 127.0.0.1, round and round."""

    def __init__(self, *ports: int) -> None:
        super().__init__()
        self._ports = itertools.cycle(ports)

    @property  # type: ignore[override]
    def target(self) -> tuple[str, int]:
        """Where the next connection goes; it is another one each time that it is asked."""
        return "127.0.0.1", next(self._ports)

    @target.setter
    def target(self, _: object) -> None:
        """It has several."""


class _Line:
    """One connection: to its client, and to its server."""

    def __init__(self, client: socket.socket, server: socket.socket, own: Break | None) -> None:
        self.client = client
        self.server = server
        self.own = own
        self.passed = [0, 0]
        """Bytes from the server, and to it."""
        self.closed = [False, False]
        self.stalled = self.muted = self.over = False
        self._ended = 0

    def end(self, *, reset: bool = False) -> None:
        """End both connections; the threads that wait for them come back and close them."""
        self.over = True
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                # Closing alone would not wake who reads; with RST to come, FIN must not be sent.
                end.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)

    def ended_direction(self) -> bool:
        """Note the end of a direction; return whether it was the other one's turn before."""
        self._ended += 1
        return self._ended == 2

    def close(self) -> None:
        self.client.close()
        self.server.close()
