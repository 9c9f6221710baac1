"""A port that speaks AMQP over WebSockets, in front of a plain one, by the library's own server; and an HTTP proxy."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

SEEN = ("Host", "Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions")


class WebSocketPort:
    """Forwards the messages of each connection to a plain port, and its bytes back.

    Attributes:
        port: where it listens.
        requests: path and some headers of each handshake.
        answer: status of a refusal; None to accept.
        pings: whether it pings between messages.
        close: code and reason to close with after the first message; None not to.
    """

    def __init__(self, target: int, certificates: Path | None = None) -> None:
        self.requests: list[dict[str, str | None]] = []
        self.answer: int | None = None
        self.pings = False
        self.close: tuple[int, str] | None = None
        self.text = False
        self._target = target
        context = None
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates / "server.pem")
        self._server = serve(
            self._forward,
            "127.0.0.1",
            0,
            ssl=context,
            subprotocols=["AMQPWSB10"],  # type: ignore[list-item]
            process_request=self._answer,
            ping_interval=None,
        )
        self.port: int = self._server.socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> WebSocketPort:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(60)

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append({"path": request.path, **{name: request.headers.get(name) for name in SEEN}})
        return None if self.answer is None else connection.respond(self.answer, "no\n")  # type: ignore[arg-type]

    def _forward(self, accepted: ServerConnection) -> None:
        with socket.create_connection(("127.0.0.1", self._target)) as plain:
            back = threading.Thread(target=self._back, args=(plain, accepted), daemon=True)
            back.start()
            with contextlib.suppress(ConnectionClosed, OSError):
                for message in accepted:
                    assert isinstance(message, bytes)
                    if self.close is not None:
                        accepted.close(*self.close)
                        break
                    if self.text:
                        accepted.send("text")
                    plain.sendall(message)
            plain.shutdown(socket.SHUT_RDWR)
            back.join(60)

    def _back(self, plain: socket.socket, accepted: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed, OSError):
            while received := plain.recv(65_536):
                if self.pings:
                    accepted.ping()
                    accepted.send(iter((received[:3], b"", received[3:])))  # three frames
                else:
                    accepted.send(received)
            accepted.close()


class HttpProxy:
    """Connects whoever asks with CONNECT, if the credentials are right, and forwards bytes.

    Attributes:
        port: where it listens.
        targets: what was asked for.
        answer: the status line of a refusal, or what it says in place of HTTP; None to connect.
        host: where it connects to, whatever the target's name is.
    """

    def __init__(self, credentials: str | None = None) -> None:
        self.targets: list[str] = []
        self.answer: bytes | None = None
        self._credentials = credentials
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> HttpProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        with accepted, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += accepted.recv(1)
            first, *lines = head.decode().split("\r\n")
            method, target, _ = first.split(" ")
            assert method == "CONNECT"
            self.targets.append(target)
            headers = dict(line.split(": ", 1) for line in lines if line)
            if self.answer is not None:
                accepted.sendall(self.answer)
                return
            if self._credentials is not None:
                right = base64.b64encode(self._credentials.encode()).decode()
                said = headers.get("Proxy-Authorization")
                if said != f"Basic {right}":
                    accepted.sendall(f"HTTP/1.1 407 Not with {said}\r\nContent-Length: 0\r\n\r\n".encode())
                    return
            with socket.create_connection(("127.0.0.1", int(target.rpartition(":")[2]))) as other:
                accepted.sendall(b"HTTP/1.1 200 Connection established\r\nVia: 1.1 proxy\r\n\r\n")
                back = threading.Thread(target=_pump, args=(other, accepted), daemon=True)
                back.start()
                _pump(accepted, other)
                back.join(60)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while received := source.recv(65_536):
            sink.sendall(received)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def nothing_there() -> Iterator[int]:
    """A port that nobody listens on, nor can anybody."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]
