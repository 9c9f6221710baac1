"""Publishing against brokers that say whatever a broker may say: every row is confirmed, or the first one is named."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_streams.client import RabbitPublishing, TaskIdentity, TaskPublisher
from spark_streams.client.rabbitmq import publisher_pool
from spark_streams.client.rabbitmq.publisher_pool import MAX_PUBLISHERS
from spark_streams.errors import DeliveryFailed, NotFound, OptionError
from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, RabbitConfig, ServerThread
from tests.client.rabbitmq.brokers import Broker
from tests.client.rabbitmq.publishing import (
    Taking,
    body,
    confirm,
    confirm_all,
    frame,
    metadata_update,
    never,
    publish_error,
    send,
    write,
)
from tests.client.rabbitmq.scripted import Wire
from tests.real_rabbitmq import by_hand as key
from tests.server.rabbitmq.clock import Clock
from tests.server.rabbitmq.clock import clients_clock as clients_clock
from tests.server.rabbitmq.clock import clock as clock

ROWS = [body(f"{n}") for n in range(3_000)]
IDENTITY = TaskIdentity("spark/q/0", 3)


def failure(taking: Taking, rows: list[bytes] = ROWS, **how: Any) -> DeliveryFailed:
    """How a task of these rows fails."""
    with taking.serve() as broker, pytest.raises(DeliveryFailed) as caught:
        write(broker.endpoint, rows, "orders", **how)
    return caught.value


def eventually(condition: Callable[[], bool]) -> None:
    """Return when it holds: the broker's thread reads what came before the connection ended."""
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- confirms


def in_reverse(wire: Wire, publisher: int, ids: list[int]) -> None:
    wire.send(key.PUBLISH_CONFIRM, confirm(publisher, ids[::-1]))


def one_by_one_shuffled(wire: Wire, publisher: int, ids: list[int]) -> None:
    for number in random.Random(1).sample(ids, len(ids)):
        wire.send(key.PUBLISH_CONFIRM, confirm(publisher, [number]))


