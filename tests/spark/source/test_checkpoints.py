"""Checkpoints that were written: read by their own format for ever, and by no other one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_streams.errors import CheckpointError, PositionLost
from spark_streams.position import EARLIEST, position_from_json
from spark_streams.spark.feed.offset import FeedOffset
from tests.spark.fake_client import FakeLog
from tests.spark.fake_query import Query

FOLDER = Path(__file__).parents[2] / "checkpoints"
FORMATS = ("amqp-events", "rabbitmq-stream", "feedapi")
STORED = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
OF_LOGS = [name for name, each in STORED.items() if "log" in each]
"""Those that say in the file what their log was; the others are of feeds, which read no rows from here."""


def query_of(golden: dict[str, Any]) -> Query:
    log = FakeLog(*golden["log"].get("partitions", "012"), numeric="witness" in golden["log"])
    log.incarnation = golden["log"].get("incarnation", "none")
    for held in log.partitions.values():
        held.append(golden["log"]["events"])
        held.created = golden["log"].get("witness", "none")
    return Query(log)


def test_there_are_some_of_each_format() -> None:
    for form in FORMATS:
        versions = {(each.get("end") or each)["version"] for name, each in STORED.items() if name.startswith(form)}
        assert versions == {2}, form


@pytest.mark.parametrize("name", OF_LOGS)
def test_each_is_read(name: str) -> None:
    golden = STORED[name]
    query = query_of(golden)
    start = query.source.initial() if golden["start"] == "resolved anew" else golden["start"]
    assert sorted(query.read(start, golden["end"])) == sorted(tuple(row) for row in golden["rows"])


@pytest.mark.parametrize("name", OF_LOGS)
def test_a_query_goes_on_from_each_and_says_its_format(name: str) -> None:
    query = query_of(STORED[name])
    query.committed = STORED[name]["end"]
    ends = {p: position_from_json(end) for p, end in query.committed["partitions"].items()}
    left = [(p, o) for p, held in query.log.partitions.items() for o in held.offsets(ends.get(p, EARLIEST))]
    query.drain(limit=2)
    assert sorted(query.rows) == sorted(left)
    for held in query.log.partitions.values():
        held.append(1)
    query.batch()
    assert query.committed["version"] == 2 and name.startswith(query.committed["format"])


@pytest.mark.parametrize("name", [name for name in STORED if name not in OF_LOGS])
def test_those_of_feeds_are_read(name: str) -> None:
    there = STORED[name]
    offset = FeedOffset.from_json(there, "orders", there["filters"])
    assert offset.to_json() == there


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", STORED)
def test_no_format_reads_those_of_another(name: str, form: str) -> None:
    """They would be taken for lost positions, and who is told to allow losses reads everything again."""
    if name.startswith(form):
        return
    theirs = next(other for other in FORMATS if name.startswith(other))
    there = STORED[name].get("end", STORED[name])
    says = pytest.raises(CheckpointError, match=f"of format '{theirs}', but the query reads format '{form}'")
    if form == "feedapi":
        with says:
            FeedOffset.from_json(there, "orders", {})
        return
    query = Query(FakeLog(numeric=form == "rabbitmq-stream"), failOnDataLoss="false")
    with says:
        query.source.next_end(there, None)
    with says:
        query.source.reads(query.source.initial(), there)


@pytest.mark.parametrize("name", STORED)
def test_as_version_1_had_it_each_is_refused_and_the_way_on_told(name: str) -> None:
    there = STORED[name].get("end", STORED[name])
    before = {key: value for key, value in there.items() if key != "format"} | {"version": 1}
    says = pytest.raises(CheckpointError, match=r"has version 1, .* another checkpointLocation, .* 'startingOffsets'")
    if name.startswith("feedapi"):
        with says:
            FeedOffset.from_json(before, "orders", there["filters"])
        return
    query = query_of(STORED[name])
    query.committed = before
    with says:
        query.drain(limit=2)
    with says:
        query.source.reads(query.source.initial(), before)


def test_one_of_another_creation_is_refused() -> None:
    golden = STORED["rabbitmq-stream-later-batch"]
    query = query_of(golden)
    for held in query.log.partitions.values():
        held.created = "1700000099999"
    with pytest.raises(PositionLost, match="the stream was deleted and created again"):
        query.read(golden["start"], golden["end"])
