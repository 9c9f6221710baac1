"""Times that are likely not meant: in another unit, an end before the start, a start behind all events."""

from __future__ import annotations

import json
import logging

import pytest

from spark_streams.client.log_client import Pushdown
from spark_streams.errors import OptionError
from spark_streams.options.amqp_events import parse_source
from spark_streams.options.feedapi import parse_source as parse_feed_source
from spark_streams.options.rabbitmq_stream import parse_source as parse_rabbit_source
from spark_streams.spark.pushdown.spark_filters import log_filter
from spark_streams.spark.source.batch_plan import plan_batch
from tests.spark.fake_client import FakeLog
from tests.spark.fake_query import Query

DAY = 1_764_288_000_000
"""2025-11-28, in milliseconds: the events are of that day and of the next one."""
WARNING = "spark_streams.client.asked_times", "spark_streams.spark.source.batch_plan"
LATEST = {"startingOffsetsByTimestampStrategy": "latest"}


def two_days(numeric: bool = False) -> FakeLog:
    """Return a log with two partitions of two days, and one without an event."""
    log = FakeLog("0", "1", "2", numeric=numeric)
    for partition in "01":
        log.partitions[partition].append(3, timestamp=DAY)
        log.partitions[partition].append(3, timestamp=DAY + 86_400_000)
    return log


def batch(log: FakeLog, **given: str) -> int:
    """Plan a batch query; return how many partitions it reads."""
    parse, scheme = (parse_rabbit_source, "rabbitmq-stream") if log.numeric else (parse_source, "amqp")
    options = parse({"url": f"{scheme}://h", "stream": "orders", **given}, streaming=False)
    return len(plan_batch(options, ("offset",), log.connect))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name in WARNING and each.levelno == logging.WARNING]


UNDERSTOOD = {
    f"{DAY // 1000}": "1970-01-21T10:04:48.000Z (times are in milliseconds: in seconds it would be {})",
    f"{DAY}000": "57878-01-23T00:00:00.000Z (times are in milliseconds: in microseconds it would be {})",
    f"{DAY}000000": "55910031-01-31T00:00:00.000Z (times are in milliseconds: in nanoseconds it would be {})",
}
"""The instants as GNU date writes them."""
UNDERSTOOD = {given: text.format("2025-11-28T00:00:00.000Z") for given, text in UNDERSTOOD.items()}


