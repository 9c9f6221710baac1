"""HTTP servers that do what a test says: one answers by a function, one is a feed as bad as is allowed."""

from __future__ import annotations

import gzip
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from spark_streams.client.feed.client import FeedAddress, FeedClient
from spark_streams.client.retry import Backoff
from spark_streams.endpoint import HTTP_SCHEMES, Endpoint, Secret, parse_url
from spark_streams.wire.feed.line import Dialect

QUICK = Backoff(attempts=4, first_ms=1, limit_ms=2)


@dataclass
class Request:
    """What was asked."""

    path: str
    pairs: list[tuple[str, str]]
    headers: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return dict(self.pairs)[name]

    def __contains__(self, name: str) -> bool:
        return name in dict(self.pairs)


@dataclass
class Reply:
    """What is answered.

    Args:
        body: whole, or in pieces that are sent one by one.
        status: of the answer.
        kind: its content type, None for none.
        headers: more of them.
        cut: whether the connection ends where more was announced.
        chunked: whether it is sent in chunks; otherwise with its length, or up to the end of the connection.
        length: whether the length is told.
    """

    body: bytes | Iterable[bytes] = b""
    status: int = 200
    kind: str | None = "application/x-ndjson"
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    chunked: bool = False
    length: bool = True


def zipped(body: bytes) -> Reply:
    """Answer with gzip."""
    return Reply(gzip.compress(body), headers={"Content-Encoding": "gzip"})


class Scripted:
    """A server on loopback that answers with what a function returns; a context manager.

    Args:
        answer: called in the server's threads, one call at a time.
    """

    def __init__(self, answer: Callable[[Request], Reply]) -> None:
        self.answer = answer
        self.asked: list[Request] = []
        self.lock = threading.Lock()
        self.connections = 0
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                scripted.connections += 1

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
                request = Request(parts.path, pairs, dict(self.headers.items()))
                with scripted.lock:
                    scripted.asked.append(request)
                    reply = scripted.answer(request)
                scripted.send(self, reply)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Scripted:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        handler.send_response(reply.status)
        if reply.kind is not None:
            handler.send_header("Content-Type", reply.kind)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        pieces = [reply.body] if isinstance(reply.body, bytes) else reply.body
        if reply.chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        elif reply.length and isinstance(reply.body, bytes):
            handler.send_header("Content-Length", str(len(reply.body) + reply.cut))
        else:
            handler.send_header("Connection", "close")
            handler.close_connection = True
        handler.end_headers()
        for piece in pieces:
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if reply.chunked else piece)
            handler.wfile.flush()
        if reply.cut:
            handler.close_connection = True
        elif reply.chunked:
            handler.wfile.write(b"0\r\n\r\n")


def endpoint_of(url: str, *, token: str | None = None, password: str | None = None) -> Endpoint:
    """Return the endpoint of a url."""
    endpoint = parse_url(url, schemes=HTTP_SCHEMES)
    if password is not None:
        endpoint = replace(endpoint, username="user", password=Secret(password))
    return endpoint if token is None else endpoint.with_token(Secret(token))


def client_of(
    url: str,
    dialect: str | None = None,
    *,
    partitions: int | None = None,
    filters: Mapping[str, str] | None = None,
    page_size: int | None = None,
    timeout_ms: int = 10_000,
    max_line_bytes: int = 64 << 20,
    token: str | None = None,
    password: str | None = None,
    pause: Callable[[float], object] = lambda _: None,
) -> FeedClient:
    """Return a client that does not pause."""
    address = FeedAddress(
        endpoint_of(url, token=token, password=password),
        "orders",
        None if dialect is None else Dialect(dialect),
        partitions,
        filters or {},
        page_size,
        timeout_ms,
        max_line_bytes,
    )
    return FeedClient(address, backoff=QUICK, pause=pause)


@dataclass
class Part:
    """A partition of a ``BadFeed``.

    Args:
        events: as JSON.
        closed: whether none will be added.
        after: the partition that it starts after.
        origins: ancestors whose cursors are valid here, to the index there of each event here.
        tells_end: whether ``lastCursor`` is told.
    """

    events: list[bytes] = field(default_factory=list)
    closed: bool = False
    after: int | None = None
    origins: dict[int, list[int]] = field(default_factory=dict)
    tells_end: bool = True


