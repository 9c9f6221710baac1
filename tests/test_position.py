"""Positions and checkpoints as JSON: what stored checkpoints hold, byte for byte, and what is none."""

from __future__ import annotations

import json

import pytest

from spark_streams.errors import CheckpointError
from spark_streams.instants import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from spark_streams.position import (
    EARLIEST,
    LATEST,
    After,
    At,
    AtTime,
    Checkpoint,
    Matching,
    Position,
    position_from_json,
    position_to_json,
    require_format,
)

WRITTEN: list[tuple[Position, str]] = [
    (EARLIEST, '"earliest"'),
    (LATEST, '"latest"'),
    (At("7"), '{"at": "7"}'),
    (After("7"), '{"after": "7"}'),
    (After("latest"), '{"after": "latest"}'),
    (AtTime(-1), '{"timestamp": -1}'),
    (AtTime(MIN_TIMESTAMP_MS), '{"timestamp": -9223372036854775807}'),
    (AtTime(MAX_TIMESTAMP_MS), '{"timestamp": 9223372036854775807}'),
    (Matching("key = 'a'"), '{"expression": "key = \'a\'"}'),
]


@pytest.mark.parametrize(("position", "text"), WRITTEN)
def test_a_position_is_written_and_read_as_documented(position: Position, text: str) -> None:
    assert json.dumps(position_to_json(position)) == text
    assert position_from_json(json.loads(text)) == position


def test_a_bare_text_is_after_that_offset() -> None:
    assert position_from_json("7") == After("7")


@pytest.mark.parametrize(
    "value",
    [
        7,
        None,
        True,
        {},
        {"at": 7},
        {"after": None},
        {"At": "7"},
        {"at": "7", "after": "7"},
        {"timestamp": "7"},
        {"timestamp": True},
        {"timestamp": 7.0},
        {"expression": 7},
        ["at", "7"],
    ],
)
def test_what_is_no_position_is_refused_with_the_forms_there_are(value: object) -> None:
    with pytest.raises(ValueError, match=r"is not a position: expected .*\"earliest\".*\"at\".*\"expression\""):
        position_from_json(value)


@pytest.mark.parametrize("beyond", [MIN_TIMESTAMP_MS - 1, MAX_TIMESTAMP_MS + 1])
def test_an_instant_beyond_int64_is_refused(beyond: int) -> None:
    with pytest.raises(ValueError, match=f"timestamp {beyond} is outside int64"):
        position_from_json({"timestamp": beyond})


AMQP, RABBITMQ, FEED = "amqp-events", "rabbitmq-stream", "feedapi"
WHOLE = Checkpoint(AMQP, "orders", {"1": After("b"), "0": EARLIEST}, "x7", {"1": "w1", "0": "w0"})
WHOLE_JSON = (
    '{"version": 2, "format": "amqp-events", "stream": "orders", '
    '"partitions": {"0": "earliest", "1": {"after": "b"}}, '
    '"incarnation": "x7", "witnesses": {"0": "w0", "1": "w1"}}'
)
SMALL = Checkpoint(RABBITMQ, "orders", {"0": After("a")})
SMALL_JSON = '{"version": 2, "format": "rabbitmq-stream", "stream": "orders", "partitions": {"0": {"after": "a"}}}'


@pytest.mark.parametrize(("checkpoint", "text"), [(WHOLE, WHOLE_JSON), (SMALL, SMALL_JSON)])
def test_a_checkpoint_is_stored_so_and_read_again(checkpoint: Checkpoint, text: str) -> None:
    assert json.dumps(checkpoint.to_json()) == text
    assert Checkpoint.from_json(json.loads(text), checkpoint.format) == checkpoint


def test_an_identity_of_a_partition_that_is_not_there_is_dropped() -> None:
    read = Checkpoint.from_json({**SMALL.to_json(), "witnesses": {"0": "w0", "9": "w9"}}, RABBITMQ)
    assert read == Checkpoint(RABBITMQ, "orders", {"0": After("a")}, None, {"0": "w0"})


@pytest.mark.parametrize("version", [None, 0, 1, 3, "1", "2", True])
def test_a_checkpoint_of_another_version_is_refused(version: object) -> None:
    with pytest.raises(
        CheckpointError, match=f"has version {version!r}, this spark-streams reads version 2: .*startingOffsets"
    ):
        Checkpoint.from_json({**SMALL.to_json(), "version": version}, RABBITMQ)


@pytest.mark.parametrize("value", [{"orders": {"0": 5}}, {"logOffset": 7}, {}, 5, None, "earliest"], ids=repr)
def test_a_checkpoint_of_another_source_is_refused(value: object) -> None:
    """Such as Kafka's, of the query that the new one takes the place of."""
    with pytest.raises(CheckpointError, match=r"not a checkpoint of spark-streams, but of another source"):
        require_format(value, AMQP)


@pytest.mark.parametrize("reading", [AMQP, RABBITMQ, FEED])
@pytest.mark.parametrize("written", [AMQP, RABBITMQ, FEED])
def test_a_checkpoint_is_of_one_format(written: str, reading: str) -> None:
    value = {"version": 2, "format": written, "stream": "orders", "partitions": {"0": "earliest"}}
    if written == reading:
        require_format(value, reading)
        return
    with pytest.raises(CheckpointError, match=f"of format '{written}', but the query reads format '{reading}'"):
        require_format(value, reading)


def test_a_checkpoint_that_should_say_its_format_and_does_not_is_refused() -> None:
    value = {name: each for name, each in SMALL.to_json().items() if name != "format"}
    with pytest.raises(CheckpointError, match="the checkpoint is of format None, but the query reads"):
        require_format(value, RABBITMQ)


@pytest.mark.parametrize("format", [AMQP, RABBITMQ, FEED, "lines"])
def test_version_1_did_not_say_its_format_and_is_refused(format: str) -> None:
    value = {"version": 1, "stream": "orders", "partitions": {"0": "earliest"}}
    with pytest.raises(CheckpointError, match=r"has version 1, this .* reads version 2: .*'startingOffsets'"):
        require_format(value, format)


@pytest.mark.parametrize("bad", [{"partitions": None}, {"partitions": {"0": {"at": 7}}}, {"witnesses": None}])
def test_what_is_no_checkpoint_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="not a checkpoint of spark-streams"):
        Checkpoint.from_json({**SMALL.to_json(), **bad}, RABBITMQ)
    for missing in ("stream", "partitions"):
        with pytest.raises(CheckpointError, match="not a checkpoint of spark-streams"):
            Checkpoint.from_json({n: value for n, value in SMALL.to_json().items() if n != missing}, RABBITMQ)