def twice_and_others_too(wire: Wire, publisher: int, ids: list[int]) -> None:
    wire.send(key.PUBLISH_CONFIRM, confirm(publisher, [2**63, *ids[: len(ids) // 2]]))
    wire.send(key.PUBLISH_CONFIRM, confirm(publisher + 1, ids))
    wire.send(key.PUBLISH_CONFIRM, confirm(publisher, []))
    wire.send(key.PUBLISH_CONFIRM, confirm(publisher, ids))


class LastFrameFirst:
    """Confirms a frame only after the one behind it."""

    def __init__(self) -> None:
        self.waiting: list[int] = []

    def __call__(self, wire: Wire, publisher: int, ids: list[int]) -> None:
        if self.waiting:
            wire.send(key.PUBLISH_CONFIRM, confirm(publisher, ids + self.waiting))
            self.waiting = []
        else:
            self.waiting = ids


@pytest.mark.parametrize("published", [in_reverse, one_by_one_shuffled, twice_and_others_too])
@pytest.mark.parametrize("size", [1, 7])
def test_confirms_come_in_any_order(published: Any, size: int) -> None:
    taking = Taking(published)
    with taking.serve() as broker:
        write(broker.endpoint, ROWS, "orders", sub_entry_size=size)
    assert taking.messages == len(ROWS)
    assert taking.ids == sorted(set(taking.ids))


def test_frames_are_confirmed_in_any_order() -> None:
    taking = Taking(LastFrameFirst())
    with taking.serve() as broker:
        write(broker.endpoint, ROWS[:1_024], "orders", max_in_flight=512)
    assert taking.messages == 1_024
    assert taking.frames == 4


@pytest.mark.parametrize("size", [1, 30])
@pytest.mark.parametrize("most", [30, 100, 1_000])
def test_no_more_is_under_way_than_allowed(size: int, most: int) -> None:
    taking = Taking(never)
    with taking.serve() as broker:
        with pytest.raises(DeliveryFailed) as caught:
            write(broker.endpoint, ROWS, "orders", max_in_flight=most, sub_entry_size=size, confirm_within_ms=100)
        assert (caught.value.row, caught.value.condition) == ("row 0", "no-confirm")
        eventually(lambda: taking.messages > most // 2 - size)
    assert taking.messages <= most


def test_no_more_is_under_way_in_all_streams_together() -> None:
    taking = Taking(never)
    with taking.serve() as broker:
        with pytest.raises(DeliveryFailed, match=r"row 0 was not confirmed by stream 'a'"):
            write(broker.endpoint, ROWS, ["a", "b", "c"] * 1_000, max_in_flight=100, confirm_within_ms=100)
        eventually(lambda: taking.messages > 0)
    assert taking.messages <= 100


def test_confirms_that_stop_name_the_first_row_without_one() -> None:
    def some(wire: Wire, publisher: int, ids: list[int]) -> None:
        wire.send(key.PUBLISH_CONFIRM, confirm(publisher, [n for n in ids if n != 1_501]))

    fault = failure(Taking(some), confirm_within_ms=1_500)  # without an identity the ids are the rows' numbers, from 1
    assert str(fault).startswith("row 1500 was not confirmed by stream 'orders': no-confirm: no confirm within 1500 ms")


def test_the_first_row_is_named_whatever_stream_and_in_whatever_call_it_went() -> None:
    def not_to_b(wire: Wire, publisher: int, ids: list[int]) -> None:
        wire.send(key.PUBLISH_CONFIRM, confirm(publisher, [n for n in ids if n not in (900, 901)]))

    taking = Taking(not_to_b)
    with taking.serve() as broker, pytest.raises(DeliveryFailed) as caught:
        write(broker.endpoint, ROWS, ["a", "b"] * 1_500, each=5, confirm_within_ms=1_500)
    assert (caught.value.row, caught.value.stream) == ("row 899", "b")


# --- refusals


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0x02, "stream-does-not-exist"),
        (0x06, "stream-not-available"),
        (0x0F, "internal-error"),
        (0x10, "access-refused"),
        (0x11, "precondition-failed"),
        (0x12, "publisher-does-not-exist"),
        (0x7777, "0x7777"),
    ],
)
def test_a_refusal_names_the_code_the_stream_and_the_row(code: int, name: str) -> None:
    def refuse(wire: Wire, publisher: int, ids: list[int]) -> None:
        bad = [n for n in ids if n in (1_235, 1_240)]
        wire.send(key.PUBLISH_CONFIRM, confirm(publisher, [n for n in ids if n not in bad]))
        if bad:
            wire.send(key.PUBLISH_ERROR, publish_error(publisher, bad[::-1], code))

    fault = failure(Taking(refuse))
    assert (fault.outcome, fault.row, fault.stream) == ("refused", "row 1234", "orders")
    assert name in fault.condition
    assert str(fault).startswith("row 1234 was refused by stream 'orders': ")


def test_a_refused_sub_batch_is_named_by_its_first_row() -> None:
    def refuse(wire: Wire, publisher: int, ids: list[int]) -> None:
        wire.send(key.PUBLISH_CONFIRM, confirm(publisher, ids[:2]))
        wire.send(key.PUBLISH_ERROR, publish_error(publisher, ids[2:], 0x0F))

    assert failure(Taking(refuse), sub_entry_size=50).row == "row 100"


def test_what_was_said_before_the_connection_broke_counts() -> None:
    def refuse(wire: Wire, publisher: int, ids: list[int]) -> None:
        wire.send(key.PUBLISH_ERROR, publish_error(publisher, ids[5:6], 0x0F))
        wire.hang_up()

    fault = failure(Taking(refuse), ROWS[:100])
    assert (fault.row, fault.condition) == ("row 5", "internal-error (0x0f)")


@pytest.mark.usefixtures("hasty")
def test_a_connection_that_is_lost_again_and_again_names_the_first_row_that_is_not_confirmed() -> None:
    def half(wire: Wire, publisher: int, ids: list[int]) -> None:
        wire.send(key.PUBLISH_CONFIRM, confirm(publisher, [number for number in ids if number <= 50]))
        wire.hang_up()

    fault = failure(Taking(half), ROWS[:100])
    assert (fault.outcome, fault.row, fault.condition) == ("not confirmed", "row 50", "connection-lost")
    assert "127.0.0.1" in fault.description


@pytest.mark.usefixtures("hasty")
def test_a_connection_that_the_broker_closes_tells_why() -> None:
    def close(wire: Wire, publisher: int, ids: list[int]) -> None:
        wire.send(key.CLOSE, b"\0\0\0\x01\0\x0f" + key.text("going down"))

    fault = failure(Taking(close), ROWS[:100])
    assert (fault.row, fault.condition) == ("row 0", "connection-lost")
    assert "going down" in str(fault)


def test_a_connection_lost_behind_the_last_confirm_does_no_harm() -> None:
    def all_and_away(wire: Wire, publisher: int, ids: list[int]) -> None:
        wire.send(key.PUBLISH_CONFIRM, confirm(publisher, ids))
        wire.hang_up()

    taking = Taking(all_and_away)
    with taking.serve() as broker:
        write(broker.endpoint, ROWS[:100], "orders")
    assert taking.messages == 100


# --- what is sent again


def ids_of(taking: Taking) -> list[int]:
    """The publishing ids that came, each time they came."""
    return [number for _, number in taking.ids]


@pytest.mark.parametrize("size", [1, 7])
def test_what_is_not_confirmed_goes_again_under_the_same_ids(size: int) -> None:
    """Seven connections confirm every third entry of a frame, not in their order, and break."""
    broke: set[Wire] = set()
    on: dict[Wire, list[int]] = {}

    def third(wire: Wire, publisher: int, ids: list[int]) -> None:
        if wire in broke:
            return
        on.setdefault(wire, []).extend(ids)
        wire.send(key.PUBLISH_CONFIRM, confirm(publisher, ids[::-3] if len(broke) < 7 else ids))
        if len(broke) < 7:
            broke.add(wire)
            wire.hang_up()

    taking = Taking(third)
    with taking.serve() as broker:
        write(broker.endpoint, ROWS, "orders", IDENTITY, sub_entry_size=size)
        assert broker.connections == 8
    assert all(ids == sorted(set(ids)) for ids in on.values()), "in the order of the rows on each connection"
    once = Taking()
    with once.serve() as broker:
        write(broker.endpoint, ROWS, "orders", IDENTITY, sub_entry_size=size)
    assert sorted(set(ids_of(taking))) == ids_of(once), "the ids, and the rows of each sub-entry batch, are the same"
    assert {reference for _, reference, _ in taking.declared} == {IDENTITY.reference}


def test_a_stream_that_moves_under_way_gets_what_is_not_confirmed_again() -> None:
    taking = Taking(deleted)
    with taking.serve() as broker:
        write(broker.endpoint, ROWS[:100], "orders", IDENTITY)
        assert broker.connections == 1
    numbers = list(dict.fromkeys(ids_of(taking)))
    assert len(numbers) == 100 and numbers == sorted(numbers)
    assert ids_of(taking) == [each for first in range(0, 100, 10) for each in numbers[first:]]


def test_no_more_bytes_are_kept_to_be_sent_again_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_pool, "MAX_KEPT_BYTES", 100_000)
    rows = [body(f"{n:01000}") for n in range(5_000)]
    with Taking().serve() as broker:
        publisher = TaskPublisher(broker.endpoint, RabbitPublishing(request_timeout_ms=120_000), None)
        for first in range(0, len(rows), 1_000):
            send(publisher, rows[first : first + 1_000], "orders")
            assert publisher.unconfirmed * 1_000 <= 100_000 + 1_024 * 1_100
        publisher.flush()
        publisher.close()


# --- streams that go


def deleted(wire: Wire, publisher: int, ids: list[int]) -> None:
    wire.send(key.PUBLISH_CONFIRM, confirm(publisher, ids[:10]))
    wire.send(key.METADATA_UPDATE, metadata_update("another"))
    wire.send(key.METADATA_UPDATE, metadata_update("orders"))


def test_a_stream_deleted_under_way() -> None:
    fault = failure(Taking(deleted, declares=[1, 0x02]), ROWS[:100])
    assert (fault.row, fault.stream, fault.condition) == ("row 10", "orders", "stream-does-not-exist (0x02)")
    assert "the broker dropped the publisher (stream-not-available (0x06)), and when it was declared" in str(fault)


def moved(wire: Wire, publisher: int, ids: list[int]) -> None:
    """Confirm all, and then the stream gets another leader."""
    told = frame(key.PUBLISH_CONFIRM, confirm(publisher, ids)), frame(key.METADATA_UPDATE, metadata_update("orders"))
    wire.raw(b"".join(told))


def test_a_stream_that_moved_with_nothing_under_way_is_gone_on_with() -> None:
    taking = Taking(moved)
    with taking.serve() as broker:
        write(broker.endpoint, ROWS[:1_100], "orders", IDENTITY, max_in_flight=1, each=1_025)
    assert [stream for _, _, stream in taking.declared] == ["orders"] * len(taking.declared)
    assert len(taking.declared) > 1
    assert {reference for _, reference, _ in taking.declared} == {IDENTITY.reference}
    assert taking.messages == 1_100
    assert ids_of(taking) == sorted(set(ids_of(taking)))


def test_a_stream_that_was_deleted_with_nothing_under_way_names_the_next_row() -> None:
    taking = Taking(moved, declares=[1, 0x02])
    fault = failure(taking, ROWS[:1_100], max_in_flight=1)
    assert (fault.row, fault.stream, fault.condition) == ("row 1", "orders", "stream-does-not-exist (0x02)")
    assert taking.messages == 1


@pytest.mark.parametrize("identity", [None, IDENTITY], ids=["at least once", "exactly once"])
def test_a_stream_of_a_real_broker_deleted_in_mid_task(broker: Broker, identity: TaskIdentity | None) -> None:
    with broker.peer() as peer, broker.stream() as stream:
        publisher = TaskPublisher(broker.endpoint, RabbitPublishing(request_timeout_ms=120_000), identity)
        send(publisher, ROWS[:1_100], stream)  # the first window goes out
        for _ in range(400):
            publisher.turn()
            if not publisher.unconfirmed:
                break
            time.sleep(0.02)
        assert peer.delete(stream) == 1
        with pytest.raises(DeliveryFailed, match=rf"row 1024 was .* by stream '{stream}': .*stream-not-available"):
            send(publisher, ROWS[1_100:], stream)
            publisher.flush()
        publisher.close()


def test_a_stream_that_never_was() -> None:
    with Taking(declares=[0x02]).serve() as broker, pytest.raises(NotFound, match="stream 'orders'"):
        write(broker.endpoint, ROWS[:10], "orders")


# --- limits


def test_more_streams_than_a_connection_has_publishers() -> None:
    taking = Taking()
    names = [f"s{n}" for n in range(MAX_PUBLISHERS + 20)]
    with taking.serve() as broker:
        write(broker.endpoint, ROWS[: 2 * len(names)], names * 2, IDENTITY)
    assert {stream for _, _, stream in taking.declared} == set(names)
    assert taking.messages == 2 * len(names)
    assert all(0 <= number < MAX_PUBLISHERS for number, _, _ in taking.declared)
    assert len(taking.deleted) >= MAX_PUBLISHERS


@pytest.mark.parametrize("size", [1, 3])
def test_a_message_that_no_frame_can_hold_is_named(size: int) -> None:
    rows = [*ROWS[:9], body("x" * (1 << 20)), *ROWS[:9]]
    taking = Taking()
    fault = failure(taking, rows, sub_entry_size=size)
    assert (fault.outcome, fault.row, fault.condition) == ("not taken", "row 9", "too-large")
    assert f"a frame of {1 << 20} bytes" in fault.description
    assert taking.messages == 0


@pytest.mark.parametrize(("largest", "size"), [(None, 300_000), (1, 1 << 20)])
def test_a_sub_entry_batch_that_no_frame_can_hold_is_no_row(largest: int | None, size: int) -> None:
    """Four messages of 300 kB fit each by itself, and their batch does not; nor one whose second message is large."""
    rows = [*ROWS[:4], *(body("x" * (size if largest in (None, n) else 9)) for n in range(4)), *ROWS[:4]]
    fault = failure(Taking(), rows, sub_entry_size=4)
    assert fault.row == "a sub-entry batch of 4 rows, the first of which is row 4,"
    assert f"message {1 + (largest or 0)} of it is the largest, {len(rows[4 + (largest or 0)])} bytes" in str(fault)
    assert "make 'subEntrySize' smaller" in str(fault)


def test_a_broker_without_filter_values_is_told_of_at_once() -> None:
    taking = Taking()  # it lists Publish 1 only
    with taking.serve() as broker, pytest.raises(OptionError, match=r"filterValueColumn.*4\.3\.6.*RabbitMQ 3\.13"):
        write(broker.endpoint, ROWS[:10], "orders", filters=["a"] * 10)
    assert taking.messages == 0


# --- while Spark computes


@pytest.mark.parametrize("served", [True, False])
def test_an_idle_connection_is_kept_alive(
    tmp_path: Path, clock: Clock, clients_clock: Any, caplog: pytest.LogCaptureFixture, served: bool
) -> None:
    caplog.set_level(logging.INFO, "spark_streams.server")
    config = RabbitConfig(port=0, heartbeat_s=1)
    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, AmqpConfig(port=0), config) as server:
        log.create_stream("orders")
        broker = Broker(server.rabbit_url, "door")
        publisher = TaskPublisher(broker.endpoint, RabbitPublishing(request_timeout_ms=120_000), None)
        send(publisher, ROWS[:1_500], "orders")
        publisher.flush()  # a connection that is being worked for is not idle
        for _ in range(16) if served else iter(lambda: "no sign of life" in caplog.text, True):
            clients_clock.now += 0.25
            if served:
                publisher.turn()
                server.call(lambda: None)  # it reads what was sent
            server.call(lambda: clock.advance(0.25))  # a door that does not read yet gives two intervals more
        try:
            connection = publisher._outgoing.connection
            send(publisher, ROWS[1_500:], "orders")
            publisher.flush()
            assert log.stream("orders").partitions["0"].next_offset == len(ROWS)
            assert (publisher._outgoing.connection is connection) == served
        finally:
            publisher.close()


