"""Connections between two tasks of a worker: given back, taken again, served, and closed in the end."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.client import AmqpClient, RabbitPublishing, TaskIdentity, TaskPublisher
from spark_streams.client.kept_connections import KeptConnections, kept_key
from spark_streams.client.rabbitmq import task_publisher
from spark_streams.endpoint import Endpoint, Tls, parse_url
from spark_streams.errors import ConnectFailed, ConnectionLost, DeliveryFailed
from spark_streams.log import ReferenceLog
from spark_streams.secrets import CalledSecret, FileSecret, Secret
from spark_streams.server import AmqpConfig, RabbitConfig, ServerThread
from tests.certificate_authority import Authority
from tests.client.rabbitmq.publishing import Taking, body, metadata_update, send
from tests.client.rabbitmq.scripted import Wire
from tests.real_rabbitmq import by_hand as key

ROWS = [body(f"{n}") for n in range(50)]
LONG_S = 600.0


class Stub:
    """A connection that counts what is done with it."""

    def __init__(self) -> None:
        self.broken = False
        self.turned = threading.Event()
        self.closed = threading.Event()

    def turn(self) -> None:
        self.turned.set()
        if self.broken:
            raise ConnectionLost("gone")

    def close(self) -> None:
        self.closed.set()


def test_what_is_given_back_is_taken_once_and_under_its_key_only() -> None:
    kept, one = KeptConnections[Stub](LONG_S), Stub()
    kept.give_back("a", one)
    assert kept.take("b") is None
    assert kept.take("a") is one
    assert kept.take("a") is None
    assert not one.closed.is_set()


def test_the_one_before_is_closed() -> None:
    kept, former, later = KeptConnections[Stub](LONG_S), Stub(), Stub()
    kept.give_back("a", former)
    kept.give_back("a", later)
    assert former.closed.is_set() and not later.closed.is_set()
    assert kept.take("a") is later


def test_a_broken_one_is_not_given_out() -> None:
    kept, one = KeptConnections[Stub](LONG_S), Stub()
    kept.give_back("a", one)
    one.broken = True
    assert kept.take("a") is None


@pytest.mark.parametrize(("key", "broken"), [(None, False), ("a", True)])
def test_one_without_a_key_and_a_broken_one_are_closed(key: str | None, broken: bool) -> None:
    kept, one = KeptConnections[Stub](LONG_S), Stub()
    one.broken = broken
    kept.give_back(key, one)
    assert one.closed.is_set() and kept._thread is None
    assert kept.take(key) is None


def test_a_token_is_a_secret_too(tmp_path: Path) -> None:
    feed = parse_url("http://localhost/orders", schemes=("http",))
    file = tmp_path / "token"
    file.write_text("old")
    assert kept_key(feed.with_token(CalledSecret("getpass:getuser", "tokenProvider")), 1) is None
    of_file = feed.with_token(FileSecret(str(file), "tokenFile"))
    before = kept_key(of_file, 1)
    assert before is not None and before == kept_key(of_file, 1)
    rewritten(file, "new")
    assert kept_key(of_file, 1) not in (before, None)
    file.unlink()
    assert kept_key(of_file, 1) is None
    assert kept_key(feed.with_token(Secret("x")), 1) != kept_key(feed.with_token(Secret("y")), 1)


@pytest.mark.parametrize("changed", ["ca_file", "cert_file", "key_file"])
def test_files_of_tls_count_by_what_is_in_them(tmp_path: Path, changed: str) -> None:
    files = {name: tmp_path / name for name in ("ca_file", "cert_file", "key_file")}
    for file in files.values():
        file.write_text("old")
    where = Endpoint("amqps", "localhost", 5671, tls=Tls(**{name: str(file) for name, file in files.items()}))
    before = kept_key(where, 1)
    assert before is not None and before == kept_key(where, 1)
    rewritten(files[changed], "new")
    assert kept_key(where, 1) not in (before, None)
    files[changed].unlink()
    assert kept_key(where, 1) is None


def rewritten(file: Path, text: str) -> None:
    """Write into a file, which has the inode, the size and the time that it had before."""
    before = file.stat()
    file.write_text(text)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


def test_it_is_served_while_it_is_kept_and_closed_when_nobody_takes_it() -> None:
    kept, one, two = KeptConnections[Stub](0.05), Stub(), Stub()
    kept.give_back("a", one)
    thread = kept._thread
    assert thread is not None
    assert one.closed.wait(120)
    thread.join(120)
    assert kept.take("a") is None
    kept.give_back("a", two)  # by another thread, as the first has ended
    assert two.closed.wait(120)


def test_the_thread_serves_it() -> None:
    kept, one = KeptConnections[Stub](LONG_S), Stub()
    kept.give_back("a", one)
    assert one.turned.wait(120)
    one.broken = True
    thread = kept._thread
    assert thread is not None
    thread.join(120)  # it forgets what broke, and ends with the last
    assert not kept._idle


# --- tasks of rabbitmq-stream


@pytest.fixture
def kept() -> Iterator[KeptConnections[Any]]:
    connections = KeptConnections[Any](LONG_S)
    yield connections
    for connection, _ in connections._idle.values():
        connection.close()


def task(endpoint: Any, to: Any, identity: TaskIdentity | None, kept: KeptConnections[Any], **how: Any) -> Any:
    """One task to its end; return its connection."""
    publisher = TaskPublisher(endpoint, RabbitPublishing(**{"request_timeout_ms": 120_000, **how}), identity, kept)
    try:
        send(publisher, ROWS, to)
        publisher.flush()
    finally:
        publisher.close()
    return publisher._outgoing.connection


def test_tasks_one_after_another_have_one_connection_and_publishers_of_their_own(kept: KeptConnections[Any]) -> None:
    taking = Taking()
    with taking.serve() as broker:
        first = task(broker.endpoint, ["a", "b"] * 25, TaskIdentity("spark/q/0", 1), kept)
        second = task(broker.endpoint, ["b", "c"] * 25, TaskIdentity("spark/q/1", 1), kept)
        assert second is first and not first.broken
        assert len(first.publisher_ids) == 2
    assert taking.declared == [
        (0, "spark/q/0", "a"), (1, "spark/q/0", "b"), (0, "spark/q/1", "b"), (1, "spark/q/1", "c"),
    ]  # fmt: skip
    assert sorted(taking.deleted) == [0, 1]
    assert taking.messages == 100


def test_each_user_and_each_timeout_has_its_own(kept: KeptConnections[Any]) -> None:
    with Taking().serve() as broker:
        first = task(broker.endpoint, "a", None, kept)
        other = task(broker.endpoint.with_credentials("carol", None), "a", None, kept)
        patient = task(broker.endpoint, "a", None, kept, request_timeout_ms=130_000)
        assert len({id(first), id(other), id(patient)}) == 3
        assert task(broker.endpoint, "a", None, kept) is first


def test_a_password_of_a_file_is_that_of_the_connection(tmp_path: Path, kept: KeptConnections[Any]) -> None:
    file = tmp_path / "password"
    file.write_text("old")
    with Taking().serve() as broker:
        endpoint = broker.endpoint.with_credentials("carol", FileSecret(str(file), "passwordFile"))
        first = task(endpoint, "a", None, kept)
        assert task(endpoint, "a", None, kept) is first
        rewritten(file, "new")
        assert task(endpoint, "a", None, kept) is not first


def test_a_connection_whose_password_a_function_returns_is_not_kept(kept: KeptConnections[Any]) -> None:
    with Taking().serve() as broker:
        secret = CalledSecret("getpass:getuser", "passwordProvider")
        task(broker.endpoint.with_credentials("carol", secret), "a", None, kept)
    assert not kept._idle


def test_a_task_that_failed_leaves_nothing(kept: KeptConnections[Any]) -> None:
    def refuse(wire: Wire, publisher: int, ids: list[int]) -> None:
        wire.send(key.PUBLISH_ERROR, bytes([publisher]) + key.array([ids[0].to_bytes(8, "big") + b"\x00\x0f"]))

    with Taking(refuse).serve() as broker, pytest.raises(DeliveryFailed):
        task(broker.endpoint, "a", None, kept)
    assert not kept._idle


def test_a_connection_that_the_broker_has_closed_is_replaced(kept: KeptConnections[Any]) -> None:
    taking = Taking()
    with taking.serve() as broker:
        first = task(broker.endpoint, "a", None, kept)
        first._socket.shutdown(2)  # as seen from here, it is closed
        second = task(broker.endpoint, "a", None, kept)
        assert first.broken and second is not first
    assert taking.messages == 100


def test_a_connection_that_answers_no_more_is_replaced(
    kept: KeptConnections[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a broker with an alarm, or one that the network has forgotten."""
    monkeypatch.setattr(task_publisher, "ANSWERS_MS", 100)
    taking = Taking(more={key.DELETE_PUBLISHER: lambda wire, number, content: None})
    with taking.serve() as broker:
        first = task(broker.endpoint, "a", None, kept)
        second = task(broker.endpoint, "a", None, kept)
        assert first.broken and second is not first
        assert second.timeout_ms == 120_000
    assert taking.messages == 100


