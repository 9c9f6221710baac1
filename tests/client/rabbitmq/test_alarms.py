"""Publishing to a broker that has an alarm: it is waited for, as long as option requestTimeout says, and then told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_streams.client.rabbitmq import publisher_pool
from spark_streams.errors import DeliveryFailed, Refused
from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, RabbitConfig, ServerThread
from tests.client.rabbitmq.brokers import Broker
from tests.client.rabbitmq.publishing import Taking, body, never, write
from tests.client.rabbitmq.scripted import Wire
from tests.real_rabbitmq import by_hand as key

ROWS = [body(f"{n}") for n in range(100)]
ALARM, OK = 0x11, 0x01


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_pool, "FIRST_PAUSE_S", 0.01)


def test_a_short_alarm_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    taking = Taking(declares=[ALARM, ALARM, ALARM, OK])
    with taking.serve() as broker:
        write(broker.endpoint, ROWS, "orders")
    assert (taking.messages, len(taking.declared)) == (100, 4)
    (record,) = [each for each in caplog.records if each.name.endswith("publisher_pool")]
    assert "waiting for up to 120000 ms" in record.getMessage() and "rabbitmq-diagnostics alarms" in record.getMessage()


def test_what_comes_meanwhile_is_taken() -> None:
    """Of the streams whose publishers were there before the alarm."""
    held: list[tuple[int, list[int]]] = []

    def later(wire: Wire, publisher: int, ids: list[int]) -> None:
        held.append((publisher, ids))

    def declare(wire: Wire, number: int, content: bytes) -> None:
        taking._declare(wire, number, content)
        for publisher, ids in held:
            wire.send(key.PUBLISH_CONFIRM, bytes([publisher]) + key.array([n.to_bytes(8, "big") for n in ids]))
        held.clear()

    taking = Taking(later, declares=[OK, ALARM, ALARM, OK, OK], more={key.DECLARE_PUBLISHER: declare})
    with taking.serve() as broker, pytest.raises(DeliveryFailed) as caught:
        write(broker.endpoint, ROWS, ["a", "b"] * 50, confirm_within_ms=3_000)
    assert (caught.value.row, caught.value.stream) == ("row 1", "b"), "those of a are confirmed"


def test_an_alarm_that_lasts_is_told() -> None:
    taking = Taking(declares=[ALARM])
    with taking.serve() as broker, pytest.raises(Refused) as caught:
        write(broker.endpoint, ROWS, "orders", confirm_within_ms=1_000)
    said = str(caught.value)
    assert said.startswith("stream 'orders': declare publisher: precondition-failed (0x11): for longer than option ")
    assert "'requestTimeout' (1000 ms)" in said and "its disk is nearly full (its setting disk_free_limit)" in said
    assert len(taking.declared) > 1


def test_a_broker_that_says_it_has_an_alarm_and_then_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As RabbitMQ, which reads no more from a connection that has publishers."""
    seen: list[int] = []

    def once(wire: Wire, number: int, _: bytes) -> None:
        if not seen:
            wire.answer(key.DECLARE_PUBLISHER, number, ALARM)
        seen.append(number)

    with (
        Taking(more={key.DECLARE_PUBLISHER: once}).serve() as broker,
        pytest.raises(Refused, match=r"precondition-failed \(0x11\): for longer than .* while it has an alarm"),
    ):
        write(broker.endpoint, ROWS, "orders", request_timeout_ms=2_000)


def test_rows_that_are_not_confirmed_may_be_due_to_an_alarm() -> None:
    with Taking(never).serve() as broker, pytest.raises(DeliveryFailed, match="as while it has a disk alarm"):
        write(broker.endpoint, ROWS, "orders", confirm_within_ms=100)


@pytest.fixture
def split(tmp_path: Path) -> Iterator[Broker]:
    """Our log, with a stream ``orders`` whose first partition was split."""
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("orders", 2)
        with ServerThread(log, AmqpConfig(port=0), RabbitConfig(port=0)) as server:
            server.call(lambda: log.split_partition("orders", "0", 2))
            yield Broker(server.rabbit_url, "door")


def test_our_log_means_another_thing_by_it_which_does_not_pass(split: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Refused, match=r"precondition-failed \(0x11\)") as caught:
        write(split.endpoint, ROWS, "orders-0")
    assert "alarm" not in str(caught.value) + caplog.text
