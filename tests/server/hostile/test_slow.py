"""Clients that take their time: each is dealt with when its time is up, and nobody else notices."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, EventHubsConfig, FeedConfig, RabbitConfig, ServerThread
from tests.certificate_authority import Authority
from tests.door_urls import plain_url
from tests.real_rabbitmq.by_hand import SASL_AUTHENTICATE, data, text
from tests.server.hostile.doors import (
    AMQP,
    DEADLINE_S,
    SASL,
    Raw,
    client_hello,
    established,
    introduction,
    rabbit_frame,
    sasl_init,
)
from tests.server.hostile.hub_frames import anonymous, receiver, sender
from tests.server.hostile.secured import round_trip

PAUSE_S = 0.03
"""Between two bytes: some fifty of them come before the time is up."""


@dataclass(frozen=True)
class Slow:
    """A client that begins something and never ends it.

    Args:
        door: which it comes to.
        drips: what it sends byte by byte, again and again; nothing: it is silent.
        at_once: what it sends before that, in one piece.
        known: whether it introduces itself before.
        said: what the door's last words hold.
    """

    door: str
    drips: bytes = b""
    at_once: bytes = b""
    known: bool = False
    said: bytes = b""


SECRET = rabbit_frame(SASL_AUTHENTICATE, struct.pack(">I", 3) + text("PLAIN") + data(b"\0guest\0guest"))
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"
HEAD = b"GET /calm HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
POST = b"POST /calm HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
SLOW = {
    "amqp says nothing": Slow("amqp"),
    "amqp header": Slow("amqp", drips=SASL[:7], said=b""),
    "amqp sasl-init": Slow("amqp", at_once=SASL + sasl_init(announced=4_000), drips=b"\x00"),
    "amqp signs in and does not open": Slow("amqp", at_once=SASL + sasl_init(), drips=AMQP[:7]),
    "amqp open": Slow("amqp", at_once=SASL + sasl_init() + AMQP + struct.pack(">I", 30_000), drips=b"\x02"),
    "event-hubs says nothing": Slow("event-hubs"),
    "event-hubs open": Slow("event-hubs", at_once=SASL + sasl_init() + AMQP + struct.pack(">I", 30_000), drips=b"\x02"),
    "event-hubs opens and puts no token": Slow("event-hubs", at_once=anonymous()),
    "event-hubs asks and puts no token": Slow(
        "event-hubs", at_once=anonymous() + sender(b"$cbs") + receiver(b"$cbs", 1, 9), drips=EMPTY_FRAME, said=b"$cbs"
    ),
    "rabbitmq-stream says nothing": Slow("rabbitmq-stream"),
    "rabbitmq-stream properties": Slow("rabbitmq-stream", at_once=struct.pack(">IHH", 8_000, 0x11, 1), drips=b"\x00"),
    "rabbitmq-stream does not sign in": Slow("rabbitmq-stream", at_once=introduction(), drips=SECRET[:9]),
    "rabbitmq-stream signs in and does not open": Slow("rabbitmq-stream", at_once=introduction() + SECRET),
    "feedapi says nothing": Slow("feedapi", said=b" 408 "),
    "feedapi head": Slow("feedapi", at_once=HEAD, drips=b"a", said=b" 408 "),
    "feedapi second head": Slow("feedapi", known=True, at_once=HEAD, drips=b"a", said=b" 408 "),
    "feedapi body": Slow("feedapi", at_once=POST + b"Content-Length: 9000\r\n\r\n", drips=b"x", said=b" 408 "),
    "feedapi chunked body": Slow(
        "feedapi", at_once=POST + b"Transfer-Encoding: chunked\r\n\r\n", drips=b"1\r\nx\r\n", said=b" 408 "
    ),
    "feedapi body that nobody wants": Slow(
        "feedapi",
        at_once=b"GET /calm HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n",
        drips=b"x",
        said=b" 200 ",
    ),
}


def drip(raw: Raw, slow: Slow) -> None:
    """Send byte by byte until the door has ended the connection."""
    deadline = time.monotonic() + DEADLINE_S
    raw.send(slow.at_once)
    at = 0
    while not raw.ended and time.monotonic() < deadline:
        raw.look(PAUSE_S)
        # A header or a frame that must not get whole stays one byte short of it.
        endless = len(set(slow.drips)) == 1 or slow.drips.endswith(b"\n")
        if slow.drips and not raw.ended and (endless or at < len(slow.drips)):
            raw.send(slow.drips[at % len(slow.drips) :][:1])
            at += 1


@pytest.fixture(scope="module")
def ended(hostile_log: Any) -> Iterator[Callable[[str], Raw]]:
    """Have all of them at it at the same time, and answer how one of them ended."""
    before = hostile_log.memory_bytes
    raws = {name: (established if slow.known else Raw)(hostile_log.urls[slow.door]) for name, slow in SLOW.items()}
    threads = {name: threading.Thread(target=drip, args=(raws[name], slow)) for name, slow in SLOW.items()}
    for thread in threads.values():
        thread.start()

    def end_of(name: str) -> Raw:
        hostile_log.until(lambda: not threads[name].is_alive(), f"the time of: {name}")
        return raws[name]

    yield end_of
    for name, thread in threads.items():
        thread.join()
        raws[name].close()
    assert hostile_log.memory_bytes < before + 60_000_000


@pytest.mark.parametrize("name", SLOW)
def test_who_does_not_get_ready_is_ended(ended: Callable[[str], Raw], name: str) -> None:
    raw = ended(name)
    assert raw.ended
    assert SLOW[name].said in raw.received


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Authority, dict[str, str]]]:
    """The doors, speaking TLS."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder, "authority")
    certificate, key = authority.issue("server")
    common: dict[str, Any] = {"port": 0, "tls_cert": certificate, "tls_key": key, "handshake_timeout_ms": 3_000}
    log = ReferenceLog(folder / "log")
    log.create_stream("calm")
    with (
        log,
        ServerThread(
            log, *(kind(**common) for kind in (AmqpConfig, RabbitConfig, FeedConfig, EventHubsConfig))
        ) as server,
    ):
        yield authority, {door: plain_url(url) for door, url in server.urls.items()}


@pytest.mark.parametrize("hello", [False, True], ids=["says nothing", "one byte at a time"])
def test_a_tls_handshake_that_does_not_end(secured: tuple[Authority, dict[str, str]], hello: bool) -> None:
    authority, urls = secured
    raws = [Raw(url) for url in urls.values() for _ in range(4)]
    drips = client_hello(urls["feedapi"])[:-1] if hello else b""
    at = 0
    deadline = time.monotonic() + DEADLINE_S
    while not all(raw.ended for raw in raws) and time.monotonic() < deadline:
        for raw in raws:
            if drips and not raw.ended and at < len(drips):
                raw.send(drips[at : at + 1])
            raw.look(0.002)
        at += 1
    assert [raw.ended for raw in raws] == [True] * len(raws)
    Raw.close_all()
    for door, url in urls.items():
        round_trip(door, url, authority)
