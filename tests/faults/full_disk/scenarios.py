"""What each door does on a full disk, and when there is room again: with any disk that can be filled."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import proton
import requests

from spark_streams.log import LogConfig, ReferenceLog
from spark_streams.server import AmqpConfig, EventHubsConfig, ServerThread, WebConfig
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.rabbitmq.config import RabbitConfig
from tests.fuzz.witness import DOORS, peer_of, read_all
from tests.real_rabbitmq import by_hand as hand
from tests.server.amqp.raw_peer import EARLIEST, EPOCH, GROUP, PARTITION, Peer, Refused
from tests.server.web.conftest import Window

INTERNAL_ERROR = 0x0F
LARGE = 6_000
"""Bytes of an event: more than what a block that is in use may have left."""
MOST = 50
WAIT_S = 60.0


class Disk(Protocol):
    """A disk that can be filled."""

    def fill(self) -> None: ...
    def free(self) -> None: ...


class PatientPeer(Peer):
    """One that also waits on a loaded machine."""

    def pump(self, done: Callable[[], Any], timeout_s: float = WAIT_S) -> None:
        super().pump(done, max(timeout_s, WAIT_S))


class Doors:
    """All doors of a log in a folder, while the context is open."""

    def __init__(self, folder: Path, fsync: Any = "interval") -> None:
        self.log = ReferenceLog(folder, LogConfig(fsync=fsync))
        doors = AmqpConfig(port=0), RabbitConfig(port=0), FeedConfig(port=0), EventHubsConfig(port=0)
        self._server = ServerThread(self.log, *doors, WebConfig(port=0))

    @property
    def urls(self) -> dict[str, str]:
        return self._server.urls

    def rabbit(self) -> hand.Peer:
        return hand.Peer(self.urls["rabbitmq-stream"].replace("://", "://guest:guest@")).open()

    def amqp(self, container: str) -> PatientPeer:
        return PatientPeer(self.urls["amqp"], container=container)

    def window(self) -> Window:
        return Window(self._server, self.log)

    def check(self, expected: list[bytes]) -> None:
        """Read all events of stream ``s`` through each door."""
        for door in DOORS:
            found = read_all(peer_of(self.urls, door, "s"))
            assert found == expected, (door, found[-2:], expected[-2:])

    def __enter__(self) -> Doors:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self.log.close()


def events() -> Iterator[bytes]:
    """Yield events, each another one; a feed can show them as they are."""
    return (b'{"n":%d,"x":"%s"}' % (n, b"x" * LARGE) for n in itertools.count())


def until_refused(send: Callable[[bytes], bool], made: Iterator[bytes]) -> list[bytes]:
    """Send events until one is refused; return those that were not."""
    taken = []
    for event in itertools.islice(made, MOST):
        if not send(event):
            return taken
        taken.append(event)
    raise AssertionError(f"{MOST} events were taken on a full disk")


def through_amqp(disk: Disk, folder: Path, fsync: Any = "interval") -> None:
    """AMQP: rejected with amqp:resource-limit-exceeded; the links stay, and go on when there is room."""
    made = events()
    with Doors(folder, fsync) as doors:
        doors.log.create_stream("s")
        writer, reader = doors.amqp("writer"), doors.amqp("reader")
        sender = writer.sender("s")
        kept = reader.receiver("s", name="kept", filter=EARLIEST, durability=2, expiry=proton.Terminus.EXPIRE_NEVER)
        expected = list(itertools.islice(made, 3))
        for event in expected:
            sender.send(event, timeout_s=WAIT_S)
        assert len(kept.take(2, timeout_s=WAIT_S)) == 2
        disk.fill()
        told: list[Refused] = []

        def send(event: bytes) -> bool:
            try:
                sender.send(event, timeout_s=WAIT_S)
            except Refused as refusal:
                told.append(refusal)
            return not told

        expected += until_refused(send, made)
        assert (told[0].condition, "o space left on device" in told[0].description) == (
            "amqp:resource-limit-exceeded",
            True,
        )
        doors.check(expected)
        # Reading needs no room: durable links that come and go, and groups.
        assert kept.take(1, timeout_s=WAIT_S)[0].body == expected[2]
        kept.detach()
        again = reader.receiver("s", name="kept", filter=EARLIEST, durability=2, expiry=proton.Terminus.EXPIRE_NEVER)
        again.close()
        grouped = reader.receiver("s", filter=EARLIEST, properties={GROUP: "g"})
        assert len(grouped.take(len(expected), timeout_s=WAIT_S)) == len(expected)
        claim = {PARTITION: proton.symbol("0"), GROUP: "h", EPOCH: proton.ulong(9)}
        try:  # an epoch is written down, if there is still room for that
            reader.receiver("s", filter=EARLIEST, properties=claim)
        except Refused as refusal:
            assert refusal.condition == "amqp:resource-limit-exceeded"
        disk.free()
        expected += list(itertools.islice(made, 2))
        for event in expected[-2:]:
            sender.send(event, timeout_s=WAIT_S)
        reader.receiver("s", filter=EARLIEST, properties={**claim, EPOCH: proton.ulong(10)})
        doors.check(expected)
        writer.close()
        reader.close()
    check_after_restart(folder, expected)


def through_rabbit(disk: Disk, folder: Path, fsync: Any = "interval") -> None:
    """RabbitMQ: PublishError internal-error until the publisher is declared anew; other commands are answered."""
    made = events()
    with Doors(folder, fsync) as doors:
        peer = doors.rabbit()
        assert peer.create("s") == 1
        assert peer.declare(1, "s", "ref") == 1
        ids = itertools.count(1)
        expected: list[bytes] = []

        def entry(number: int, event: bytes) -> bytes:
            return hand.plain(number, b"\0Su\xb0" + struct.pack(">I", len(event)) + event)

        def publish(event: bytes) -> bool:
            number = next(ids)
            peer.publish(1, [entry(number, event)])
            while True:
                frame = peer.read()
                if frame.key == hand.PUBLISH_CONFIRM:
                    return True
                if frame.key == hand.PUBLISH_ERROR:
                    assert struct.unpack_from(">BIQH", frame.body) == (1, 1, number, INTERNAL_ERROR)
                    return False

        def stored_offset() -> int:
            body = peer.ask(hand.QUERY_OFFSET, hand.text("reader") + hand.text("s")).body
            assert struct.unpack_from(">H", body)[0] == 1
            return int(struct.unpack_from(">Q", body, 2)[0])

        for event in itertools.islice(made, 3):
            assert publish(event)
            expected.append(event)
        peer.send(hand.STORE_OFFSET, hand.text("reader") + hand.text("s") + struct.pack(">Q", 5))
        assert stored_offset() == 5
        disk.fill()
        expected += until_refused(publish, made)
        assert not publish(next(made))  # nothing of this publisher is stored behind a gap
        assert peer.create("new") == INTERNAL_ERROR
        assert peer.stats("new")[0] != 1
        peer.send(hand.STORE_OFFSET, hand.text("reader") + hand.text("s") + struct.pack(">Q", 7))
        assert stored_offset() in (5, 7)  # what is told is written down
        sequence = struct.unpack_from(
            ">HQ", peer.ask(hand.QUERY_PUBLISHER_SEQUENCE, hand.text("ref") + hand.text("s")).body
        )
        assert sequence == (1, len(expected))
        doors.check(expected)
        disk.free()
        deadline = time.monotonic() + WAIT_S
        while stored_offset() != 7:
            assert time.monotonic() < deadline
        assert peer.create("new") == 1
        peer.ask(hand.DELETE_PUBLISHER, bytes([1]))
        assert peer.declare(1, "s", "ref") == 1
        ids = itertools.count(len(expected) + 1)
        for event in itertools.islice(made, 2):
            assert publish(event)
            expected.append(event)
        doors.check(expected)
        peer.close()
    check_after_restart(folder, expected)


def through_feed(disk: Disk, folder: Path, fsync: Any = "interval") -> None:
    """FeedAPI: 507, and the same request is stored, once, when there is room."""
    made = events()
    with Doors(folder, fsync) as doors, requests.Session() as session:
        url = doors.urls["feedapi"]
        numbers = itertools.count(1)
        said: list[requests.Response] = []
        assert session.put(f"{url}/s", timeout=WAIT_S).status_code == 201

        def post(event: bytes) -> bool:
            headers = {"Idempotency-Key": "w", "Idempotency-Sequence": str(next(numbers))}
            headers["Content-Type"] = "application/x-ndjson"
            said.append(session.post(f"{url}/s", data=b'{"event":%s}\n' % event, headers=headers, timeout=WAIT_S))
            return said[-1].status_code == 200

        expected = list(itertools.islice(made, 3))
        assert all(post(event) for event in expected)
        disk.fill()
        expected += until_refused(post, made)
        assert said[-1].status_code == 507
        assert "o space left on device" in said[-1].text and "when there is room" in said[-1].text
        for refused in (
            session.put(f"{url}/new", timeout=WAIT_S),
            session.post(f"{url}/s/partitions/0/split", timeout=WAIT_S),
            session.post(f"{url}/s/partitions/0/split?history=true", timeout=WAIT_S),
        ):
            assert refused.status_code == 507, refused.text
        assert session.get(f"{url}/new", timeout=WAIT_S).status_code == 404
        doors.check(expected)
        disk.free()
        again = said[-1].request
        for answer in ({"appended": 1, "repeated": 0}, {"appended": 0, "repeated": 1}):
            assert answer.items() <= session.send(again, timeout=WAIT_S).json().items()
        assert isinstance(again.body, bytes)
        expected.append(again.body[len(b'{"event":') : -2])
        assert session.put(f"{url}/new", timeout=WAIT_S).status_code == 201
        doors.check(expected)
    check_after_restart(folder, expected)


class LivePage:
    """A page of stream ``s`` that a browser has open: its figures as they come."""

    def __init__(self, url: str) -> None:
        self.ever = -1
        """How many events it says that the stream has had."""
        self._answer = requests.get(f"{url}/live?stream=s", stream=True, timeout=WAIT_S)
        assert self._answer.status_code == 200
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for line in self._answer.iter_lines():
            if line.startswith(b"data: "):
                self.ever = json.loads(line[6:])["streams"][0]["ever"]

    def wait_for(self, events: int) -> None:
        """Return once it says so."""
        deadline = time.monotonic() + WAIT_S
        while self.ever != events:
            assert self._thread.is_alive(), "the page is told no more"
            assert time.monotonic() < deadline, (self.ever, events)
            time.sleep(0.01)


PAGES = ("/", "/stream?stream=s", "/events?stream=s&partition=0", "/connections", "/groups", "/metrics", "/healthz")


def with_the_window(
    disk: Disk, folder: Path, fsync: Any = "interval", chance: random.Random | None = None, steps: int = 25
) -> None:
    """The window: each page is shown, one that is open is kept up to date, and a form says that there is no room."""
    chance = chance or random.Random(38)
    made, others = events(), itertools.count()
    with Doors(folder, fsync) as doors:
        window = doors.window()
        doors.log.create_stream("s")
        live = LivePage(window.url)
        sender = doors.amqp("writer").sender("s")
        expected: list[bytes] = []
        there: list[str] = []
        full = False

        def type_one() -> None:
            event = next(made)
            answer = window.post("/publish?stream=s", value=event.decode(), content_type="application/json")
            if answer.status_code == 303:
                expected.append(event)
                return
            assert full and answer.status_code == 422, answer.text
            assert "The event was not stored" in answer.text and "make room on the disk of the log" in answer.text
            assert f"{event.decode()[:5]}" in answer.text.replace("&#34;", '"'), "what was typed is kept"

        def send_one() -> None:
            event = next(made)
            try:
                sender.send(event, timeout_s=WAIT_S)
                expected.append(event)
            except Refused as refusal:
                assert full and refusal.condition == "amqp:resource-limit-exceeded"

        def create() -> None:
            name = f"other-{next(others)}"
            answer = window.post("/create", name=name, partitions="1")
            if answer.status_code == 303:
                there.append(name)
                return
            assert full and answer.status_code == 507, answer.text
            assert "o space left on device" in answer.text and name not in [each.name for each in doors.log.streams()]

        def delete() -> None:
            if there:
                name = there.pop(chance.randrange(len(there)))
                assert window.post("/delete", stream=name, confirm=name).status_code == 303, "it needs no room"

        def look() -> None:
            for page in chance.sample(PAGES, 3):
                assert window.get(page).status_code == 200, page
            if expected:
                at = chance.randrange(len(expected))
                shown = window.get(f"/event?stream=s&partition=0&offset={at}")
                assert shown.status_code == 200 and str(json.loads(expected[at])["n"]) in shown.text

        for _ in range(steps):
            if chance.random() < 0.15:
                full = not full
                disk.fill() if full else disk.free()
                live.wait_for(len(expected))
            chance.choice((type_one, type_one, send_one, create, delete, look))()
        if full:
            disk.free()
            full = False
        for step in (type_one, send_one, create, look, delete):
            step()
        live.wait_for(len(expected))
        doors.check(expected)
    check_after_restart(folder, expected)


def started_on_a_full_disk(disk: Disk, folder: Path, fsync: Any = "interval") -> None:
    """A start needs no room: what is there is read, and written to once there is room."""
    made = events()
    with Doors(folder, fsync) as doors:
        peer = doors.rabbit()
        assert peer.create("s") == 1
        expected = list(itertools.islice(made, 3))
        sender = doors.amqp("writer").sender("s")
        for event in expected:
            sender.send(event, timeout_s=WAIT_S)
        killed = folder.with_name(folder.name + "-killed")
        shutil.copytree(folder, killed)
    disk.fill()
    with Doors(killed, fsync) as doors:  # as kill -9 leaves it
        doors.check(expected)
    with Doors(folder, fsync) as doors:
        doors.check(expected)
        sender = doors.amqp("writer").sender("s")

        def send(event: bytes) -> bool:
            try:
                sender.send(event, timeout_s=WAIT_S)
            except Refused:
                return False
            return True

        expected += until_refused(send, made)
    with Doors(folder, fsync) as doors:
        doors.check(expected)
        disk.free()
        expected.append(next(made))
        doors.amqp("writer").sender("s").send(expected[-1], timeout_s=WAIT_S)
        doors.check(expected)
    check_after_restart(folder, expected)


def check_after_restart(folder: Path, expected: list[bytes]) -> None:
    with Doors(folder) as doors:
        doors.check(expected)


SCENARIOS = (through_amqp, through_rabbit, through_feed, with_the_window, started_on_a_full_disk)


@contextmanager
def named(scenario: Callable[..., None]) -> Iterator[None]:
    """Say which scenario it was that failed."""
    try:
        yield
    except BaseException:
        print(f"failed: {scenario.__name__}", file=sys.stderr)
        raise
