"""The warning about a filter that names what no event has: of messages the driver looks, of feeds a task."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest
from spark_streams.sources import amqp_events, rabbitmq_stream

from spark_streams.filters import parse
from spark_streams.filters.tree import place_of
from spark_streams.options.amqp_events import parse_source
from spark_streams.options.rabbitmq_stream import parse_source as parse_rabbit_source
from spark_streams.spark.pushdown.unseen_names import ENOUGH, UnseenNames, looked_at
from spark_streams.spark.source.batch_plan import plan_batch
from spark_streams.spark.source.micro_batch import MicroBatches
from spark_streams.testing import StreamFactory
from tests.client.feed.scripted import BadFeed, Part
from tests.spark.fake_client import FakeLog, FakePartition
from tests.spark.feed.batches import Life
from tests.spark.feed.filtering import FilteringFeed, batch_rows, equal

ORDERS = [json.dumps({"id": n, "eur": 10 * n}).encode() for n in range(20)]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "the filter names" in record.getMessage()]


def filled(*partitions: str) -> FakeLog:
    """A log whose events have one property, ``n``."""
    log = FakeLog()
    for each in partitions:
        log.partitions[each] = FakePartition()
        log.partitions[each].append(10)
    return log


def options(**more: str) -> object:
    return {"url": "amqp://localhost", "stream": "orders", **more}


def test_a_bare_name_of_an_annotation(caplog: pytest.LogCaptureFixture) -> None:
    columns = {
        "application_properties": [[("n", "1")]],
        "message_annotations": [[("x-opt-tenant", "a"), ("n", "1")]],
    }
    kind = pa.map_(pa.string(), pa.string())
    unseen = UnseenNames("orders", parse("[x-opt-tenant] = 'a' AND n = '1' AND eur > 5"), feed=False)
    unseen.look(pa.RecordBatch.from_pydict({name: pa.array(cells, kind) for name, cells in columns.items()}))
    unseen.warn()
    (line,) = warnings(caplog)
    assert "the filter names 'eur', 'x-opt-tenant', which none" in line
    assert line.endswith("filters; 'x-opt-tenant' is a message annotation: message_annotations.[x-opt-tenant]")
    (shown,) = re.findall(r"annotation: (\S+)", line)
    assert place_of(parse(f"{shown} = 'a'").reference) == ("message_annotations", "x-opt-tenant")


@pytest.mark.parametrize(
    ("text", "unseen"),
    [
        ("eur > 5", ["'eur'"]),
        ("n > 2 AND eur > 5 OR NOT colour = 'red'", ["'colour', 'eur'"]),
        ("message_annotations.x = 'a' AND n = 1", ["'message_annotations.x'"]),
        ("n > 2", []),
        ("eur IS NULL", []),
        ("key = '3' AND publish_time >= 0 AND properties.subject = 'x'", []),
    ],
)
def test_messages_in_a_batch(text: str, unseen: list[str], caplog: pytest.LogCaptureFixture) -> None:
    plan_batch(parse_source(options(filter=text), streaming=False), ("offset",), filled("0", "1").connect)
    said = [
        line.partition("names ")[2].partition(", which none of the first 20 events has")[0] for line in warnings(caplog)
    ]
    assert said == unseen
    assert all("a bare name is an application property here" in line for line in warnings(caplog))


def test_messages_in_a_stream_once_and_when_there_are_some(caplog: pytest.LogCaptureFixture) -> None:
    log = filled("0")
    log.partitions["0"] = FakePartition()
    given = parse_source(options(filter="eur > 5", startingOffsets="earliest"), streaming=True)
    planner = MicroBatches(given, ("offset",), log.connect)
    start = planner.initial()
    empty = planner.next_end(start, None)
    planner.reads(start, empty)
    assert warnings(caplog) == []
    for _ in range(2):
        log.partitions["0"].append(3)
        planner._driver.describe(fresh=True)
        end = planner.next_end(empty, None)
        planner.reads(empty, end)
        empty = end
    assert len(warnings(caplog)) == 1
    assert "none of the first 3 events" in warnings(caplog)[0]


def test_a_look_that_fails_is_none_and_a_query_of_a_group_takes_no_look(caplog: pytest.LogCaptureFixture) -> None:
    log = filled("0")
    alone = parse_source(options(filter="eur > 5", consumerGroup="g"), streaming=False)
    plan_batch(alone, ("offset",), log.connect)
    assert log.fetched == 0
    assert warnings(caplog) == []


@pytest.mark.parametrize("format", ["amqp-events", "rabbitmq-stream"])
def test_the_doors_check_the_filter_and_the_driver_sees_what_they_leave_out(
    format: str, reference_log: StreamFactory, caplog: pytest.LogCaptureFixture
) -> None:
    stream = reference_log.create("orders")
    stream.produce([{"value": value.decode(), "application_properties": {"type": "order"}} for value in ORDERS])
    for text, count in (("eur > 5", 1), ("type = 'nothing of the kind'", 0)):
        caplog.clear()
        given = stream.options(format, filter=text)
        if format == "amqp-events":
            plan_batch(parse_source(given, streaming=False), ("offset",), amqp_events.connect)
        else:
            plan_batch(parse_rabbit_source(given, streaming=False), ("offset",), rabbitmq_stream.connect)
        assert len(warnings(caplog)) == count, text


def test_feeds_in_a_batch_and_in_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    with BadFeed({0: Part(ORDERS), 1: Part(ORDERS)}, "v2a") as feed:
        assert batch_rows(feed.url, filter="euro > 5")[0] == []
        (line,) = warnings(caplog)
        assert "names 'euro', which none of the first 20 events has: a name is a member" in line
        caplog.clear()
        assert len(batch_rows(feed.url, filter="eur > 5")[0]) == 38
        with Life(feed.url, filter="euro > 5") as life:
            life.step(10)
            life.step(10)
        assert len(warnings(caplog)) == 1


def test_what_the_feed_itself_compares_is_a_name_that_it_offers(caplog: pytest.LogCaptureFixture) -> None:
    with FilteringFeed({0: Part(ORDERS)}, {"type": equal("type")}, {"type": "/type"}) as feed:
        assert batch_rows(feed.url, filter="type = 'a'")[0] == []
    assert warnings(caplog) == []


def test_only_the_first_events_are_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    batches = [pa.record_batch({"value": pa.array([b'{"a": 1}'] * ENOUGH, pa.binary())}) for _ in range(3)]
    batches.append(pa.record_batch({"value": pa.array([b'{"b": 1}'], pa.binary())}))
    assert len(list(looked_at(iter(batches), "orders", parse("b = 1")))) == 4
    assert len(warnings(caplog)) == 1
    assert not UnseenNames("orders", None, feed=True)
