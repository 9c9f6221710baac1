"""What a source's driver side tells of a micro-batch: the report for Spark's progress, and the log line."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict

import pytest

from spark_streams.client.data_loss import DataLoss, LossPolicy
from spark_streams.errors import Refused
from spark_streams.position import progress_offset
from spark_streams.spark.progress import batch_progress
from spark_streams.spark.progress.batch_progress import NOT_COUNTED, BatchProgress, behind_latest


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


def made() -> tuple[BatchProgress, LossPolicy, Clock]:
    policy, clock = LossPolicy("orders", False), Clock()
    return BatchProgress(policy, "query 'q': feedapi stream 'orders'", clock), policy, clock


def test_the_report_of_a_batch() -> None:
    progress, policy, _ = made()
    policy.report("0", "after 'a'", "it is gone")
    progress.planned("end", {"0": 5, "1": None}, {"0": 70})
    assert progress.report({"0": 2, "1": 6}) == {
        "lag": {"0": 2, "1": 6},
        "planned": {"events": {"0": 5, "1": None}, "bytes": {"0": 70}},
        "metrics": {"minOffsetsBehindLatest": "2", "maxOffsetsBehindLatest": "6", "avgOffsetsBehindLatest": "4.0"},
        "losses": [asdict(DataLoss("0", "after 'a'", "it is gone"))],
        "retries": 0,
    }


def test_without_the_lag_of_each_partition_there_are_no_metrics() -> None:
    assert behind_latest({"0": 3, "1": None}) == {}
    assert behind_latest({}) == {}


def test_a_loss_is_told_with_one_batch_that_spark_runs() -> None:
    progress, policy, _ = made()
    progress.planned("first", {"0": 5})
    policy.report("0", "after 'a'", "noticed by the tasks' plan, when the first batch had been told of")
    progress.reached("first")
    policy.report("1", "after 'b'", "noticed while nothing new was there")
    progress.reached("first")
    progress.planned("second", {"0": 1})
    for _ in range(2):
        assert [loss["partition"] for loss in progress.report({})["losses"]] == ["0", "1"]
    progress.reached("second")
    assert progress.report({})["losses"] == []


def test_retries_and_losses_are_told_once_however_often_spark_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = iter((1, 3, 3, 6, 10))
    policy = LossPolicy("orders", False)
    monkeypatch.setattr(batch_progress, "retries", lambda: next(tried))
    progress = BatchProgress(policy, "feedapi stream 'orders'", Clock())

    def told() -> tuple[int, int]:
        report = progress.report({})
        return report["retries"], len(report["losses"])

    assert told() == (0, 0)
    progress.planned("first", {"0": 5})
    policy.report("0", "after 'a'", "noticed after the plan, before Spark asks for its report")
    assert told() == told() == (2, 0)
    progress.reached("first")
    assert told() == (0, 0)
    progress.planned("second", {"0": 5})
    assert told() == (0, 1)
    progress.planned("second, planned again as it did not run", {"0": 5})
    assert told() == (3, 1)
    progress.reached("second, planned again as it did not run")
    progress.planned("third", {"0": 5})
    assert told() == (4, 0)


def none() -> dict[str, int | None]:
    raise AssertionError("called for no line")


def test_one_line_a_batch_with_the_rates_of_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    progress, _, clock = made()
    with caplog.at_level(logging.INFO, "spark_streams.spark.progress"):
        progress.reached("another run's")
        progress.begun("another run's", lambda: {"0": None}, lambda: {"0": 3})
        progress.planned("first", {"0": 6, "1": 4}, {"0": 60, "1": 40})
        for _ in range(3):
            progress.begun("first", none, lambda: {"0": 0, "1": None})
        clock.now += 2
        progress.reached("first")
        clock.now += 60  # nothing comes for a minute, or the trigger has a pause
        progress.reached("first")
        progress.planned("empty", {"0": 0})
        progress.begun("empty", none, none)
        progress.reached("empty")
        progress.planned("second", {"0": 1}, {"0": 10})
        progress.begun("second", none, lambda: {"0": 0})
        progress.planned("not told", {"0": None})
        progress.begun("not told", none, dict)
        progress.begun("empty, of another run", dict, none)
    assert [record.getMessage() for record in caplog.records] == [
        "query 'q': feedapi stream 'orders': batch of an unknown number of events, lag {0: 3}",
        "query 'q': feedapi stream 'orders': batch of 10 events, 100 bytes, lag {0: 0, 1: ?}",
        "query 'q': feedapi stream 'orders': batch of 1 events, 10 bytes, lag {0: 0}; "
        "the batch before took 2.000 s, 5 events/s, 50 bytes/s",
        "query 'q': feedapi stream 'orders': batch of an unknown number of events",
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "spark_streams.spark.progress"):
        progress.planned("silent", {"0": None})
        progress.begun("silent", none, none)
    assert caplog.messages == []


def test_a_count_that_fails_is_no_error_of_the_query(caplog: pytest.LogCaptureFixture) -> None:
    progress, _, _ = made()

    def refused() -> dict[str, int | None]:
        raise Refused("amqp:not-allowed", "no counting here", "a peer")

    with caplog.at_level(logging.DEBUG, "spark_streams.spark.progress"):
        progress.begun("another run's", refused, lambda: {"0": 3})
    why, line, *_ = caplog.messages
    assert "no counting here" in why and line.endswith("batch of an unknown number of events, lag {0: 3}")


def test_many_partitions_are_summed_up_and_at_debug_all_told(caplog: pytest.LogCaptureFixture) -> None:
    progress, _, clock = made()
    lag = {f"{n:02d}": n for n in range(50)}
    with caplog.at_level(logging.DEBUG, "spark_streams.spark.progress"):
        progress.planned("unknown", {"00": None})
        clock.now += 1
        progress.reached("unknown")
        progress.planned("end", NOT_COUNTED)
        progress.begun("end", lambda: {"00": 7}, lambda: lag)
    line, detail = (record.getMessage() for record in caplog.records)
    told = ", ".join(f"{n}: {n}" for n in range(40, 50))
    assert line == (
        f"query 'q': feedapi stream 'orders': batch of 7 events, lag 1225 in 50 partitions, most of it {{{told}}}; "
        "the batch before took 1.000 s"
    )
    assert json.loads(detail.partition("orders': ")[2])["lag"] == lag


OURS = {"version": 2, "stream": "orders", "partitions": {"0": {"after": "7"}, "1": "earliest"}, "pushdown": None}


@pytest.mark.parametrize("told", [OURS, json.dumps(OURS), str(OURS)], ids=["a dict", "JSON", "Spark 4.0 and 4.1"])
def test_an_offset_of_ours_is_known_however_spark_gives_it(told: object) -> None:
    assert progress_offset(told) == OURS


@pytest.mark.parametrize(
    "told", [None, "None", "null", "", "17", 17, '{"orders": {"0": 17}}', "{'a': 1}", "{now()}", "{"]
)
def test_offsets_of_other_sources_are_none_of_ours(told: object) -> None:
    assert progress_offset(told) is None