def test_turn_tells_what_went_wrong_meanwhile() -> None:
    def refuse(wire: Wire, publisher: int, ids: list[int]) -> None:
        wire.send(key.PUBLISH_ERROR, publish_error(publisher, ids[:1], 0x0F))

    with Taking(refuse).serve() as broker:
        publisher = TaskPublisher(broker.endpoint, RabbitPublishing(request_timeout_ms=120_000), None)
        send(publisher, ROWS[:1_500], "orders")
        with pytest.raises(DeliveryFailed, match="row 0 was refused by stream 'orders': internal-error"):
            for _ in range(100):
                publisher.turn()
                time.sleep(0.05)
        publisher.close()


# --- at least once


def test_without_an_identity_there_is_no_reference_and_no_question() -> None:
    taking = Taking()
    with taking.serve() as broker:
        write(broker.endpoint, ROWS, "orders")
        assert key.QUERY_PUBLISHER_SEQUENCE not in {kind for kind, _ in broker.seen}
    assert taking.declared == [(0, "", "orders")]
    assert [number for _, number in taking.ids] == list(range(1, len(ROWS) + 1))


def test_confirm_all_is_what_a_broker_does() -> None:
    taking = Taking(confirm_all)
    with taking.serve() as broker:
        write(broker.endpoint, ROWS, "orders", IDENTITY)
    assert taking.declared == [(0, "spark/q/0", "orders")]
    assert [number >> 36 for _, number in taking.ids] == [3] * len(ROWS)
    assert [(number >> 10) & (2**26 - 1) for _, number in taking.ids] == list(range(1, len(ROWS) + 1))