def test_late_words_of_the_broker_do_not_reach_the_next_task(kept: KeptConnections[Any]) -> None:
    """A stream of the first task goes while nobody has the connection; the second has a publisher of that number."""
    taking = Taking()
    with taking.serve() as broker:
        first = task(broker.endpoint, "a", None, kept)
        (wire,) = broker._open
        wire.send(key.METADATA_UPDATE, metadata_update("a"))
        assert task(broker.endpoint, "a", None, kept) is first
    assert taking.messages == 100


# --- beside a real door


def test_batch_after_batch_is_exactly_once_over_one_connection(tmp_path: Any, kept: KeptConnections[Any]) -> None:
    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, None, RabbitConfig(port=0)) as server:
        log.create_stream("orders", 2)
        endpoint = parse_url(server.rabbit_url, schemes=("rabbitmq-stream",))
        keys = [str(n) for n in range(len(ROWS))]
        seen = {
            id(task(endpoint, keys, TaskIdentity("spark/q/0", batch), kept, super_stream="orders"))
            for batch in (0, 0, 1, 2, 2)
        }
        assert len(seen) == 1
        stored = sum(partition.next_offset for partition in log.stream("orders").partitions.values())
        assert stored == 3 * len(ROWS)
        with pytest.raises(DeliveryFailed, match="the checkpoint is older"):
            task(endpoint, keys, TaskIdentity("spark/q/0", 1), kept, super_stream="orders")


