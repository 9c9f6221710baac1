"""How many events are left: asked once for each answer about the log's bounds, and never from an older one."""

from __future__ import annotations

from spark_streams.options.amqp_events import parse_source
from spark_streams.position import After, Checkpoint
from spark_streams.spark.source.driver import Driver
from tests.spark.fake_client import FakeLog, name
from tests.spark.fake_query import Clock


def asked(log: FakeLog) -> tuple[Driver, Clock]:
    clock = Clock()
    return Driver(parse_source({"url": "amqp://h", "stream": "orders"}, streaming=True), log.connect, clock), clock


def test_it_is_counted_once_for_each_answer_and_end() -> None:
    log = FakeLog("0", "1")
    log.partitions["0"].append(5)
    driver, clock = asked(log)
    ends = [Checkpoint("amqp-events", "orders", {"0": After(name(number))}, "one") for number in (1, 3)]
    assert [driver.lag(ends[0]) for _ in range(3)] == [{"0": 3, "1": 0}] * 3
    assert log.counted == 1
    assert driver.lag(ends[1]) == {"0": 1, "1": 0}
    assert log.counted == 2
    log.partitions["0"].append(1)
    assert driver.lag(ends[1]) == {"0": 1, "1": 0}, "what the peer said is reused for the poll interval"
    clock.now += 1
    assert driver.lag(ends[1]) == {"0": 2, "1": 0}
    assert log.counted == 3


def test_an_answer_that_lies_where_an_older_one_lay_is_another() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(2)
    driver, _ = asked(log)
    end = Checkpoint("amqp-events", "orders", {"0": After(name(0))}, "one")
    for left in range(1, 50):
        assert driver.lag(end) == {"0": left}
        log.partitions["0"].append(1)
        for _ in range(2 + left % 7):
            driver.describe(fresh=True)  # the first of them frees the one that the lag is of


def test_nothing_is_known_before_the_first_batch() -> None:
    log = FakeLog("0", "1")
    log.partitions["0"].append(5)
    driver, _ = asked(log)
    assert driver.lag(None) == {"0": None, "1": None}
    assert log.counted == 0
