"""How a bad feed server answers each request: the arguments that it takes, and what goes wrong on the way."""

from __future__ import annotations

import gzip
import time
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from spark_streams.wire.feed.line import Dialect
from tests.client.feed.bad_feed import BadPartition, Filters, UnknownCursor

if TYPE_CHECKING:
    from tests.client.feed.bad_server import BadServer


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class BadHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    bad: BadServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        bad, behaviour = self.bad, self.bad.behaviour
        split = urlsplit(self.path)
        pairs = parse_qsl(split.query, keep_blank_values=True)
        bad.requests.append((split.path, pairs))
        try:
            if behaviour.bearer is not None and self.headers.get("Authorization") != f"Bearer {behaviour.bearer}":
                raise _Refused(401, "who are you?")
            events_path = behaviour.dialect is Dialect.V2B and split.path == "/bad/feed/events"
            if not events_path and split.path != "/bad/feed":
                raise _Refused(404, "no such feed")
            if events_path or (pairs and behaviour.dialect is not Dialect.V2B):
                self._fetch(pairs)
            elif behaviour.dialect is Dialect.V1:
                raise _Refused(400, "handshake error: partition count missing")
            else:
                self._answer(200, bad.discovery(), "application/json")
        except _Refused as refused:
            self._answer(refused.status, refused.text.encode() + b"\n", "text/plain")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _answer(self, status: int, body: bytes, kind: str, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _fetch(self, pairs: list[tuple[str, str]]) -> None:
        bad = self.bad
        fault = bad.next_fault()
        if fault == "hang":
            bad.wait(bad.behaviour.hang_s)
        if fault in ("hang", "reset"):
            self.close_connection = True
            return
        if fault == "html":
            return self._answer(200, b"<!DOCTYPE html>\n<html><body>Sign in</body></html>\n", "text/html")
        if fault in ("429", "503"):
            return self._answer(int(fault), b"slow down\n", "text/plain", Retry_After="0")
        if fault == "409":
            bad.rotate_token()
        if fault.isdecimal():
            raise _Refused(int(fault), f"fault {fault}\nand a second line")
        partition, cursor, filters, stream = self._arguments(dict(pairs))
        with bad.feed.lock:
            try:
                after = bad.feed.position(partition, cursor, filters)
            except UnknownCursor:
                raise _Refused(400, "unknown cursor") from None
            lines, after = bad.page(partition, after, filters)
        self._send(lines, fault, (partition, after, filters, stream) if stream is not None else None)

    def _arguments(self, given: dict[str, str]) -> tuple[BadPartition, str, Filters, float | None]:
        bad, behaviour = self.bad, self.bad.behaviour
        filters: Filters = ()
        stream = None
        if behaviour.dialect is Dialect.V1:
            if given.get("n") != str(len(bad.feed.partitions)):
                raise _Refused(400, "handshake error: partition count mismatch")
            cursors = [(name[6:], value) for name, value in given.items() if name.startswith("cursor")]
            if len(cursors) != 1:
                raise _Refused(400, "cursors are missing")
            number, cursor = cursors[0]
        else:
            if behaviour.dialect is Dialect.V2B and given.get("token") != bad.token:
                raise _Refused(409, "illegal token, please fetch new from discovery endpoint")
            number, cursor = given.get("partition", ""), given.get("cursor", "")
            if not cursor:
                raise _Refused(400, "no cursor argument")
            if behaviour.dialect is Dialect.V2A:
                named = {name[7:]: value for name, value in given.items() if name.startswith("filter-")}
                if set(named) - set(behaviour.filters):
                    raise _Refused(400, "filter is not supported")
                filters = tuple(sorted(named.items()))
                if "stream" in given:
                    if not behaviour.stream or "pageSizeHint" in given:
                        raise _Refused(400, "stream is not supported here")
                    stream = float("inf") if given["stream"] == "y" else int(given["stream"]) / 1000
            else:
                filters = tuple((k, v) for k, v in sorted(given.items()) if k in ("event-types", "skip-event-types"))
        if not number.isdecimal():
            raise _Refused(400, "partition is not an integer")
        bad.before_fetch(int(number))
        if behaviour.dialect is Dialect.V2B and given.get("token") != bad.token:
            raise _Refused(409, "illegal token, please fetch new from discovery endpoint")
        partition = bad.feed.partitions.get(int(number))
        if partition is None or partition.gone:
            raise _Refused(400, "partition doesn't exist")
        return partition, cursor, filters, stream

    def _send(self, lines: list[bytes], fault: str, stream: tuple[BadPartition, int, Filters, float] | None) -> None:
        if fault == "no-cursor":
            lines = [line for line in lines if b'"cursor"' not in line]
        if fault == "late-500":
            lines.append(b"Internal server error\n")
        if fault == "malformed":
            lines.append(b'{"event": {"half": \n')
        body = b"".join(lines)
        squeezed = (
            self.bad.behaviour.compressed and stream is None and "gzip" in self.headers.get("Accept-Encoding", "")
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        if squeezed:
            self.send_header("Content-Encoding", "gzip")
            body = gzip.compress(body)
        self.end_headers()
        if fault == "cut":
            body = body[: max(len(body) - 5, 1)]
        if fault == "part":
            body = b"".join(lines[: len(lines) // 2])
        self._pieces(body)
        if stream is not None and fault not in ("cut", "part"):
            self._keep_streaming(*stream)
        if fault in ("cut", "part"):
            self.close_connection = True  # without the last chunk: the response is not complete
            return
        self.wfile.write(b"0\r\n\r\n")

    def _pieces(self, body: bytes) -> None:
        """Send a body in pieces cut anywhere."""
        at = 0
        while at < len(body):
            with self.bad.feed.lock:
                size = self.bad.feed.random.randint(1, max(self.bad.behaviour.piece_bytes, 1))
            piece = body[at : at + size]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            at += size
        self.wfile.flush()

    def _keep_streaming(self, partition: BadPartition, after: int, filters: Filters, seconds: float) -> None:
        """Go on sending pages of what is there and what comes, for so long."""
        feed = self.bad.feed
        until = time.monotonic() + seconds
        while not self.bad.closing and (left := until - time.monotonic()) > 0:
            with feed.changed:
                if partition.gone or (partition.closed and partition.end <= after):
                    return
                if partition.end <= after:
                    feed.changed.wait(min(left, 0.5))
                    continue
                lines, after = self.bad.page(partition, after, filters)
            self._pieces(b"".join(lines))
