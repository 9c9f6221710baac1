"""What fuzzing has found, one test each."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import requests

from tests.fuzz import amqp_cases, feed_cases, rabbit_cases
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
    url = urlsplit(process.urls[door])
    with socket.create_connection((url.hostname, url.port), timeout=WAIT_S) as peer:
        said = b""
        with contextlib.suppress(ConnectionError):  # it may close before it was told everything
            for piece in pieces:
                peer.sendall(piece)
        with contextlib.suppress(ConnectionError):
            while more := peer.recv(1 << 16):
                said += more
        return said


@pytest.mark.parametrize("where", ["container-id", "link name", "address"])
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
    said = told(process, "feedapi", b"GET /orders HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n\0\0 no HTTP\r\n\r\n")
    assert said.count(b"HTTP/1.1 ") == 1


def test_an_http_body_that_breaks_off_into_garbage_is_answered_once(process: DoorProcess) -> None:
    head = (
        b"POST /orders HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
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
    head = f"POST {address.path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
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
