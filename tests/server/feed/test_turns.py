"""Work that takes long holds up nobody else: it is done beside the loop, or a little at a time."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
import requests

from tests.server.feed.conftest import TIMEOUT_S, Door

GUARD_S = 120.0
"""Only against hanging; a request that waits for the loop fails after ``TIMEOUT_S``."""


class Held:
    """A function that waits, once it is called, until it is let go; in place of one that takes long."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._go = threading.Event()
        self.begun = threading.Event()
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls.append(arguments)
        self.begun.set()
        assert self._go.wait(GUARD_S)
        return self._function(*arguments, **named)

    def let_go(self) -> None:
        self._go.set()


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Future[requests.Response]]]:
    """A function that makes a request in a thread."""
    with ThreadPoolExecutor(4) as threads:
        yield lambda method, url, **more: threads.submit(requests.request, method, url, timeout=GUARD_S, **more)


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch, elsewhere: Any) -> Iterator[Callable[[Any, str], Held]]:
    """A function that has a function of an object, or of a module, held."""
    held: list[Held] = []

    def replace(owner: Any, name: str) -> Held:
        held.append(Held(getattr(owner, name)))
        monkeypatch.setattr(owner, name, held[-1])
        return held[-1]

    yield replace
    for each in held:
        each.let_go()


def served_beside(held: Held, answer: Future[requests.Response], door: Door) -> requests.Response:
    """See that others are served while something is held; return its answer."""
    assert held.begun.wait(GUARD_S)
    # The door's own client gives up after TIMEOUT_S.
    assert door.page(name="calm").events == [{"n": 0}, {"n": 1}]
    assert door.post(b'{"event":"more"}\n', name="busy").status_code == 200
    assert not answer.done()
    held.let_go()
    return answer.result(GUARD_S)


@pytest.fixture
def calm(door: Door) -> Door:
    """A door with a feed of two events, and one that others publish to."""
    door.create("calm")
    door.create("busy")
    door.numbers(0, 2, name="calm")
    return door


def test_others_are_served_while_a_feed_is_created_and_deleted(calm: Door, hold: Any, elsewhere: Any) -> None:
    for method, change, status in (("PUT", "create_stream", 201), ("DELETE", "delete_stream", 204)):
        answer = elsewhere(method, f"{calm.url}/many")
        assert served_beside(hold(calm.log, change), answer, calm).status_code == status


def test_others_are_served_while_a_partition_is_split(calm: Door, hold: Any, elsewhere: Any) -> None:
    calm.create("many")
    answer = elsewhere("POST", f"{calm.url}/many/partitions/0/split")
    assert served_beside(hold(calm.log, "split_partition"), answer, calm).status_code == 200


def test_others_are_served_while_many_partitions_are_described(calm: Door, hold: Any, elsewhere: Any) -> None:
    from spark_streams.server.feed import discovery as module

    calm.create("many", 65)
    answer = elsewhere("GET", f"{calm.url}/many")
    assert len(served_beside(hold(module, "discovery_of"), answer, calm).json()["partitions"]) == 65


@pytest.fixture
def aside() -> Iterator[Any]:
    from spark_streams.server.turns import Worker

    thread = Worker("test")
    yield thread
    thread.close()


def test_those_who_wait_for_one_list_share_it_and_it_is_no_older_than_their_requests(
    door: Door, aside: Any, hold: Any
) -> None:
    from spark_streams.server.feed import discovery as module

    door.create("many", 65)
    stream = door.log.stream("many")
    held = hold(module, "discovery_of")
    documents = module.Documents(door.config, aside)

    async def ask() -> None:
        first = asyncio.create_task(documents.of(stream))
        assert await asyncio.to_thread(held.begun.wait, GUARD_S)
        # They come when the first one's list is being made: theirs is made after it.
        others = [asyncio.create_task(documents.of(stream)) for _ in range(4)]
        await asyncio.sleep(0)
        assert list(documents._waiting) == [(stream, True)]
        door.numbers(0, 3, name="many", partition=64)
        others[0].cancel()
        held.let_go()
        told = await asyncio.gather(first, *others[1:])
        assert len(held.calls) == 2
        assert told[1] == told[2] == told[3] == await documents.of(stream) and len(held.calls) == 3
        assert json.loads(told[1])["partitions"][64]["lastCursor"].endswith("03")

    asyncio.run(ask())


