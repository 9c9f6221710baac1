"""Publishing to several streams that get other leaders in mid-task: each row goes to its own stream, and none twice."""

from __future__ import annotations

import pytest

from spark_streams.client import RabbitPublishing, TaskIdentity, TaskPublisher
from tests.client.rabbitmq.publishing import Taking, confirm, metadata_update, publish_error, send, write
from tests.client.rabbitmq.scripted import OK, Wire
from tests.client.rabbitmq.test_publisher import ROWS
from tests.real_rabbitmq import by_hand as key

IDENTITY = TaskIdentity("spark/q/0", 3)
UNAVAILABLE, NO_PUBLISHER = 0x06, 0x12


class Moving:
    """A broker whose stream ``a`` moves while its first rows are under way."""

    def __init__(self) -> None:
        self.stored: dict[str, set[int]] = {"a": set(), "b": set()}
        self.lost: list[int] = []
        self.taking = Taking(self.publish)

    def publish(self, wire: Wire, publisher: int, ids: list[int]) -> None:
        _, _, stream = next(each for each in reversed(self.taking.declared) if each[0] == publisher)
        if stream == "a" and not self.lost:
            self.lost = ids
            wire.send(key.METADATA_UPDATE, metadata_update("a"))
            return
        self.stored[stream].update(ids)
        wire.send(key.PUBLISH_CONFIRM, confirm(publisher, ids))


def test_rows_of_a_stream_that_moved_do_not_go_to_the_stream_that_is_declared_next() -> None:
    broker = Moving()
    with broker.taking.serve() as served:
        publisher = TaskPublisher(served.endpoint, RabbitPublishing(request_timeout_ms=1_000), None)
        send(publisher, ROWS[:1_025], ["a"] * 1_024 + ["b"], each=1_025)  # the first window goes out
        publisher._outgoing.connection.turn(60.0)  # the broker says that the stream moved
        send(publisher, ROWS[:1_023], ["a", "b"] * 511 + ["a"], each=1_023)
        publisher.flush()
        publisher.close()
    assert broker.stored["a"] == {*range(1, 1_025), *range(1_026, 2_049, 2)}, "ids are numbers of rows, from 1"
    assert broker.stored["b"] == set(range(1_025, 2_049, 2))


def test_a_late_refusal_of_a_publisher_that_is_gone_refuses_no_row() -> None:
    """What was sent before we heard that RabbitMQ had dropped the publisher, it refuses: that there is none."""
    broker = Moving()
    declare = broker.taking.script[key.DECLARE_PUBLISHER]

    def declare_again(wire: Wire, number: int, content: bytes) -> None:
        if broker.lost:
            wire.send(key.PUBLISH_ERROR, publish_error(0, broker.lost, NO_PUBLISHER))
        declare(wire, number, content)

    broker.taking.more[key.DECLARE_PUBLISHER] = declare_again
    with broker.taking.serve() as served:
        write(served.endpoint, ROWS[:100], "a", IDENTITY)
    assert len(broker.stored["a"]) == 100


@pytest.mark.parametrize("identity", [None, IDENTITY], ids=["at least once", "exactly once"])
def test_a_stream_without_a_leader_is_waited_for(identity: TaskIdentity | None) -> None:
    taking = Taking(declares=[UNAVAILABLE, UNAVAILABLE, OK])
    with taking.serve() as served:
        write(served.endpoint, ROWS[:100], "orders", identity)
    assert taking.messages == 100
