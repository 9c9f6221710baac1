"""A server between a publisher and a door: it passes requests on, but for what a test tells it to do instead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests


@dataclass(frozen=True)
class Fault:
    """What becomes of a request.

    Args:
        status: answered in place of the door's answer; None cuts the connection.
        passed: whether the door gets the request all the same.
        headers: of the answer.
        body: of the answer.
    """

    status: int | None
    passed: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"the server is busy\nand more\n"


class Middle:
    """The server; a context manager.

    Args:
        door: the url of the door, without a path.
        fault: called with the number of each POST, from 0; None passes it on.
    """

    def __init__(self, door: str, fault: Callable[[int], Fault | None]) -> None:
        self.posts: list[dict[str, str]] = []
        middle = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items() if name.lower() != "host"}
                chosen = fault(len(middle.posts))
                middle.posts.append(headers)
                if chosen is None or chosen.passed:
                    answer = requests.post(door + self.path, data=body, headers=headers, timeout=120)
                    if chosen is None:
                        self.answer(answer.status_code, {}, answer.content)
                        return
                if chosen.status is None:
                    self.close_connection = True
                    return
                self.answer(chosen.status, chosen.headers, chosen.body)

            def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Middle:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"
