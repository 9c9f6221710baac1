"""Bad clients of the Event Hubs door. Their frames are packed by hand."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from tests.bench.hostile_clients.amqp import create, nulls
from tests.bench.hostile_clients.registry import attack
from tests.door_urls import plain_url
from tests.server.event_hubs.conftest import sas
from tests.server.hostile.doors import amqp_text, introduce
from tests.server.hostile.hub_frames import BATCH_FORMAT, SAS_TYPE, anonymous, receiver, request, sender, transfer

DOOR = "event-hubs"
GUARD_S = 600.0
MOST_BYTES = 1 << 20
BEGUN, FLOW, OUTCOME, ANSWER = b"\x00\x53\x11", b"\x00\x53\x13", b"\x00\x53\x15", b"status-code"


class Hub:
    """A connection that takes no part in anything but what it is told to say, and counts what comes."""

    def __init__(self, urls: Mapping[str, str], words: bytes = b"") -> None:
        parts = urlsplit(plain_url(urls[DOOR]))
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=GUARD_S)
        self._rest = b""
        if words:
            self.send(words)
        else:
            self.hear(introduce(self, "amqp"))  # type: ignore[arg-type]

    def send(self, content: bytes) -> None:
        self.socket.sendall(content)

    def hear(self, words: bytes, times: int = 1) -> None:
        """Return when words have come so often.

        Raises:
            EOFError: the door has closed the connection.
        """
        while times:
            piece = self.socket.recv(1 << 20)
            if not piece:
                raise EOFError(f"the door closed the connection: {self._rest[-200:]!r}")
            self._rest += piece
            times -= min(times, self._rest.count(words))
            self._rest = self._rest[max(0, self._rest.rfind(words) + 1) :][-len(words) + 1 :]


def publish_for_ever(urls: Mapping[str, str], payload: bytes, message_format: int = 0) -> Iterator[None]:
    create(urls, "bad", 4)
    yield
    while True:
        hub = Hub(urls)
        hub.send(sender(b"bad"))
        hub.hear(FLOW)
        # A window of a session has an end, and nobody here asks for another one.
        for delivery in range(50):
            hub.send(transfer(payload, delivery, message_format))
            hub.hear(OUTCOME)
            yield
        hub.socket.close()


def filled(event: bytes) -> bytes:
    """A batch of as many events as it may have bytes."""
    return event * (MOST_BYTES // len(event))


@attack(f"{DOOR}: a body of 1 MB")
def body(urls: Mapping[str, str]) -> Iterator[None]:
    yield from publish_for_ever(urls, b"\x00\x53\x75\xb0\x00\x0f\x00\x00" + b"b" * 0x0F0000)


@attack(f"{DOOR}: a list of a million nulls")
def long_list(urls: Mapping[str, str]) -> Iterator[None]:
    yield from publish_for_ever(urls, b"\x00\x53\x77" + nulls(1_000_000))


@attack(f"{DOOR}: batches of 200,000 empty events")
def batches(urls: Mapping[str, str]) -> Iterator[None]:
    yield from publish_for_ever(urls, filled(b"\x00\x53\x75\xa0\x00"), BATCH_FORMAT)


@attack(f"{DOOR}: batches of 20,000 events with a key each")
def keyed_batches(urls: Mapping[str, str]) -> Iterator[None]:
    key = b"\x00\x53\x72\xc1\x19\x02\xa3\x13x-opt-partition-key\xa1\x01k"
    event = key + b"\x00\x53\x75\xa0\x05event"
    yield from publish_for_ever(urls, filled(b"\x00\x53\x75\xa0" + bytes([len(event)]) + event), BATCH_FORMAT)


@attack(f"{DOOR}: batches of 170,000 broken events")
def broken_batches(urls: Mapping[str, str]) -> Iterator[None]:
    yield from publish_for_ever(urls, filled(b"\x00\x53\x75\xa0\x01\x00"), BATCH_FORMAT)


def ask_for_ever(
    urls: Mapping[str, str], address: bytes, questions: Iterator[bytes], words: bytes = b""
) -> Iterator[None]:
    """Send 50 requests at a time, and take their replies."""
    yield
    while True:
        hub = Hub(urls, words)
        hub.send(sender(address) + receiver(address, 1, 1_000))
        hub.hear(FLOW)
        for delivery in range(0, 1_000, 50):  # a link's credit has an end, and nobody here grants more
            numbered = enumerate(itertools.islice(questions, 50), delivery)
            hub.send(b"".join(transfer(question, number) for number, question in numbered))
            hub.hear(ANSWER, 50)
            yield
        hub.socket.close()


@attack(f"{DOOR}: $management of a hub of 1,000 partitions, as fast as it answers")
def management(urls: Mapping[str, str]) -> Iterator[None]:
    create(urls, "bad", 1_000)
    asked = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "bad"}
    yield from ask_for_ever(urls, b"$management", itertools.repeat(request(b"\x40", **asked)))


@attack(f"{DOOR}: tokens as fast as they are taken")
def tokens(urls: Mapping[str, str]) -> Iterator[None]:
    signed = (sas(f"sb://h/{number % 500}", "guest", "guest").encode() for number in itertools.count())
    questions = (request(amqp_text(each), operation="put-token", type=SAS_TYPE) for each in signed)
    yield from ask_for_ever(urls, b"$cbs", questions, anonymous())


@attack(f"{DOOR}: wrong tokens, as many as it takes")
def wrong_tokens(urls: Mapping[str, str]) -> Iterator[None]:
    wrong = amqp_text(sas("sb://h/bad", "guest", "another").encode())
    questions = itertools.repeat(request(wrong, operation="put-token", type=SAS_TYPE))
    yield from ask_for_ever(urls, b"$cbs", questions, anonymous())


@attack(f"{DOOR}: links that come and go, 250 at a time")
def links(urls: Mapping[str, str]) -> Iterator[None]:
    create(urls, "bad", 1)
    address = b"bad/ConsumerGroups/$Default/Partitions/0"
    yield
    while True:
        hub = Hub(urls)
        hub.send(sender(b"bad") + b"".join(receiver(address, number, 1) for number in range(1, 251)))
        hub.hear(b"\x00\x53\x12", 251)
        hub.socket.close()
        yield
