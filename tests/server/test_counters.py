"""Histograms, and what is counted of appends."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from spark_streams.server import AmqpConfig
from spark_streams.server.admission import Admission, AdmissionControl, Sockets
from spark_streams.server.appender import AppendRefused, RefusalReason, count_append
from spark_streams.server.counters import SECONDS, DoorCounters, Histogram


@pytest.mark.parametrize(("seconds", "bucket"), [(0.0, 0), (0.0001, 0), (0.00011, 1), (10.0, 15), (10.1, 16)])
def test_a_time_goes_into_the_bucket_that_ends_at_it(seconds: float, bucket: int) -> None:
    histogram = Histogram()
    histogram.observe(seconds)
    histogram.observe(seconds)
    assert histogram.counts == [2 if number == bucket else 0 for number in range(len(SECONDS) + 1)]
    assert histogram.sum_s == 2 * seconds


def test_what_is_stored_and_what_is_refused() -> None:
    counters = DoorCounters()
    values = pa.array([b"never counted", b"one", b"three", b"six"], pa.large_binary())[1:]
    refused = AppendRefused(RefusalReason.DISK_FULL, "there is no room")
    count_append(counters, values, [None, refused, None], 0.002)
    assert (counters.received, counters.received_bytes) == (2, len("onesix"))
    assert counters.refused_events == {"disk_full": 1} and sum(counters.appends.counts) == 1
    count_append(counters, values, [None] * 3, 0.002)
    assert (counters.received, counters.received_bytes) == (5, len("onesixonethreesix"))
    split = AppendRefused(RefusalReason.SPLIT, "it was split")
    count_append(counters, values, [split] * 3, 0.0, np.array([True, False, True]))
    assert counters.refused_events == {"disk_full": 1, "split": 1}, "the others go to another partition"
    count_append(counters, values, [split] * 3, 0.0, np.ones(3, np.bool_))
    assert counters.refused_events == {"disk_full": 1, "split": 1} and counters.received == 5
    assert counters.appends.sum_s == pytest.approx(0.004)
    assert np.cumsum(counters.appends.counts).tolist()[SECONDS.index(0.0025)] == 4


def test_requests_by_method_and_class_of_status() -> None:
    counters = DoorCounters()
    for method, status in (("GET", 200), ("GET", 206), ("GET", 404), ("BREW", 405), ("TEA", 405)):
        counters.answered(method, status, 0.1)
    found = {key: sum(histogram.counts) for key, histogram in counters.requests.items()}
    assert found == {("GET", "2xx"): 2, ("GET", "4xx"): 1, ("other", "4xx"): 2}


def test_a_connection_that_is_refused_and_stays_is_counted_once() -> None:
    async def refused() -> dict[str, int]:
        settings = AmqpConfig(port=0, max_connections=1, handshake_timeout_ms=10)
        control = AdmissionControl(asyncio.get_running_loop(), settings, Sockets())
        first, second = Admission(control, Mock()), Admission(control, Mock())
        late = asyncio.Event()
        second.on_late = late.set
        assert first.establish("ann") and not second.establish("bob")
        await asyncio.wait_for(late.wait(), 60)
        return control.counters.refused

    assert asyncio.run(refused()) == {"full": 1}
