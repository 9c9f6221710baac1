"""Links of the door where things go wrong: failing disks, deleted logs, defects, limits."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Link, Terminus, symbol

from spark_streams.errors import CorruptLog
from spark_streams.log import LogConfig, Partition, ReferenceLog
from spark_streams.server import AmqpConfig, ServerThread
from spark_streams.server.amqp.consumer_groups import Group
from spark_streams.server.amqp.consumer_link import ConsumerLink
from tests.server.amqp.raw_links import Receiver
from tests.server.amqp.raw_peer import Peer
from tests.server.amqp.raw_words import EARLIEST, Ended, Refused, encode
from tests.server.long_timeouts import HOUR_MS, LONG_TIMEOUTS

Start = Callable[..., ServerThread]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def started(fsync: Any = "interval", **config: Any) -> ServerThread:
            config = {**LONG_TIMEOUTS, "idle_timeout_ms": HOUR_MS, **config}
            log = stack.enter_context(ReferenceLog(tmp_path / "log", LogConfig(fsync=fsync)))
            log.create_stream("orders", 2)
            return stack.enter_context(ServerThread(log, AmqpConfig(port=0, **config)))

        yield started


def peer_of(server: ServerThread, **options: Any) -> Peer:
    return Peer(server.urls["amqp"], **options)


def bodies(peer: Peer) -> list[Any]:
    return sorted(e.body for e in peer.receiver("orders", filter=EARLIEST).drain())


@pytest.mark.parametrize(
    ("fault", "condition"),
    [
        (OSError(errno.ENOSPC, "no space left"), "amqp:resource-limit-exceeded"),
        (OSError(5, "i/o"), "amqp:internal-error"),
    ],
)
@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_a_failing_disk_rejects_events_and_reading_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch, fsync: str, fault: OSError, condition: str
) -> None:
    server = start(fsync)
    peer = peer_of(server)
    sender = peer.sender("orders")
    sender.send(b"before")

    def full(*_: Any, **__: Any) -> None:
        raise fault

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "append", full)
        with pytest.raises(Refused) as refused:
            sender.send(b"lost")
        assert refused.value.condition == condition and fault.strerror in refused.value.description
        assert bodies(peer) == [b"before"]
    sender.send(b"after")
    assert bodies(peer) == [b"after", b"before"]


def test_with_fsync_always_acceptance_waits_for_the_disk_and_others_do_not(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start("always")
    original, appends, go_on = Partition.append, [], threading.Event()

    def slow(self: Partition, values: Any, *rest: Any, **notes: Any) -> Any:
        go_on.wait(120)
        appends.append(len(values))
        return original(self, values, *rest, **notes)

    monkeypatch.setattr(Partition, "append", slow)
    peer, other = peer_of(server), peer_of(server)
    sender = peer.sender("orders", properties={symbol("event-streams-partition"): symbol("0")})
    deliveries = []
    for n in range(20):
        deliveries.append(sender.put(b"%02d" % n))
        peer.pause(0.002)
    other.receiver("orders/$info").take(1)  # the loop does not wait for the disk, which waits for us
    assert not any(d.settled for d in deliveries) and not appends
    go_on.set()
    peer.pump(lambda: all(d.settled for d in deliveries))
    assert {d.remote_state for d in deliveries} == {Delivery.ACCEPTED}
    assert sum(appends) == 20 and len(appends) < 20  # what waited was appended together
    events = other.receiver("orders", filter=EARLIEST).drain()
    assert [e.body for e in events] == [b"%02d" % n for n in range(20)]


def test_a_damaged_log_ends_the_link_and_nothing_else(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    peer = peer_of(server)
    peer.sender("orders").send(b"x", target="0")

    def damaged(self: Partition, *_: Any) -> Any:
        raise CorruptLog("/somewhere/00.log", 17, "the CRC does not match")

    monkeypatch.setattr(Partition, "read", damaged)
    receiver = peer.attach_receiver("orders", filter=EARLIEST, credit=1)
    assert receiver.wait_closed() == "amqp:internal-error"
    assert "17" in receiver.link.remote_condition.description
    assert peer.receiver("orders/$info").take(1)


def test_a_deleted_log_ends_its_links_and_frees_everything(start: Start) -> None:
    server = start()
    peer = peer_of(server)
    idle, sender = peer.receiver("orders", credit=5), peer.sender("orders")
    server.call(lambda: server.log.delete_stream("orders"))
    assert idle.wait_closed() == "amqp:resource-deleted"
    assert sender.wait_closed() == "amqp:resource-deleted"
    with pytest.raises(Refused) as refused:
        peer.receiver("orders")
    assert refused.value.condition == "amqp:not-found"
    server.call(lambda: server.log.create_stream("orders", 1))
    peer.sender("orders").send(b"anew")
    assert bodies(peer) == [b"anew"]


def test_a_defect_closes_its_connection_with_an_error_and_no_other(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    victim, other = peer_of(server), peer_of(server)
    bystander = other.receiver("orders/$info")

    def defect(self: ConsumerLink) -> bool:
        raise ZeroDivisionError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(ConsumerLink, "serve", defect)
        with pytest.raises(Ended) as ended:
            victim.receiver("orders")
            victim.pause(2)
        assert ended.value.condition == "amqp:internal-error"
    assert bystander.take(1)
    assert bodies(peer_of(server)) == []


def test_no_more_than_the_limit_is_unsettled(start: Start) -> None:
    server = start(max_unsettled=5)
    peer = peer_of(server)
    peer.sender("orders").send_all([b"%d" % n for n in range(12)], target="0")
    receiver = peer.receiver("orders", filter=EARLIEST, credit=100)
    held = receiver.take(5, settle=False, credit=False)
    peer.pause(0.1)
    assert receiver.arrived(settle=False) == []
    for event in held[:3]:
        event.delivery.update(Delivery.ACCEPTED)
        event.delivery.settle()
    more = receiver.take(3, settle=False, credit=False)
    peer.pause(0.1)
    assert [e.body for e in more] == [b"5", b"6", b"7"] and receiver.arrived(settle=False) == []


def test_modified_events_come_again_counted_or_not_at_all(start: Start) -> None:
    server = start()
    peer = peer_of(server)
    peer.sender("orders").send_all([b"a", b"b", b"c"], target="1")
    receiver = peer.receiver("orders", filter=EARLIEST)
    for failed, undeliverable in ((True, False), (True, False), (False, True)):
        first = receiver.take(1, settle=False)[0]
        assert first.body == b"a"
        first.delivery.local.failed, first.delivery.local.undeliverable = failed, undeliverable
        first.delivery.update(Delivery.MODIFIED)
        first.delivery.settle()
    assert first.message.delivery_count == 2
    assert [e.body for e in receiver.take(2)] == [b"b", b"c"]


def test_an_event_that_was_sent_settled_and_must_be_rejected_closes_the_link(start: Start) -> None:
    server = start()
    peer = peer_of(server)
    sender = peer.attach_sender("orders")
    peer.pump(lambda: sender.link.credit > 0)
    for target in ("0", "nope"):
        delivery = sender.link.delivery(f"t{target}")
        sender.link.stream(encode(target.encode(), target=target))
        sender.link.advance()
        delivery.settle()
    assert sender.wait_closed() == "amqp:not-found"
    assert bodies(peer) == [b"0"]


def test_a_receiver_that_does_not_read_holds_up_nobody_and_no_memory(start: Start) -> None:
    import psutil

    server = start()
    partition = server.log.stream("orders").partitions["0"]
    stored = b"\x00\x53\x75\xb0\x00\x01\x00\x00" + b"x" * 65_536
    for _ in range(40):
        partition.append([stored] * 40)  # 100 MB
    idle = peer_of(server)
    link = idle.session.receiver("idle")
    link.source.address = "orders"
    link.source.filter.put_dict({symbol("f"): EARLIEST})
    link.snd_settle_mode = Link.SND_SETTLED
    idle.session.incoming_capacity = 1 << 30
    link.open()
    link.flow(1_000_000)
    idle._write()
    before = psutil.Process().memory_info().rss
    time.sleep(0.5)
    assert psutil.Process().memory_info().rss - before < 40 << 20
    reader = peer_of(server)
    assert len(reader.receiver("orders", filter=EARLIEST).take(20)) == 20
    deadline = time.monotonic() + 240
    while server.call(lambda: [c.turns.paused for c in server.server.door("amqp").connections]).count(True) != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    idle.drop()


@pytest.mark.parametrize(("timeout_s", "resumes"), [(60, True), (1, False)])
def test_a_durable_terminus_is_kept_for_its_timeout(start: Start, timeout_s: int, resumes: bool) -> None:
    server = start()
    first = peer_of(server, container="reader")
    first.sender("orders").send_all([b"a", b"b"], target="0")

    def attach(peer: Peer) -> Any:
        link = peer.session.receiver("mine")
        link.source.address = "orders"
        link.source.filter.put_dict({symbol("f"): EARLIEST})
        link.source.durability = Terminus.DELIVERIES
        link.source.expiry_policy = Terminus.EXPIRE_WITH_LINK
        link.source.timeout = timeout_s
        link.open()
        receiver = Receiver(peer, link)
        receiver.answered()
        return receiver

    receiver = attach(first)
    assert receiver.link.remote_source.timeout == timeout_s
    receiver.take(1)
    first.pause(0.05)
    first.drop()
    deadline = time.monotonic() + 240
    while server.call(lambda: len(server.server.door("amqp").connections)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.1 if resumes else 1.3)
    again = attach(peer_of(server, container="reader"))
    assert [e.body for e in again.drain()] == ([b"b"] if resumes else [b"a", b"b"])


def test_a_durable_link_that_is_attached_anew_takes_over_from_its_old_socket(start: Start) -> None:
    server = start()
    old, new = (peer_of(server, container="reader") for _ in range(2))
    durable = {"name": "mine", "durability": Terminus.DELIVERIES, "expiry": Terminus.EXPIRE_NEVER, "filter": EARLIEST}
    group = {symbol("event-streams-consumer-group"): "g", symbol("event-streams-partition"): symbol("0")}
    old.sender("orders").send_all([b"a", b"b"], target="0")
    first = old.receiver("orders", properties=group, **durable)
    first.take(1)
    old.pause(0.05)
    second = new.receiver("orders", properties=group, **durable)
    assert first.wait_closed() == "amqp:link:stolen"
    assert second.bodies() == [b"b"]


def test_stopping_tells_the_peers_and_leaves_nothing_listening(start: Start) -> None:
    server = start()
    peer = peer_of(server)
    url = server.urls["amqp"]
    server.stop()
    with pytest.raises(Ended) as ended:
        peer.pause(2)
    assert ended.value.condition == "amqp:connection:forced"
    with pytest.raises(ConnectionRefusedError):
        Peer(url)


def test_a_durable_receiver_gets_what_came_to_partitions_that_were_added_while_it_was_away(start: Start) -> None:
    server = start()
    durable = {"name": "mine", "durability": Terminus.DELIVERIES, "expiry": Terminus.EXPIRE_NEVER}
    first = peer_of(server, container="reader")
    first.receiver("orders", **durable)
    first.drop()
    server.call(lambda: server.log.add_partitions("orders", 1))
    peer_of(server).sender("orders").send_all([b"a", b"b"], target="2")
    peer_of(server).sender("orders").send(b"c", target="0")
    again = peer_of(server, container="reader").receiver("orders", **durable)
    assert sorted(again.bodies()) == [b"a", b"b", b"c"]


def test_who_stands_in_line_gets_a_partition_that_is_added(start: Start) -> None:
    server = start(unassigned="wait")
    group = {symbol("event-streams-consumer-group"): "g"}
    peer = peer_of(server)
    for _ in range(2):
        peer.receiver("orders", properties=group)
    late = peer_of(server).attach_receiver("orders", properties=group)
    server.call(lambda: server.log.add_partitions("orders", 1))
    late.answered()
    assert late.properties[symbol("event-streams-partition")] == "2"


def test_connections_that_ended_leave_nothing_behind(start: Start) -> None:
    server = start()
    for n in range(10):
        peer = peer_of(server)
        peer.sender("orders").send(b"x")
        peer.receiver("orders", filter=EARLIEST, properties={symbol("event-streams-consumer-group"): "g"}).take(1)
        (peer.close if n % 2 else peer.drop)()
    deadline = time.monotonic() + 240
    while server.call(lambda: len(server.server.door("amqp").connections)) and time.monotonic() < deadline:
        time.sleep(0.01)
    node = server.server.door("amqp").node
    assert node is not None
    assert not server.server.door("amqp").connections and not node._links and not node.readers._readers
    incarnation = server.log.stream("orders").incarnation
    assert node.groups.free(Group(incarnation, "g", "guest"), ["0", "1"]) == ["0", "1"]
    assert [p._listeners for p in server.log.stream("orders").partitions.values()] == [[], []]