@pytest.mark.parametrize("begins", [True, False])
def test_a_list_that_cannot_be_made_fails_for_those_who_wait_for_it_and_for_nobody_else(
    door: Door, aside: Any, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    from spark_streams.errors import LogError
    from spark_streams.server.feed import discovery as module

    calls = 0

    def broken(*_: object, **_settings: object) -> None:
        nonlocal calls
        calls += 1
        raise LogError("broken")

    door.create("many", 65)
    stream = door.log.stream("many")
    documents = module.Documents(door.config, aside)

    async def ask() -> None:
        with monkeypatch.context() as patched:
            if begins:
                patched.setattr(module, "discovery_of", broken)
            else:
                patched.setattr(threading.Thread, "start", broken)
            told = await asyncio.gather(*(documents.of(stream) for _ in range(3)), return_exceptions=True)
        assert [str(each) for each in told] == ["broken"] * 3 and calls == 1
        assert len(json.loads(await documents.of(stream))["partitions"]) == 65
        assert not documents._waiting

    asyncio.run(ask())


@pytest.mark.parametrize("query", ["filter-key=none", "filter-subject=none", "filter-/n=none", "stream=1&filter-key=a"])
def test_others_are_served_while_a_filter_is_evaluated(calm: Door, hold: Any, elsewhere: Any, query: str) -> None:
    from spark_streams.server.feed import rendered_events

    calm.create("many")
    calm.numbers(0, 100, name="many")
    answer = elsewhere("GET", f"{calm.url}/many?partition=0&cursor=_first&{query}")
    assert b"event" not in served_beside(hold(rendered_events, "wanted"), answer, calm).content


def test_a_search_has_its_turns_and_goes_on_where_it_was(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_streams.server.feed import rendered_events
    from spark_streams.server.feed.rendered_events import MOST_ROWS

    count = 3 * MOST_ROWS + 7
    rows: list[int] = []
    wanted = rendered_events.wanted

    def counted(records: Any, filters: Any) -> Any:
        rows.append(len(records))
        return wanted(records, filters)

    monkeypatch.setattr(rendered_events, "wanted", counted)
    door.create()
    door.append([b"%d" % n for n in range(count)], keys=[f"{n % 1000}" for n in range(count)])
    found = [str(n) for n in range(7, count, 1000)]
    assert door.read(filter__key="7", pageSizeHint=10**6) == found
    assert max(rows) <= MOST_ROWS and len(rows) >= 4
    # From anywhere, also from within what a turn looks at.
    page = door.page(filter__key="7", pageSizeHint=5)
    assert page.events + door.page(cursor=page.cursor, filter__key="7", pageSizeHint=2).events == found[:7]
    assert door.read(cursor=page.cursor, filter__key="7", pageSizeHint=1) == found[5:]


def test_events_are_rendered_in_turns_and_shared(door: Door) -> None:
    from spark_streams.server.feed.rendered_events import MOST_ROWS

    count = 2 * MOST_ROWS + 5
    door.create()
    door.append([b"%d" % n for n in range(count)])
    for _ in range(2):
        assert [int(event) for event in door.read(pageSizeHint=10**6)] == list(range(count))
    at = door.page(pageSizeHint=MOST_ROWS - 1).cursor
    assert [int(event) for event in door.read(cursor=at, pageSizeHint=1_000)] == list(range(MOST_ROWS - 1, count))


def test_a_search_ends_when_its_client_goes(calm: Door, hold: Any) -> None:
    from spark_streams.server.feed import rendered_events
    from spark_streams.server.feed.rendered_events import MOST_ROWS

    calm.create("many")
    calm.append([b"x"] * (3 * MOST_ROWS), name="many")
    held = hold(rendered_events, "wanted")
    where = urlsplit(calm.url)
    asked = socket.create_connection((where.hostname, where.port or 0), timeout=TIMEOUT_S)
    asked.sendall(b"GET /many?partition=0&cursor=_first&filter-key=gone HTTP/1.1\r\nHost: localhost\r\n\r\n")
    port = asked.getsockname()[1]
    assert held.begun.wait(GUARD_S)
    asked.close()
    there = calm.server.server.door("feedapi").connections
    deadline = time.monotonic() + GUARD_S
    while any(each.client[1] == port for each in list(there)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    held.let_go()
    # Turns are in order: the one that was given up would have come before these.
    calm.read(name="many", filter__key="there")
    assert sum(filters == {"key": "gone"} for _, filters in held.calls) == 1


# --- publishing

LINE = b'{"event":"%06d"}\n'


def lines(count: int) -> bytes:
    return b"".join(LINE % n for n in range(count))


def arrow(values: list[bytes], compression: str | None = None) -> bytes:
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
NDJSON = {"Content-Type": "application/x-ndjson"}


def test_others_are_served_while_a_large_body_is_read(calm: Door, hold: Any, elsewhere: Any) -> None:
    from spark_streams.server.feed import request_bodies

    calm.create("many")
    held = hold(request_bodies, "_columns_of")
    answer = elsewhere("POST", f"{calm.url}/many", data=arrow([b"x" * 100] * 1_000), headers=ARROW)
    assert served_beside(held, answer, calm).json()["appended"] == 1_000


def test_others_are_served_while_many_events_are_spread_and_stored(calm: Door, hold: Any, elsewhere: Any) -> None:
    from spark_streams.log.format import batching

    calm.create("many")
    held = hold(batching, "_runs")  # few events are encoded without it
    answer = elsewhere("POST", f"{calm.url}/many", data=lines(10_000), headers=NDJSON)
    assert served_beside(held, answer, calm).json()["appended"] == 10_000
    # Nor do those wait who append to the same partition: theirs is stored first.
    held = hold(batching, "_runs")
    answer = elsewhere("POST", f"{calm.url}/busy", data=lines(10_000), headers=NDJSON)
    assert held.begun.wait(GUARD_S)
    calm.append([b"between"], name="busy")
    held.let_go()
    assert answer.result(GUARD_S).json()["appended"] == 10_000
    assert calm.read(name="busy")[1:3] == ["between", "000000"]


@pytest.mark.parametrize(
    ("body", "coding", "kind", "little"),
    [
        (lines(1_000), "", NDJSON, True),
        (lines(10_000), "", NDJSON, False),
        (gzip.compress(lines(1_000)), "gzip", NDJSON, True),
        (gzip.compress(lines(10_000)), "gzip", NDJSON, False),
        (gzip.compress(b"\n" * (16 << 20)), "gzip", NDJSON, False),
        (arrow([b""] * 1_000), "", ARROW, True),
        (arrow([b""] * 100_000), "", ARROW, False),
        (arrow([b""] * 1_000, "zstd"), "", ARROW, True),
        (arrow([b""] * 100_000, "zstd"), "", ARROW, False),
        (gzip.compress(arrow([b""] * 100_000, "zstd")), "gzip", ARROW, False),
        (b"no gzip", "gzip", ARROW, True),
        (b"no arrow", "", ARROW, True),
    ],
)
def test_only_what_is_little_when_it_is_unpacked_is_read_on_the_loop(
    body: bytes, coding: str, kind: dict[str, str], little: bool
) -> None:
    from spark_streams.server.feed.request_bodies import read_within
    from spark_streams.server.http.config import LITTLE_BYTES
    from spark_streams.server.http.requests import HttpError
    from spark_streams.wire.amqp.decode import finished

    steps = read_within(LITTLE_BYTES, [body[:5], body[5:]], coding, kind["Content-Type"], 16 << 20, 1_000_000)
    if body.startswith(b"no "):
        with pytest.raises(HttpError):
            finished(steps)
    else:
        assert (finished(steps) is not None) is little


def test_a_body_is_read_in_small_pieces_however_far_it_unpacks(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_streams.server.feed import request_bodies

    blocks: list[int] = []
    parse = request_bodies.parse_lines

    def parsed(block: bytes, *rest: Any, **named: Any) -> Any:
        blocks.append(len(block))
        return parse(block, *rest, **named)

    monkeypatch.setattr(request_bodies, "parse_lines", parsed)
    door.create()
    packed = gzip.compress(b"\n" * (8 << 20) + lines(30_000) + b"\n" * (7 << 20))
    assert door.post(packed, **{"Content-Encoding": "gzip"}).json() == {"appended": 30_000, "repeated": 0}
    assert max(blocks) <= 2 * request_bodies.PIECE_BYTES
    # Blank pieces are not looked into.
    assert sum(blocks) <= len(lines(30_000)) + 2 * request_bodies.PIECE_BYTES
    assert [int(event) for event in door.read(pageSizeHint=10**6)] == list(range(30_000))


def test_a_body_of_many_pieces_is_stored_wholly_or_not_at_all(doors: Callable[..., Door]) -> None:
    door = doors(max_body_events=50_000)
    door.create()
    wrong = lines(20_000) + b"\n\n{}\n" + lines(20_000)
    refused = door.post(wrong)
    assert refused.text.startswith("line 20003 of the body: holds 0 events")
    broken = door.post(lines(40_000) + b'{"event":\n')
    assert broken.status_code == 400 and broken.text.startswith("line 40001 of the body")
    many = door.post(lines(50_001))
    assert many.status_code == 413 and "more than 50000 events" in many.text
    cut = door.post(gzip.compress(lines(40_000))[:-9], **{"Content-Encoding": "gzip"})
    assert cut.status_code == 400 and "no whole gzip member" in cut.text
    two = door.post(gzip.compress(lines(40_000)) * 2, **{"Content-Encoding": "gzip"})
    assert two.status_code == 400 and "more than one" in two.text
    nothing = door.post(arrow([b"x"] * 50_001), kind=ARROW["Content-Type"])
    assert nothing.status_code == 413
    assert door.read() == []
    assert door.post(lines(50_000)).json()["appended"] == 50_000
    assert door.post(arrow([b"%d" % n for n in range(50_000)]), kind=ARROW["Content-Type"]).json()["appended"] == 50_000


@pytest.mark.parametrize("packed", [False, True])
def test_a_body_of_middle_size_waits_for_no_large_one(
    calm: Door, monkeypatch: pytest.MonkeyPatch, elsewhere: Any, packed: bool
) -> None:
    from spark_streams.server.feed import request_bodies

    parse = request_bodies.parse_lines
    begun, go = threading.Event(), threading.Event()

    def parsed(block: bytes, *rest: Any, **named: Any) -> Any:
        if len(block) > 1 << 20:
            begun.set()
            assert go.wait(GUARD_S)
        return parse(block, *rest, **named)

    monkeypatch.setattr(request_bodies, "parse_lines", parsed)
    long = b'{"event":"","key":"' + b"k" * (2 << 20) + b'"}\n'
    coding = {"Content-Encoding": "gzip"} if packed else {}
    headers = {**NDJSON, **coding}
    answers = [
        elsewhere("POST", f"{calm.url}/busy", data=gzip.compress(long) if packed else long, headers=headers)
        for _ in range(3)
    ]
    try:
        assert begun.wait(GUARD_S)
        middle = lines(6_000)
        assert len(middle) > request_bodies.PIECE_BYTES // 2
        body = gzip.compress(middle) if packed else middle
        assert calm.post(body, name="calm", **coding).json() == {"appended": 6_000, "repeated": 0}
        assert not any(each.done() for each in answers)
    finally:
        go.set()
    assert {each.result(GUARD_S).status_code for each in answers} == {200}


def test_a_sequence_is_stored_once_over_many_partitions(door: Door) -> None:
    door.create(partitions=40)
    body = b"".join(b'{"event":"x","key":"%d"}\n' % n for n in range(5_000))
    number = {"Idempotency-Key": "me", "Idempotency-Sequence": "1"}
    first, again = (door.post(body, **number).json() for _ in range(2))
    assert first == {"appended": 5_000, "repeated": 0, "last": 1}
    assert again == {"appended": 0, "repeated": 5_000, "last": 1}


def test_large_bodies_together_have_only_so_much_room(doors: Callable[..., Door]) -> None:
    door = doors(bodies_bytes=200_000)
    door.create("calm")
    receiving = door.server.server.door("feedapi").application.changes._receiving
    where = urlsplit(door.url)
    slow = socket.create_connection((where.hostname, where.port or 0), timeout=TIMEOUT_S)
    head = b"POST /calm HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n"
    slow.sendall(head % 160_000 + b"\n" * 150_000)
    deadline = time.monotonic() + GUARD_S
    while receiving.held.total() < 150_000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # Who sends little is always served, and who sends less than those that are not ready.
    assert door.post(b'{"event":"little"}\n', name="calm").status_code == 200
    assert receiving.held.total() == 150_000
    body = lines(5_000)
    assert len(body) < 150_000 and len(body) + 150_000 > 200_000
    assert door.post(body, name="calm").json()["appended"] == 5_000
    assert receiving.held.total() == 0
    slow.sendall(b"\n" * 10_000)
    assert slow.recv(100).startswith(b"HTTP/1.1 503 ")
    slow.close()
    # Nobody else is there: this one is itself the largest.
    assert door.post(lines(12_000), name="calm").status_code == 503
    assert len(door.read(name="calm")) == 5_001


def test_a_door_that_shuts_while_a_body_is_read_stores_nothing_of_it(calm: Door, hold: Any, elsewhere: Any) -> None:
    from spark_streams.server.feed import request_bodies

    held = hold(request_bodies, "_columns_of")
    answer = elsewhere("POST", f"{calm.url}/busy", data=arrow([b"x" * 10] * 40_000), headers=ARROW)
    assert held.begun.wait(GUARD_S)
    stopping = threading.Thread(target=calm.server.stop)
    stopping.start()
    held.let_go()
    stopping.join(GUARD_S)
    assert not stopping.is_alive()
    try:
        stored = answer.result(GUARD_S).status_code == 200  # it was quicker than the end
    except requests.ConnectionError:
        stored = False
    assert calm.log.stream("busy").partitions["0"].next_offset == (40_000 if stored else 0)


def test_a_refusal_is_answered_on_the_loop(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    from starlette import _exception_handler

    def handed_over(*arguments: Any) -> None:
        raise AssertionError("a thread would answer a refusal")

    door.create()
    monkeypatch.setattr(_exception_handler, "run_in_threadpool", handed_over)
    answer = door.get(partition=7, cursor="_first")
    assert answer.status_code in (400, 404) and answer.text.count("\n") == 1
