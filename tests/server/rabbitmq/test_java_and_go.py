"""RabbitMQ's clients for Java and Go, unchanged, on the door and on a real broker: each scenario ends the same."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.certificate_authority import Authority
from tests.real_rabbitmq.conftest import FOLDER
from tests.server.foreign_programs import Driver, Refused
from tests.server.rabbitmq.interop import PROGRAMS, Client, numbered, of

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]  # the first one of a machine downloads and compiles

ABSENT = {"java": "StreamDoesNotExistException", "go": "Stream Does Not Exist"}
WRONG_PASSWORD = {"java": "AuthenticationFailureException", "go": "Authentication Failure"}
OTHER_ARGUMENTS = {"java": "PRECONDITION_FAILED", "go": "Precondition Failed"}


def test_publish_and_consume(broker: Any, client: Client) -> None:
    stream = broker.stream()
    producer = client.producer(stream=stream)
    assert producer("send", messages=[{"body": "été, 夏, 🌞"}]) == {"confirmed": 1, "codes": []}
    assert producer("send", messages=numbered(range(1, 5_000))) == {"confirmed": 4_999, "codes": []}
    consumer = client.consumer(stream=stream)
    assert consumer.take(5_000) == [[stream, 0, "été, 夏, 🌞"], *of(stream, range(1, 5_000), 1)]
    assert producer("send", messages=numbered([5_000])) == {"confirmed": 1, "codes": []}
    assert consumer.take(5_001)[5_000:] == of(stream, [5_000], 5_000)


def test_a_name_deduplicates(broker: Any, client: Client) -> None:
    stream = broker.stream()
    first = client.producer(stream=stream, name="writer")
    messages = [{"body": str(n), "id": n} for n in range(1, 101)]
    assert first("send", messages=messages[:60]) == {"confirmed": 60, "codes": []}
    first.close()
    retried = client.producer(stream=stream, name="writer")
    assert retried("last_id") == 60
    assert retried("send", messages=messages[40:]) == {"confirmed": 60, "codes": []}
    assert retried("last_id") == 100
    assert client.consumer(stream=stream).take(100) == of(stream, range(1, 101))
    assert broker.peer().stats(stream)[1]["committed_offset"] == 99
    other = client.producer(stream=stream, name="another")
    assert other("send", messages=messages[:1]) == {"confirmed": 1, "codes": []}
    assert broker.peer().stats(stream)[1]["committed_offset"] == 100


COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_compressed_sub_entries(broker: Any, client: Client, compression: str) -> None:
    stream = broker.stream()
    client.publish(numbered(range(250)), stream=stream, entry_size=100, compression=compression)
    assert client.consumer(stream=stream).take(250) == of(stream, range(250))
    assert client.consumer({"offset": 137}, stream=stream).take(113) == of(stream, range(137, 250), 137)


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("start", "first"),
    [("first", 0), ("offset", 25), ("before", 0), ("after", 31), ("last", 30), ("next", 31)],
)
def test_where_consumers_start(broker: Any, client: Client, start: Any, first: int) -> None:
    stream = broker.stream()
    client.publish(numbered(range(30)), stream=stream)
    client.publish(numbered([30]), stream=stream)  # the last chunk
    now = int(time.time() * 1000)
    specs = {"offset": {"offset": 25}, "before": {"timestamp": now - HOUR_MS}, "after": {"timestamp": now + HOUR_MS}}
    consumer = client.consumer(specs.get(start, start), stream=stream)
    client.publish(numbered([31]), stream=stream)
    assert consumer.take(32 - first) == of(stream, range(first, 32), first)


def test_what_is_refused(broker: Any, client: Client, clients: Any, language: str) -> None:
    absent = f"{broker.prefix}-absent"
    with pytest.raises(Refused, match=ABSENT[language]):
        client.producer(stream=absent)
    with pytest.raises(Refused, match=ABSENT[language]):
        client.consumer(stream=absent)
    with pytest.raises(Refused, match=WRONG_PASSWORD[language]):
        clients(broker.url.replace("guest:guest", "guest:wrong"))
    stream = broker.stream(**{"max-age": "3600s"})
    with pytest.raises(Refused, match=OTHER_ARGUMENTS[language]):
        client.ask("create", stream=stream, max_age_s=7200)


def test_streams_come_and_go(broker: Any, client: Client, clients: Callable[..., Client]) -> None:
    stream = f"{broker.prefix}-made"
    client.ask("create", stream=stream, max_age_s=3600)
    assert client.ask("exists", stream=stream) is True
    client.publish(numbered(range(3)), stream=stream)
    producer, consumer = client.producer(stream=stream), client.consumer(stream=stream)
    assert consumer.take(3) == of(stream, range(3))
    client.ask("delete", stream=stream)
    assert client.ask("exists", stream=stream) is False
    producer.wait_closed()
    consumer.wait_closed()
    # By others, since the Go client may still take a connection that it is about to close, as it closed the producer.
    other = clients(broker.url)
    other.ask("create", stream=stream, max_age_s=3600)
    other.publish(numbered([7]), stream=stream)
    consumer = other.consumer(stream=stream)
    assert consumer.take(1) == of(stream, [7])
    consumer.close()
    other.ask("delete", stream=stream)


@pytest.mark.jdk
@pytest.mark.go
def test_what_one_compressed_the_other_reads(broker: Any, drivers: Callable[[str], Driver]) -> None:
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(contextlib.closing(Client(drivers(each), broker.url))) for each in PROGRAMS]
        for (writer, reader), compression in itertools.product([both, both[::-1]], COMPRESSIONS):
            stream = broker.stream(f"{both.index(writer)}-{compression}")
            writer.publish(numbered(range(50)), stream=stream, entry_size=20, compression=compression)
            assert reader.consumer(stream=stream).take(50) == of(stream, range(50))


class Secured:
    """Where a broker listens with TLS, and the files for it: its authority's, and a certificate and key of a user's."""

    def __init__(self, url: str, ca: Path, certificate: tuple[str, str]) -> None:
        self.url = url
        self.ca = str(ca)
        self.certificate = dict(zip(("certificate", "key"), certificate, strict=True))


@pytest.fixture
def secured(broker: Any, request: pytest.FixtureRequest, tmp_path: Path) -> Secured:
    """The broker with TLS; a door of its own where it is the door."""
    if not hasattr(broker, "server"):
        if FOLDER not in os.environ:
            pytest.skip(f"nobody says where this RabbitMQ has its certificates: {FOLDER} is not set")
        folder = Path(os.environ[FOLDER])
        url = json.loads((folder / "broker.json").read_text())["tls_url"]
        files = str(folder / "tls/client.pem"), str(folder / "tls/client.key")
        return Secured(url, folder / "tls/ca.pem", files)
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    doors = request.getfixturevalue("doors")
    door = doors(folder="tls", tls_cert=certificate, tls_key=key, tls_client_ca=str(authority.file))
    url = door.server.urls["rabbitmq-stream"].replace("://", "://guest:guest@")
    return Secured(url, authority.file, authority.issue("guest"))


@pytest.mark.parametrize("mechanism", ["PLAIN", "EXTERNAL"])
def test_tls(secured: Secured, clients: Callable[..., Client], mechanism: str) -> None:
    if mechanism == "PLAIN":
        client = clients(secured.url, ca=secured.ca)
    else:  # by the certificate alone
        client = clients(secured.url.replace(":guest@", ":wrong@"), ca=secured.ca, **secured.certificate)
    stream = f"tls-{time.time_ns()}"
    client.ask("create", stream=stream)
    client.publish(numbered(range(10)), stream=stream)
    consumer = client.consumer(stream=stream)
    assert consumer.take(10) == of(stream, range(10))
    consumer.close()
    client.ask("delete", stream=stream)
