"""A real broker with an alarm: who is kept waiting, what is said, and that nothing is lost or doubled by it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spark_streams.client import RabbitPublishing, TaskIdentity, TaskPublisher
from spark_streams.client.rabbitmq.stream_publisher import query_sequences
from spark_streams.errors import DeliveryFailed, Refused
from spark_streams.testing import eventually
from tests.client.rabbitmq.brokers import Broker
from tests.client.rabbitmq.publishing import body, send, write
from tests.client.rabbitmq.test_publish_exactly_once import held
from tests.real_rabbitmq.conftest import Own

pytestmark = [pytest.mark.rabbitmq, pytest.mark.timeout(600)]

IDENTITY = TaskIdentity("spark/query/0", 1)
ROWS = [body(f"{n}") for n in range(2_000)]
BODIES = [row[8:] for row in ROWS]


@pytest.fixture
def own(own_rabbitmq: Own) -> Broker:
    """The broker of this module as the client's tests use one."""
    return Broker(own_rabbitmq.url, "rabbitmq")


class Waiting(logging.Handler):
    """Notices when a task says that it waits for the end of an alarm."""

    def __init__(self) -> None:
        super().__init__()
        self.noticed = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "has an alarm" in record.getMessage():
            self.noticed.set()


@pytest.fixture
def waiting() -> Iterator[threading.Event]:
    """Set when a task waits for the end of an alarm."""
    handler, logger = Waiting(), logging.getLogger("spark_streams.client.rabbitmq.publisher_pool")
    logger.addHandler(handler)
    yield handler.noticed
    logger.removeHandler(handler)


def test_a_task_that_begins_under_an_alarm_waits_for_its_end(
    own: Broker, own_rabbitmq: Own, waiting: threading.Event
) -> None:
    with own.stream() as stream:
        with own_rabbitmq.alarm():
            task = threading.Thread(target=write, args=(own.endpoint, ROWS, stream, IDENTITY))
            task.start()
            assert waiting.wait(110), "option requestTimeout is 120 s here"
            assert held(own, stream) == [], "reading goes on"
        task.join(240)
        assert not task.is_alive() and held(own, stream) == BODIES


@pytest.mark.nightly
def test_an_alarm_that_lasts_is_told_and_the_next_attempt_adds_what_is_missing(own: Broker, own_rabbitmq: Own) -> None:
    with own.stream() as stream:
        with own_rabbitmq.alarm(), pytest.raises(Refused, match=r"0x11\): for longer than .*disk_free_limit"):
            write(own.endpoint, ROWS, stream, IDENTITY, confirm_within_ms=1_000)
        write(own.endpoint, ROWS, stream, IDENTITY)
        assert held(own, stream) == BODIES


@contextmanager
def publishing(own: Broker, node: Own, stream: str) -> Iterator[TaskPublisher]:
    """A task under way: an alarm began when the broker had confirmed some of its rows."""
    publisher = TaskPublisher(own.endpoint, RabbitPublishing(request_timeout_ms=120_000), IDENTITY)
    try:
        send(publisher, ROWS[:1_500], stream)
        publisher._outgoing.wait(0)
        assert held(own, stream) == BODIES[:1_024], "rows go in windows"
        with node.alarm():
            # It is the last thing that the broker reads of this connection.
            query_sequences(publisher._outgoing.connection, [stream], "any")
            yield publisher
    finally:
        publisher.close()


@pytest.mark.nightly
def test_an_alarm_under_a_task_that_publishes_holds_it_up(own: Broker, own_rabbitmq: Own) -> None:
    def rest() -> None:
        send(publisher, ROWS[1_500:], stream)
        publisher.flush()

    with own.stream() as stream:
        task = threading.Thread(target=rest)
        with publishing(own, own_rabbitmq, stream) as publisher:
            task.start()
            eventually(lambda: publisher.unconfirmed == len(ROWS) - 1_024, "all are sent", 110)
            assert held(own, stream) == BODIES[:1_024]
            own_rabbitmq.end_alarm()
            task.join(240)
        assert not task.is_alive() and held(own, stream) == BODIES


@pytest.mark.nightly
def test_an_alarm_that_lasts_under_a_task_that_publishes_is_told(own: Broker, own_rabbitmq: Own) -> None:
    with own.stream() as stream:
        with publishing(own, own_rabbitmq, stream) as publisher:
            publisher._outgoing._how = RabbitPublishing(request_timeout_ms=1_000)
            send(publisher, ROWS[1_500:], stream)
            with pytest.raises(DeliveryFailed, match=r"row 1024 .*no-confirm: .*as while it has a disk alarm"):
                publisher.flush()
        write(own.endpoint, ROWS, stream, IDENTITY)
        assert held(own, stream) == BODIES


@pytest.mark.nightly
def test_a_memory_alarm_keeps_nobody_waiting(own: Broker, own_rabbitmq: Own) -> None:
    """Streams heed alarms of the disk only: that is why the others are not named."""
    with own.stream() as stream, own_rabbitmq.alarm("memory"):
        write(own.endpoint, ROWS, stream, IDENTITY)
        assert held(own, stream) == BODIES
