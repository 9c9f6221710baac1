"""What fuzzing has found, one test each."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import quote_plus, urlsplit

import pytest
import requests

from tests.door_urls import plain_url
from tests.fuzz import amqp_cases, feed_cases, rabbit_cases
from tests.fuzz import event_hubs_cases as hubs
from tests.fuzz.campaign import check
from tests.fuzz.door_process import DoorProcess
from tests.fuzz.witness import check_witness, peer_of, read_all
from tests.real_rabbitmq import by_hand as hand
from tests.real_rabbitmq.by_hand import Peer

WAIT_S = 60


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorProcess]:
    with DoorProcess(tmp_path_factory.mktemp("found")) as process:
        yield process


@pytest.fixture(autouse=True)
def _well_afterwards(process: DoorProcess) -> Iterator[None]:
    yield
    assert check(process) is None
    assert check_witness(process.urls) is None


def told(process: DoorProcess, door: str, *pieces: bytes) -> bytes:
    """Send pieces, and return all that a door says until it closes."""
    url = urlsplit(plain_url(process.urls[door]))
    with socket.create_connection((url.hostname, url.port), timeout=WAIT_S) as peer:
        said = b""
        with contextlib.suppress(ConnectionError):  # it may close before it was told everything
            for piece in pieces:
                peer.sendall(piece)
        with contextlib.suppress(ConnectionError):
            while more := peer.recv(1 << 16):
                said += more
        return said


@pytest.mark.parametrize("where", ["container-id", "link name"])
def test_an_amqp_string_that_is_no_utf_8_ends_the_connection(process: DoorProcess, where: str) -> None:
    def string(name: str, good: str) -> bytes:
        return b"\xa1\x03a\xff\xfe" if name == where else amqp_cases.string(good)

    opening = amqp_cases.opening()
    opening[3] = amqp_cases.frame(b"\x00\x53\x10" + amqp_cases.listed([string("container-id", "c")]))
    source = b"\x00\x53\x28" + amqp_cases.listed([string("address", "orders"), b"\x52\x02", amqp_cases.symbol("never")])
    fields = [string("link name", "l"), b"\x43", b"\x41", b"\x40", b"\x40", source, b"\x00\x53\x29\x45"]
    said = told(process, "amqp", *opening, amqp_cases.frame(b"\x00\x53\x12" + amqp_cases.listed(fields)))
    assert b"amqp:decode-error" in said
    assert amqp_cases.illegal(said, reset=False) is None


def test_bytes_behind_the_last_http_request_are_not_answered(process: DoorProcess) -> None:
    said = told(
        process, "feedapi", b"GET /orders HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n\0\0 no HTTP\r\n\r\n"
    )
    assert said.count(b"HTTP/1.1 ") == 1


def test_an_http_body_that_breaks_off_into_garbage_is_answered_once(process: DoorProcess) -> None:
    kind = b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked"
    head = b"POST /orders HTTP/1.1\r\nHost: localhost\r\n" + kind + b"\r\n\r\n"
    said = told(process, "feedapi", head, b'5\r\n{"eve\r\nno chunk size\r\n')
    assert said.startswith(b"HTTP/1.1 400 ")
    assert said.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("kind", [3, 5], ids=["zstd", "lz4"])
def test_an_arrow_stream_that_inflates_to_too_much_is_413(process: DoorProcess, kind: int) -> None:
    process.ask("check")
    before = process.ask("check")["now_bytes"]
    body = feed_cases.arrow(kind)
    assert len(body) < 1 << 20 < feed_cases.BOMB_BYTES
    answer = requests.post(
        f"{process.urls['feedapi']}/orders", data=body, headers={"Content-Type": feed_cases.ARROW}, timeout=WAIT_S
    )
    assert answer.status_code == 413
    assert process.ask("check")["peak_bytes"] < before + feed_cases.BOMB_BYTES // 2
    small = requests.post(
        f"{process.urls['feedapi']}/orders",
        data=feed_cases.arrow(4),
        headers={"Content-Type": feed_cases.ARROW},
        timeout=WAIT_S,
    )
    assert small.json() == {"appended": 1, "repeated": 0}


def test_messages_behind_a_compressed_sub_batch_of_the_same_frame(process: DoorProcess) -> None:
    """Their places did not rise, which Arrow takes for broken."""
    url = process.urls["rabbitmq-stream"].replace("://", "://guest:guest@")
    peer = Peer(url).open()
    assert peer.create("mixed") == 1
    assert peer.declare(1, "mixed") == 1
    inner = b"".join(hand.data(b"\0Su\xa0\1" + each) for each in (b"b", b"c"))
    packed = hand.sub_batch(2, 1, 2, len(inner), rabbit_cases.gzipped(inner))
    again = hand.sub_batch(5, 1, 2, len(inner), rabbit_cases.gzipped(inner))
    message = b"\0Su\xa0\1"
    peer.publish(1, [packed, hand.plain(3, message + b"d"), hand.plain(4, message + b"e"), again])
    assert sorted(peer.confirmed(4)) == [2, 3, 4, 5]
    peer.publish(1, [hand.plain(6, message + b"f"), packed])
    assert len(peer.confirmed(2)) == 2
    peer.close()
    for door in ("amqp", "rabbitmq-stream", "feedapi"):
        expected = [b"b", b"c", b"d", b"e", b"b", b"c", b"f", b"b", b"c"]
        found = read_all(peer_of(process.urls, door, "mixed"))
        assert found == expected, door


def test_an_amqp_producer_that_miscounts_its_deliveries(process: DoorProcess) -> None:
    """What the engine then takes for its credit is no number that it takes back."""
    source = b"\x00\x53\x28" + amqp_cases.listed([amqp_cases.string("s")])
    target = b"\x00\x53\x29" + amqp_cases.listed([amqp_cases.string("orders")])
    attach = [amqp_cases.string("l"), b"\x43", b"\x42", b"\x40", b"\x40", source, target, b"\x40", b"\x40", b"\x43"]
    number = b"\x70\x00\x00\x00\x00"
    flow = [number, number, number, number, b"\x43", b"\x70\x80\x00\x00\x00", number, number, b"\x41", b"\x42"]
    frames = [(0x12, attach), (0x13, flow), (0x18, [])]
    said = told(
        process,
        "amqp",
        b"".join(
            [
                *amqp_cases.opening(),
                *(amqp_cases.frame(b"\x00\x53" + bytes([code]) + amqp_cases.listed(fields)) for code, fields in frames),
            ]
        ),
    )
    assert amqp_cases.illegal(said, reset=False) is None
    assert b"amqp:internal-error" not in said


def test_a_feed_that_is_deleted_under_a_request(process: DoorProcess) -> None:
    """It is answered 404 or 503, not 500."""
    url = process.urls["feedapi"] + "/gone"
    assert requests.put(url, timeout=WAIT_S).status_code == 201
    address = urlsplit(url)
    body = b'{"event":{}}\n'
    head = f"POST {address.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += "Idempotency-Key: k\r\nIdempotency-Sequence: 1\r\n"
    head += f"Content-Type: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=WAIT_S) as peer:
        peer.sendall(head.encode() + body[:5])
        assert requests.delete(url, timeout=WAIT_S).status_code == 204
        peer.sendall(body[5:])
        said = b""
        while more := peer.recv(1 << 16):
            said += more
    assert said[:13] in (b"HTTP/1.1 404 ", b"HTTP/1.1 503 ")


def test_a_feed_that_is_deleted_before_its_split_begins(process: DoorProcess) -> None:
    """The split, in a thread, finds no stream any more: 404, not 500."""
    url = process.urls["feedapi"] + "/split-and-deleted"
    seen: set[int] = set()

    def split() -> None:
        seen.add(requests.post(f"{url}/partitions/0/split", timeout=WAIT_S).status_code)

    for _ in range(30):
        requests.put(url, timeout=WAIT_S)
        threads = [
            threading.Thread(target=split),
            threading.Thread(target=lambda: requests.delete(url, timeout=WAIT_S)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen <= {200, 404}


# --- the Event Hubs door


def asked(process: DoorProcess, to: str, until: bytes, *requests: bytes) -> bytes:
    """Send requests, and close once the door has said something; return all that it says."""
    own, null = hubs.string("l"), [hubs.NULL] * 2
    source, target = (amqp_cases.described(code, amqp_cases.listed([hubs.string(to)])) for code in (0x28, 0x29))
    attaches = [
        hubs.body(0x12, own, handle, role, *null, source, target, *null, hubs.ZERO)
        for handle, role in ((hubs.ZERO, hubs.FALSE), (hubs.number(1), hubs.TRUE))
    ]
    zero, window = hubs.ZERO, hubs.number(1_000)
    flow = hubs.body(0x13, zero, window, zero, window, hubs.number(1), zero, window)
    transfers = [
        hubs.body(0x14, zero, hubs.number(at), b"\xa0\x01t", zero, hubs.FALSE) + request
        for at, request in enumerate(requests)
    ]
    frames = [amqp_cases.frame(each) for each in (*attaches, flow, *transfers)]
    url = urlsplit(plain_url(process.urls["event-hubs"]))
    with socket.create_connection((url.hostname, url.port), timeout=WAIT_S) as peer:
        peer.sendall(b"".join([*amqp_cases.opening(), *frames]))
        said = b""
        while until not in said:
            more = peer.recv(1 << 16)
            assert more, said
            said += more
        peer.sendall(amqp_cases.frame(hubs.body(0x18)))
        while more := peer.recv(1 << 16):
            said += more
    assert amqp_cases.illegal(said, reset=False) is None
    assert b"amqp:internal-error" not in said
    return said


def request(body: bytes, *entries: bytes, message_id: bytes = b"\xa1\x01r") -> bytes:
    properties = b"\x00\x53\x73" + amqp_cases.listed([message_id])
    return properties + b"\x00\x53\x74" + amqp_cases.mapped(list(entries)) + b"\x00\x53\x77" + body


@pytest.mark.parametrize(
    ("uri", "expires_s", "words"),
    [
        ("sb://h/orders", "9" * 5_000, b"no number of seconds"),
        ("sb://h/orders", "9" * 400, b"no number of seconds"),
        ("//[", "4102444800", b"InvalidSignature"),
        ("sb://h\u2100/orders", "4102444800", b"InvalidSignature"),
    ],
)
def test_a_token_that_cannot_be_computed_with(process: DoorProcess, uri: str, expires_s: str, words: bytes) -> None:
    token = f"SharedAccessSignature sr={quote_plus(uri)}&sig=x&se={expires_s}&skn=guest"
    named = [amqp_cases.string(word) for word in ("operation", "put-token", "type", hubs.SAS_TYPE)]
    asked(process, "$cbs", words, request(amqp_cases.string(token), *named))


def test_a_request_whose_properties_are_no_map_or_whose_identity_is_none(process: DoorProcess) -> None:
    compound = [amqp_cases.listed([]), hubs.NULL]  # a key that no dict can hold
    map_as_id = request(hubs.NULL, message_id=amqp_cases.mapped([]))
    said = asked(process, "$management", b"status-code", request(hubs.NULL, *compound), map_as_id, request(hubs.NULL))
    assert said.count(b"amqp:decode-error") == 2
    assert said.count(b"status-code") == 1, "the others are answered"


def test_an_attach_whose_answer_would_repeat_what_is_no_utf_8(process: DoorProcess) -> None:
    source = b"\x00\x53\x28" + amqp_cases.listed([b"\xa1\x03a\xff\xfe"])
    target = b"\x00\x53\x29" + amqp_cases.listed([amqp_cases.string("orders")])
    fields = [
        amqp_cases.string("l"),
        b"\x43",
        b"\x42",
        hubs.NULL,
        hubs.NULL,
        source,
        target,
        hubs.NULL,
        hubs.NULL,
        b"\x43",
    ]
    frames = [amqp_cases.frame(hubs.body(0x12, *fields)), amqp_cases.frame(hubs.body(0x18))]
    said = told(process, "event-hubs", *amqp_cases.opening(), *frames)
    assert amqp_cases.illegal(said, reset=False) is None
    assert b"amqp:decode-error" in said and b"a\xff\xfe" not in said


@pytest.mark.parametrize("door", ["amqp", "event-hubs"])
def test_a_link_whose_address_is_no_utf_8_is_refused_alone(process: DoorProcess, door: str) -> None:
    """Its peer may detach it in the same breath, and go on."""
    source = b"\x00\x53\x28" + amqp_cases.listed([b"\xa1\x03a\xff\xfe"])
    attach = hubs.body(
        0x12, amqp_cases.string("l"), b"\x43", b"\x41", hubs.NULL, hubs.NULL, source, b"\x00\x53\x29\x45"
    )
    frames = [attach, hubs.body(0x16, b"\x43", b"\x41"), hubs.body(0x17), hubs.body(0x18)]
    said = told(process, door, b"".join([*amqp_cases.opening(), *map(amqp_cases.frame, frames)]))
    assert b"amqp:decode-error" in said and said.endswith(
        b"\x00\x53\x18\x45" if door == "amqp" else b"\x53\x18\xc0\x02\x01\x40"
    )
    assert amqp_cases.illegal(said, reset=False) is None


@pytest.mark.parametrize("door", ["amqp", "event-hubs"])
def test_an_attach_with_fields_that_it_does_not_count(process: DoorProcess, door: str) -> None:
    """proton reads them all the same: it is refused, as two who read it differently have two links."""
    fields = [amqp_cases.string("l"), b"\x43", b"\x41", hubs.NULL, hubs.NULL, b"\x00\x53\x28\x45", b"\x00\x53\x29\x45"]
    attach = bytearray(hubs.body(0x12, *fields))
    attach[8:12] = bytes(4)
    said = told(process, door, *amqp_cases.opening(), amqp_cases.frame(bytes(attach)))
    assert b"amqp:decode-error" in said
    assert amqp_cases.illegal(said, reset=False) is None
