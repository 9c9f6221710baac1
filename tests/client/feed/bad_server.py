"""A feed server that behaves as badly as the specification allows, and worse when told to.

Used as a context manager, or by ``close()``::

    feed = BadFeed(partitions=2)
    feed.append(1000)
    with BadServer(feed, Behaviour(dialect=Dialect.V2A, duplicates=0.1)) as server:
        server.fail("cut", "429")       # what happens to the next two fetches
        read(server.url)

Every response has another page size, cursors that are new each time and have no order, and arrives in small pieces cut
anywhere. Nothing here is taken from the code under test but the names of the dialects.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import Any

from spark_streams.wire.feed.line import Dialect
from tests.client.feed.bad_feed import BadFeed, BadPartition, Event, Filters
from tests.client.feed.bad_handler import BadHandler

FAULTS = {
    "cut": "the connection ends inside a line",
    "part": "the connection ends after whole lines",
    "late-500": "the text of an error at the end of a body of status 200, as the Go library leaves it",
    "malformed": "the last line is no JSON",
    "no-cursor": "events and no checkpoint at all",
    "html": "status 200 and a page of HTML",
    "429": "too many requests, Retry-After: 0",
    "500": "an error",
    "503": "an error, Retry-After: 0",
    "400": "an error",
    "401": "not authorised",
    "403": "forbidden",
    "404": "not found",
    "409": "the token changes",
    "reset": "no answer, the connection closes",
    "hang": "no answer for ``Behaviour.hang_s``",
}
"""What can be made to happen to a fetch."""


@dataclass
class Behaviour:
    """How a server behaves; all of it may be changed while it runs.

    Args:
        dialect: what it speaks.
        page_sizes: a page has a number of events in this range, both inclusive, whatever was asked for.
        checkpoints: ``page`` at the end alone, ``event`` after every one, ``some`` after some.
        uncovered: events may follow the last checkpoint of a page.
        duplicates: how likely a page repeats some earlier events; ``exactlyOnce`` is false if it may.
        empty: how likely a page has no event, and a new cursor, though there are events.
        shuffled: events of different keys between two checkpoints come in another order every time.
        noise: unknown lines, unknown members, members in another order, empty lines, spaces.
        crlf: lines end with CR LF.
        last_cursors: ``closed`` partitions have one, ``always``, or ``never``.
        numbers: references in discovery are numbers, as in Go.
        old_spellings: ``startsAfterParent`` and ``splitFromAncestors``.
        filters: the names that are served; others are a 400 (v2a).
        ignore_filters: v2b: filters are not looked at.
        stream: v2a: ``stream`` is served.
        bearer: the token that requests have to bring.
        piece_bytes: the body is sent in pieces of up to so many bytes.
        compressed: gzip, if the client takes it.
        hang_s: how long a fault ``hang`` lasts.
    """

    dialect: Dialect = Dialect.V2A
    page_sizes: tuple[int, int] = (1, 50)
    checkpoints: str = "some"
    uncovered: bool = False
    duplicates: float = 0.0
    empty: float = 0.0
    shuffled: bool = False
    noise: bool = False
    crlf: bool = False
    last_cursors: str = "closed"
    numbers: bool = False
    old_spellings: bool = False
    filters: tuple[str, ...] = ()
    ignore_filters: bool = False
    stream: bool = False
    bearer: str | None = None
    piece_bytes: int = 4096
    compressed: bool = False
    hang_s: float = 5.0


class BadServer:
    """An HTTP server of one feed, on loopback.

    ``url`` is the feed's address, ``requests`` the path and arguments of every request, in order. ``before_fetch`` is
    called with the partition's id before each fetch is answered: a partition may be split there, after discovery.
    """

    def __init__(self, feed: BadFeed, behaviour: Behaviour | None = None) -> None:
        self.feed = feed
        self.behaviour = behaviour or Behaviour()
        self.token = "t+/=0"
        self.requests: list[tuple[str, list[tuple[str, str]]]] = []
        self.before_fetch: Callable[[int], None] = lambda partition: None
        self.fetches = 0
        self._faults: list[str] = []
        self._closing = threading.Event()
        server = self

        class Handler(BadHandler):
            bad = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/bad/feed"

    def __enter__(self) -> BadServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop; responses that are open end."""
        self._closing.set()
        with self.feed.changed:
            self.feed.changed.notify_all()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(120)

    def fail(self, *faults: str) -> None:
        """Let the next fetches go wrong, one fault each; an empty text is a fetch that goes well."""
        assert all(not fault or fault in FAULTS for fault in faults), faults
        with self.feed.lock:
            self._faults.extend(faults)

    @property
    def pending_faults(self) -> int:
        """How many faults have not happened yet."""
        return len(self._faults)

    def rotate_token(self) -> None:
        """Let v2b's token change: fetches with the old one are a 409."""
        with self.feed.lock:
            self.token = f"t+/={int(self.token[4:]) + 1}"

    def discovery(self) -> bytes:
        """Return the discovery document."""
        behaviour, feed = self.behaviour, self.feed

        def reference(number: int) -> int | str:
            return number if behaviour.numbers else str(number)

        after = "startsAfterParent" if behaviour.old_spellings else "startsAfterPartition"
        ancestors = "splitFromAncestors" if behaviour.old_spellings else "cursorFromPartitions"
        with feed.lock:
            listed = []
            for partition in feed.listed():
                item: dict[str, Any] = {"id": str(partition.id), "unknown": {"x": 1}}
                if partition.closed:
                    item["closed"] = True
                if behaviour.last_cursors == "always" or (partition.closed and behaviour.last_cursors == "closed"):
                    item["lastCursor"] = feed.cursor(partition, partition.end, ())
                if partition.starts_after is not None:
                    item[after] = reference(partition.starts_after)
                if partition.cursor_from:
                    item[ancestors] = [reference(number) for number in partition.cursor_from]
                listed.append(item)
            document: dict[str, Any] = {"partitions": listed, "exactlyOnce": not behaviour.duplicates, "unknown": [1]}
            if behaviour.dialect is Dialect.V2B:
                document["token"] = self.token
            else:
                document |= {"stream": behaviour.stream, "filters": list(behaviour.filters)}
        return json.dumps(document).encode()

    def next_fault(self) -> str:
        """Return what is to go wrong with this fetch; an empty text for nothing."""
        with self.feed.lock:
            self.fetches += 1
            return self._faults.pop(0) if self._faults else ""

    @property
    def closing(self) -> bool:
        """Whether the server is being stopped."""
        return self._closing.is_set()

    def wait(self, seconds: float) -> None:
        """Wait, unless the server is being stopped."""
        self._closing.wait(seconds)

    def page(self, partition: BadPartition, after: int, filters: Filters) -> tuple[list[bytes], int]:
        """Return a page's lines, and the number of the event after which the next one goes on."""
        behaviour, feed = self.behaviour, self.feed
        rnd = feed.random
        # A v2b server may ignore filters altogether (P-35).
        wanted = () if behaviour.ignore_filters else filters
        ahead = [event for event in partition.events if event.number > after]
        size = 0 if rnd.random() < behaviour.empty else rnd.randint(*behaviour.page_sizes)
        taken, rest = ahead[:size], ahead[size:]
        lines: list[bytes] = []
        if taken and rnd.random() < behaviour.duplicates:
            earlier = [event for event in partition.events if event.number <= after][-rnd.randint(1, 5) :]
            lines += [self._event(partition, event) for event in earlier if _matches(event, wanted)]
        start = 0
        while start < len(taken):
            step = {"page": len(taken), "event": 1}.get(behaviour.checkpoints) or rnd.randint(1, len(taken) - start)
            part = taken[start : start + step]
            start += step
            after = part[-1].number
            lines += [self._event(partition, e) for e in self._order(part) if _matches(e, wanted)]
            if start < len(taken):
                lines.append(self._checkpoint(partition, after, filters))
        lines.append(self._checkpoint(partition, after, filters))
        if behaviour.uncovered:
            lines += [self._event(partition, event) for event in rest[: rnd.randint(0, 3)] if _matches(event, wanted)]
        return lines, after

    def _order(self, events: list[Event]) -> list[Event]:
        """Return events in an order of this call alone, those of one key as they were."""
        if not self.behaviour.shuffled:
            return events
        places = [event.key for event in events]
        self.feed.random.shuffle(places)
        queues: dict[str, list[Event]] = {}
        for event in events:
            queues.setdefault(event.key, []).append(event)
        return [queues[key].pop(0) for key in places]

    def _event(self, partition: BadPartition, event: Event) -> bytes:
        return self._line(partition, {"event" if self.behaviour.dialect is Dialect.V2A else "data": event.body})

    def _checkpoint(self, partition: BadPartition, number: int, filters: Filters) -> bytes:
        return self._line(partition, {"cursor": self.feed.cursor(partition, number, filters)})

    def _line(self, partition: BadPartition, members: dict[str, Any]) -> bytes:
        rnd, behaviour = self.feed.random, self.behaviour
        ending = b"\r\n" if behaviour.crlf else b"\n"
        if behaviour.dialect is Dialect.V1:
            members = {"partition": partition.id, **members}
        if not behaviour.noise:
            return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode() + ending
        if rnd.random() < 0.2:
            members["unknown"] = rnd.choice([None, 1, "x", {"event": 1, "cursor": "no"}, [{"data": {}}]])
        names = rnd.sample(list(members), len(members))
        text = json.dumps({name: members[name] for name in names}, ensure_ascii=rnd.random() < 0.5)
        others = ('{"ping":1}', "{}", '{"partitions-changed":true}', '{"x":{"cursor":"no"}}', " ")
        more = rnd.choice(others) if rnd.random() < 0.5 else ""
        return rnd.choice(["", " ", "\t"]).encode() + text.encode() + ending + (more.encode() + ending if more else b"")


def _matches(event: Event, filters: Filters) -> bool:
    for name, value in filters:
        types = {part.strip().lower() for part in value.split(";")}
        if name == "event-types":
            matched = event.body["subject"].lower() in types
        elif name == "skip-event-types":
            matched = event.body["subject"].lower() not in types
        else:
            matched = event.body.get(name) == value
        if not matched:
            return False
    return True
