"""What is published through the RabbitMQ door, read through the AMQP door: each event has the sections it may have.

Header and delivery annotations of a published message stay in the log, for RabbitMQ's readers, and are left out where
the AMQP door sends annotations of its own. Spec: AMQP 1.0 part 3 §3.2; Event Stream Extensions §5.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.real_rabbitmq.by_hand import FIRST
from tests.server.amqp.raw_peer import EARLIEST, Peer
from tests.server.amqp.raw_words import sections
from tests.server.rabbitmq.consuming import delivered, publish_chunk, records

HEADER, ANNOTATIONS, PROPERTIES, DATA = 0x70, 0x71, 0x73, 0x75
DATA_BYTES = bytes.fromhex("005375a0026869")
"""A data section that says "hi"."""
HEADERS = {
    "empty list": "00537045",
    "list8": "005370c0020141",
    "list32": "005370d0000000050000000141",
    "ulong descriptor": "0080000000000000007045",
    "symbol descriptor": "00a310" + b"amqp:header:list".hex() + "45",
}
DELIVERY_ANNOTATIONS = {
    "map8": "005371c10100",
    "map32": "005371d10000000400000000",
    "ulong descriptor": "00800000000000000071c10100",
    "symbol descriptor": "00a31d" + b"amqp:delivery-annotations:map".hex() + "c10100",
}


@pytest.fixture
def both(doors: Callable[..., Any]) -> Any:
    return doors(amqp=True)


def read(door: Any, stream: str, count: int) -> list[Any]:
    peer = Peer(door.server.urls["amqp"])
    events = peer.receiver(stream, filter=EARLIEST).take(count)
    peer.close()
    return list(events)


def codes(encoded: bytes) -> list[int]:
    return [code for code, _ in sections(encoded)]


BEFORE = [
    *(bytes.fromhex(each) for each in HEADERS.values()),
    *(bytes.fromhex(each) for each in (DELIVERY_ANNOTATIONS[n] for n in ("map8", "map32"))),
    *(bytes.fromhex(DELIVERY_ANNOTATIONS[n]) for n in ("ulong descriptor", "symbol descriptor")),
    bytes.fromhex(HEADERS["list8"] + DELIVERY_ANNOTATIONS["map8"]),
    bytes.fromhex(HEADERS["symbol descriptor"] + DELIVERY_ANNOTATIONS["ulong descriptor"]),
    b"",
]


@pytest.mark.parametrize("copies", [1, 40], ids=["few", "many"])
def test_sections_before_the_bare_message_are_left_out(both: Any, copies: int) -> None:
    stream, peer = both.stream(), both.peer()
    messages = [before + DATA_BYTES for before in BEFORE for _ in range(copies)]
    publish_chunk(peer, stream, messages)
    events = read(both, stream, len(messages))
    for number, event in enumerate(events):
        assert codes(event.encoded) == [ANNOTATIONS, DATA], BEFORE[number // copies].hex()
        assert event.encoded.endswith(DATA_BYTES)
        assert int(event.offset) == number
    # RabbitMQ's readers get what was published.
    assert peer.subscribe(1, stream, FIRST) == 1
    assert [message for each in delivered(peer, stream) for message in records(each)] == messages


def test_a_message_with_nothing_else_is_an_empty_one(both: Any) -> None:
    stream, peer = both.stream(), both.peer()
    publish_chunk(peer, stream, [bytes.fromhex(HEADERS["list8"]), DATA_BYTES])
    events = read(both, stream, 2)
    assert [codes(event.encoded) for event in events] == [[ANNOTATIONS], [ANNOTATIONS, DATA]]


RAW = (
    b"raw",
    b"p",
    b"\x00",
    b"\x00Sp",
    b"\x00Sq\xc1",
    b"\x00\x80" + bytes(7) + b"p",
    b"\x00\xa3\x10amqp:header",
)


def test_bytes_that_are_no_sections_come_as_data(both: Any) -> None:
    stream, peer = both.stream(), both.peer()
    publish_chunk(peer, stream, RAW)
    for event, raw in zip(read(both, stream, len(RAW)), RAW, strict=True):
        assert codes(event.encoded) == [ANNOTATIONS, DATA]
        assert event.encoded.endswith(b"\xb0" + len(raw).to_bytes(4, "big") + raw)


def test_a_header_stays_left_out_when_an_event_is_sent_again(both: Any) -> None:
    """The node's own header then says how often: there is one, and it is that."""
    import proton

    stream, peer = both.stream(), both.peer()
    publish_chunk(peer, stream, [bytes.fromhex(HEADERS["list8"]) + DATA_BYTES])
    amqp = Peer(both.server.urls["amqp"])
    receiver = amqp.receiver(stream, filter=EARLIEST)
    (event,) = receiver.take(1, settle=False)
    event.delivery.local.failed = True
    event.delivery.update(proton.Delivery.MODIFIED)
    event.delivery.settle()
    (again,) = receiver.take(1)
    assert codes(again.encoded) == [HEADER, ANNOTATIONS, DATA]
    amqp.close()