@pytest.mark.parametrize("numeric", [False, True])
@pytest.mark.parametrize(
    ("given", "read", "said"),
    [
        ({"startingTimestamp": f"{DAY // 1000}"}, 2, "starts at 1764288000, which is {}, before the oldest event of"),
        ({"startingTimestamp": f"{DAY}000", **LATEST}, 0, "starts at 1764288000000000, which is {}, behind the newest"),
        ({"startingTimestamp": f"{DAY}000000", **LATEST}, 0, "000000, which is {}, behind the newest event of"),
        ({"startingTimestamp": "2030-01-01", **LATEST}, 0, "which is 2030-01-01T00:00:00.000Z, behind the newest"),
        ({"endingTimestamp": f"{DAY // 1000}"}, 0, "ends at 1764288000, which is {}, before the oldest event of"),
        ({"endingTimestamp": f"{DAY}000"}, 2, "ends at 1764288000000000, which is {}, behind the newest event of"),
        ({"endingTimestamp": "2020-01-01"}, 0, "ends at 1577836800000, which is 2020-01-01T00:00:00.000Z, before the"),
        (
            {"startingTimestamp": "2025-11-29", "endingTimestamp": "2025-11-28T12:00"},
            0,
            "ends at 1764331200000, which is 2025-11-28T12:00:00.000Z, and starts at 1764374400000, which is "
            "2025-11-29T00:00:00.000Z, in",
        ),
        ({"startingTimestamp": "2025-11-28T13:00", "endingTimestamp": "2025-11-28T12:00"}, 0, ", and starts at 17"),
    ],
)
def test_a_time_beside_all_events_is_told_once(
    given: dict[str, str], read: int, said: str, numeric: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = two_days(numeric)
    assert batch(log, **given) == read
    (warning,) = warnings(caplog)
    option = next(reversed([name for name in given if name in ("startingTimestamp", "endingTimestamp")]))
    assert said.format(UNDERSTOOD.get(given[option], "")) in warning
    held = log.partitions["0"].spell
    assert warning.endswith(f"partition '0', which holds offsets '{held(0)}' to '{held(5)}'")
    assert f"stream 'orders': {option}: reading " in warning
    assert (log.described, log.fetched, log.walks, log.counted) == (1, 0, 0, 0), "the warning costs no request"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"startingTimestamp": "0", "endingTimestamp": str(2**63 - 1)},
        {"startingTimestamp": "-386380800000", "endingTimestamp": "253402300799000"},
        {"startingTimestamp": "2025-11-01", "endingTimestamp": "2025-11-29"},
        {"startingTimestamp": "2025-11-28T01:00", "endingTimestamp": "2025-11-28T02:00"},
        {"startingOffsetsByTimestamp": json.dumps({"0": DAY + 86_400_001, "1": DAY, "2": 0}), **LATEST},
        {"endingOffsetsByTimestamp": json.dumps({"0": 0, "1": DAY + 1, "2": 0})},
        {"startingOffsets": '{"0": "e000005", "1": "e000005", "2": "earliest"}'},
    ],
    ids=str,
)
def test_nothing_is_said_of_ordinary_times(given: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    batch(two_days(), **given)
    assert warnings(caplog) == []


def test_old_events_have_the_times_that_are_seconds_of_today(caplog: pytest.LogCaptureFixture) -> None:
    log = FakeLog("0")
    log.partitions["0"].append(1, timestamp=0)
    log.partitions["0"].append(1, timestamp=DAY // 1000)
    assert batch(log, startingTimestamp=f"{DAY // 1000}") == 1
    assert warnings(caplog) == []


def test_an_end_at_an_offset_before_the_start_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    ends = '{"0": "e000001", "1": "e000001", "2": "latest"}'
    assert batch(two_days(), startingTimestamp="2025-11-29", endingOffsets=ends) == 0
    (warning,) = warnings(caplog)
    assert "endingOffsets: reading ends after 'e000001', and starts at 1764374400000, which is 2025-11-29" in warning


def test_an_empty_stream_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert batch(FakeLog("0", "1"), startingTimestamp="1764288000", endingTimestamp="1764288000") == 0
    assert warnings(caplog) == []


@pytest.mark.parametrize("numeric", [False, True])
def test_an_error_about_a_start_says_what_was_understood(numeric: bool) -> None:
    log = two_days(numeric)
    with pytest.raises(OptionError) as fault:
        batch(log, startingTimestamp=f"{DAY}000")
    assert UNDERSTOOD[f"{DAY}000"] in str(fault.value)
    assert f"up to its newest one at offset '{log.partitions['0'].spell(5)}'" in str(fault.value)


@pytest.mark.parametrize("numeric", [False, True])
def test_a_stream_is_told_of_its_start_once(numeric: bool, caplog: pytest.LogCaptureFixture) -> None:
    log = two_days(numeric)
    query = Query(log, startingTimestamp="1764288000")
    assert query.drain() == [12]
    query.source.initial()
    query.restart()
    log.partitions["0"].append(1)
    assert query.drain() == [1]
    (warning,) = warnings(caplog)
    assert "startingTimestamp: reading starts at 1764288000, which is 1970-01-21T10:04:48.000Z" in warning


def filters_of_all_formats(text: str) -> list[str]:
    """Plan a query with a filter in each format, whose warnings are the tests'; return the formats' labels."""
    log, numeric = two_days(), two_days(numeric=True)
    batch(log, filter=text)
    Query(numeric, filter=text, startingOffsets="earliest").drain()
    feed = parse_feed_source({"url": "http://h/orders", "filter": text, "timestampField": "/at"}, streaming=True)
    log_filter(feed, Pushdown(None, feed.filter))
    return ["amqp-events", "rabbitmq-stream", "feedapi"]


@pytest.mark.parametrize("given", [f"{DAY // 1000}", f"{DAY}000", f"{DAY}000000"])
def test_a_filter_by_times_in_another_unit_is_told_once(given: str, caplog: pytest.LogCaptureFixture) -> None:
    text = f"key = '1764288000' OR NOT (publish_time BETWEEN 5 AND {given} AND publish_time < 1764288001)"
    formats = filters_of_all_formats(text)
    told = f"the filter has publish_time BETWEEN 5 AND {given}, where {given} is {UNDERSTOOD[given]}"
    assert warnings(caplog) == [f"{each} stream 'orders': {told}" for each in formats]


@pytest.mark.parametrize("text", ["publish_time >= 1764288000000", "publish_time > 0", "body_size < 1764288000"])
def test_nothing_is_said_of_ordinary_filters(text: str, caplog: pytest.LogCaptureFixture) -> None:
    filters_of_all_formats(text)
    assert warnings(caplog) == []