class BadFeed(Scripted):
    """A feed in memory, whose cursors tell nothing, and that behaves as badly as it is told to.

    Args:
        parts: its partitions.
        dialect: v1, v2a or v2b.
        page: how many events a response has.
        every: events between two checkpoints of a response.
    """

    def __init__(
        self,
        parts: Mapping[int, Part],
        dialect: str = "v2a",
        *,
        page: Callable[[], int] = lambda: 100,
        every: int = 100,
    ) -> None:
        super().__init__(self.respond)
        self.parts = dict(parts)
        self.dialect = dialect
        self.page = page
        self.every = every
        self.chance = random.Random(7)
        self.places: dict[str, tuple[int, int]] = {}
        self.texts: dict[tuple[int, int], str] = {}
        self.served = 0
        """Events that were sent."""
        self.same_cursors = True
        """Whether a place has the same cursor each time."""
        self.uncovered = 0
        """Events that are sent behind the last checkpoint."""
        self.shuffled = False
        self.repeated = 0
        """Events that are sent again at the begin of a response (exactlyOnce false)."""
        self.empty_pages = 0
        """So many responses without events, each with another cursor, come before one with events."""
        self.unknown_lines = False
        self.bare_end = False
        """Whether the last line of a response has no newline."""
        self.stream = False
        self.stream_ignored = False
        self.waiting_for_ever = False
        """Whether long responses go on though the partition has left."""
        self.filters: tuple[str, ...] = ()
        self.token = "t0"
        self.gone: set[int] = set()
        """Indexes of partition 0 that nothing is kept after."""
        self.faults: list[Reply] = []
        """Answered to fetches before anything else."""
        self.discovery_faults: list[Reply] = []
        self.cuts: list[int] = []
        """Bytes after which the next responses with events are cut."""

    def cursor(self, partition: int, index: int) -> str:
        """Return the cursor behind so many events."""
        place = partition, index
        if not self.same_cursors or place not in self.texts:
            text = f"{self.chance.getrandbits(40):x}+/=;& {len(self.places)}"
            self.places[text] = place
            self.texts[place] = text
        return self.texts[place]

    def split(self, parent: int, *children: int, history: bool = False) -> None:
        """Close a partition, or let it leave with its whole history, which goes in turn to the children."""
        with self.lock:
            whole = self.parts[parent]
            if not history:
                whole.closed = True
                for child in children:
                    self.parts[child] = Part(after=parent)
                return
            for position, child in enumerate(children):
                mine = list(range(position, len(whole.events), len(children)))
                origins = {parent: mine} | {a: [at[i] for i in mine] for a, at in whole.origins.items()}
                self.parts[child] = Part([whole.events[i] for i in mine], origins=origins)
            del self.parts[parent]

    def make_anew(self, parts: Mapping[int, Part], *, gone_for: int = 0) -> None:
        """Delete the feed and make another one of its name: it knows no cursor of the old one.

        Args:
            parts: its partitions.
            gone_for: so many fetches, and as many discoveries, find neither.
        """
        with self.lock:
            self.parts = dict(parts)
            self.places.clear()
            self.texts.clear()
            self.faults += [Reply(b"there is no such feed\n", 404)] * gone_for
            self.discovery_faults += [Reply(b"there is no such feed\n", 404)] * gone_for

    def add(self, partition: int, *events: bytes) -> None:
        """Add events."""
        with self.lock:
            self.parts[partition].events += events

    @property
    def fetches(self) -> list[Request]:
        return [each for each in self.asked if "partition" in each or "n" in each]

    def respond(self, request: Request) -> Reply:
        if self.dialect == "v1":
            if "n" not in request:
                return Reply(b"handshake error: partition count missing\n", 400)
            name = next(n for n, _ in request.pairs if n.startswith("cursor"))
            return self.fetched(request, int(name[len("cursor") :]), request[name])
        if "partition" not in request:
            return self.discovery_faults.pop(0) if self.discovery_faults else Reply(self.discovery(), kind=None)
        if self.dialect == "v2b":
            assert request.path.endswith("/events")
            if request["token"] != self.token:
                return Reply(b"illegal token, please fetch new from discovery endpoint\n", 409)
        return self.fetched(request, int(request["partition"]), request["cursor"])

    def discovery(self) -> bytes:
        listed = []
        for number, part in self.parts.items():
            each: dict[str, object] = {"id": str(number), "closed": part.closed}
            if part.closed and part.tells_end:
                each["lastCursor"] = self.cursor(number, len(part.events))
            if part.after is not None:
                each["startsAfterPartition"] = str(part.after)
            if part.origins:
                each["cursorFromPartitions"] = [str(a) for a in part.origins]
            listed.append(each)
        answer: dict[str, object] = {"partitions": listed, "exactlyOnce": False, "filters": list(self.filters)}
        if self.dialect == "v2b":
            answer["token"] = self.token
        if self.stream:
            answer["stream"] = True
        return json.dumps(answer).encode()

    def fetched(self, request: Request, partition: int, cursor: str) -> Reply:
        if self.faults:
            return self.faults.pop(0)
        if partition not in self.parts:
            return Reply(b"partition doesn't exist\n", 400)
        part = self.parts[partition]
        if cursor == "_first":
            at = 0
        elif cursor == "_last":
            return Reply(self.checkpoint(partition, len(part.events)))
        else:
            if cursor not in self.places:
                return Reply(b"no such cursor\n", 400)
            of, at = self.places[cursor]
            if of != partition:
                if of not in part.origins:
                    return Reply(b"cursor of another partition\n", 400)
                at = sum(index < at for index in part.origins[of])
            if partition == 0 and at in self.gone:
                return Reply(b"events are gone\n", 410)
        if "stream" in request and not self.stream_ignored:
            return Reply(self.waiting(partition, at, int(request["stream"])), chunked=True)
        body = b"".join(self.lines(partition, at))
        body = body.removesuffix(b"\n") if self.bare_end else body
        if self.cuts and at < len(part.events):
            return Reply(body[: self.cuts.pop(0)], chunked=True, cut=True)
        return Reply(body)

    def lines(self, partition: int, at: int) -> Iterator[bytes]:
        events = self.parts[partition].events
        if self.empty_pages and at < len(events) and self.chance.random() < 0.5:
            for _ in range(self.empty_pages):
                text = f"e{self.chance.getrandbits(40):x}"
                self.places[text] = (partition, at)
                yield self.marked(partition, text)
            return
        end = min(len(events), at + self.page())
        for event in events[max(0, at - self.repeated) : at] if at < end else ():
            yield self.event(partition, event)
        if at >= end:
            yield self.checkpoint(partition, at)
        while at < end:
            stop = min(end, at + self.every)
            block = events[at:stop]
            if self.shuffled:
                self.chance.shuffle(block)
            for event in block:
                if self.unknown_lines:
                    yield b'{"ping": 1}\n{}\r\n\n'
                yield self.event(partition, event)
            yield self.checkpoint(partition, stop)
            at = stop
        for event in events[end : end + self.uncovered]:
            yield self.event(partition, event)

    def waiting(self, partition: int, at: int, wait_ms: int) -> Iterator[bytes]:
        until = time.monotonic() + wait_ms / 1_000
        yield self.checkpoint(partition, at)
        while time.monotonic() < until and (partition in self.parts or self.waiting_for_ever):
            if partition in self.parts and len(self.parts[partition].events) > at:
                with self.lock:
                    body, at = b"".join(self.lines(partition, at)), len(self.parts[partition].events)
                yield body
            time.sleep(0.005)

    def event(self, partition: int, event: bytes) -> bytes:
        self.served += 1
        key = b"event" if self.dialect == "v2a" else b"data"
        of = b'"partition": %d, ' % partition if self.dialect == "v1" else b""
        more = b'"unknown": [1], ' if self.unknown_lines else b""
        return b'{%b%b"%b": %b}\n' % (of, more, key, event)

    def checkpoint(self, partition: int, index: int) -> bytes:
        return self.marked(partition, self.cursor(partition, index))

    def marked(self, partition: int, cursor: str) -> bytes:
        of = b'"partition": %d, ' % partition if self.dialect == "v1" else b""
        return b'{%b"cursor": "%b"}\n' % (of, cursor.encode())


class EchoingFeed(BadFeed):
    """A feed that says where its partitions end, and answers every other fetch with all that it was sent."""

    def fetched(self, request: Request, partition: int, cursor: str) -> Reply:
        """Answer a fetch."""
        if cursor == "_last":
            return super().fetched(request, partition, cursor)
        echo = {"Authorization": request.headers.get("Authorization"), "query": request.pairs, **request.headers}
        return Reply(json.dumps(echo).encode(), 403, kind="application/json")


def numbered(start: int, stop: int) -> list[bytes]:
    """Return events that are told apart."""
    return [b'{"n": %d}' % n for n in range(start, stop)]


def answers(*replies: Reply) -> Callable[[Request], Reply]:
    """Give these replies in turn, the last one for ever."""
    left = list(replies)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def read(client: FeedClient, cursor: str = "_first") -> tuple[list[bytes], list[str]]:
    """Read one response; return its events and its cursors."""
    events: list[bytes] = []
    cursors: list[str] = []
    for lines in client.lines(0, cursor):
        events += lines.values.to_pylist()
        cursors += lines.cursors.to_pylist()
    return events, cursors