def test_a_task_signs_in_by_the_certificate_that_is_there_now(tmp_path: Any, kept: KeptConnections[Any]) -> None:
    authority = Authority(tmp_path, "authority")
    cert, its_key = authority.issue("server")
    config = RabbitConfig(port=0, tls_cert=cert, tls_key=its_key, tls_client_ca=str(authority.file))
    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, None, config) as server:
        log.create_stream("orders", 1)
        url = parse_url(server.rabbit_url, schemes=("rabbitmq-stream+tls",))
        names = tmp_path / "cert.pem", tmp_path / "key.pem"
        endpoint = url.with_credentials(None, None).with_tls(Tls(str(authority.file), *map(str, names)))
        connections = []
        for user in ("ann", "ann", "bob"):
            for name, issued in zip(names, authority.issue(user), strict=True):
                if user == "bob" or not name.exists():
                    name.write_bytes(Path(issued).read_bytes())
            connections.append(task(endpoint, "orders", None, kept))
        assert connections[1] is connections[0] and connections[2] is not connections[0]


def test_senders_one_after_another_have_one_connection(tmp_path: Any, kept: KeptConnections[Any]) -> None:
    payloads = pa.array(ROWS, pa.large_binary())
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("orders", 1)
        with ServerThread(log, AmqpConfig(port=0)) as server:
            connections, endpoint = [], parse_url(server.url("amqp"))
            for _ in range(3):
                client = AmqpClient(endpoint, timeout_ms=120_000, kept=kept)
                publisher = client.publisher("orders")
                publisher.send(payloads, str)
                publisher.flush()
                publisher.close()
                (connection,) = client._connections._open
                connections.append(connection)
                client.leave()
            assert len({id(connection) for connection in connections}) == 1
            assert log.stream("orders").partitions["0"].next_offset == 3 * len(ROWS)
        # The door has gone: what is kept is of no use, and a new one finds nobody.
        with pytest.raises(ConnectFailed):
            AmqpClient(endpoint, timeout_ms=120_000, kept=kept).publisher("orders")
        assert connections[0].broken
