"""Columns whose places a dialect decides: all ways of decoding give the same, for messages made by qpid-proton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proton import Message, int32, symbol, timestamp, ulong

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp import sections
from spark_streams.wire.amqp.columns import shaped_rows
from spark_streams.wire.amqp.columns.decode import decode_columns
from spark_streams.wire.amqp.columns.encode import encode_columns
from spark_streams.wire.amqp.columns.from_producers import incoming_columns
from spark_streams.wire.amqp.columns.single_message import row_columns
from spark_streams.wire.amqp.dialects import EVENT_HUBS, EVENT_STREAMS, RABBITMQ
from spark_streams.wire.amqp.dialects.dialect import Place, Places
from spark_streams.wire.amqp.message import MESSAGE_ANNOTATIONS
from tests.examples import examples
from tests.wire.amqp.columns.test_decode import block

KEYED_RABBITMQ = replace(RABBITMQ.places, key=Place(MESSAGE_ANNOTATIONS, "x-key", "string"))
NAMES = ["offset", "timestamp", "timestamp_ms", "source_partition", "key", "value", "message_annotations"]


@pytest.fixture(autouse=True, scope="module", params=["one by one", "lockstep", "shapes"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Decode in each of the three ways, however few the messages are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "FEW", sections.FEW if request.param == "one by one" else 0)
        patch.setattr(shaped_rows, "FEW", 0 if request.param == "shapes" else 99)
        patch.setattr(shaped_rows, "_FEWEST_ALIKE", 1)
        yield


def from_rabbitmq(offset: Any, **more: Any) -> Message:
    """Return a message with the annotations of RabbitMQ 4.3 in front (Q-6)."""
    annotations = {symbol("x-stream-offset"): offset, symbol("x-routing-key"): "q", symbol("x-exchange"): ""}
    return Message(body=b"body", inferred=True, annotations={**annotations, **more.pop("annotations", {})}, **more)


def decoded(places: Places, *messages: Message | bytes, names: list[str] = NAMES) -> dict[str, list[Any]]:
    return {name: column.to_pylist() for name, column in decode_columns(block(*messages), names, places=places).items()}


def test_golden_delivery_of_rabbitmq() -> None:
    """The bytes before the body are those of RabbitMQ 4.3.6 (Q-6)."""
    head = (
        b"\x00\x53\x70\xc0\x06\x05\x40\x40\x40\x41\x43"
        b"\x00\x53\x72\xc1\x39\x06\xa3\x0fx-stream-offset\x55\x07\xa3\x0dx-routing-key\xa1\x06shapes\xa3\x0ax-exchange\xa1\x00"
    )
    found = decoded(RABBITMQ.places, head + b"\x00\x53\x75\xa0\x02hi")
    assert found["offset"] == ["00000000000000000007"] and found["value"] == [b"hi"]
    assert found["timestamp"] == found["source_partition"] == found["key"] == [None]
    annotations = [("x-stream-offset", "7"), ("x-routing-key", "shapes"), ("x-exchange", "")]
    assert found["message_annotations"] == [annotations]


def test_offsets_of_any_size_become_20_digits() -> None:
    numbers = [0, 127, 128, 2**31, 2**63 - 1]
    found = decoded(RABBITMQ.places, *(from_rabbitmq(number) for number in numbers))
    assert found["offset"] == [f"{number:020d}" for number in numbers]
    assert decoded(RABBITMQ.places, Message(body="x"), names=["offset"])["offset"] == [None]


@pytest.mark.parametrize("wrong", ["7", ulong(7), int32(7), timestamp(7), True, -1])
def test_an_offset_of_another_type_is_refused(wrong: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="x-stream-offset"):
        decoded(RABBITMQ.places, from_rabbitmq(wrong), names=["offset"])


def test_timestamps_and_keys_of_each_dialect() -> None:
    instant = timestamp(1_700_000_000_123)
    time = datetime(2023, 11, 14, 22, 13, 20, 123_000, timezone.utc)
    received = from_rabbitmq(5, annotations={symbol("x-opt-rabbitmq-received-time"): instant}, group_id="g")
    found = decoded(RABBITMQ.places, received)
    assert found["timestamp"] == [time] and found["timestamp_ms"] == [1_700_000_000_123] and found["key"] == ["g"]
    keyed = [from_rabbitmq(6, annotations={symbol("x-key"): "k"}, group_id="g"), from_rabbitmq(7, group_id="g")]
    assert decoded(KEYED_RABBITMQ, *keyed)["key"] == ["k", "g"]
    hub = Message(
        body=b"body",
        inferred=True,
        annotations={
            symbol("x-opt-sequence-number"): 9,
            symbol("x-opt-offset"): "25789595200",
            symbol("x-opt-enqueued-time"): instant,
            symbol("x-opt-partition-key"): "p",
            symbol("iothub-enqueuedtime"): instant,
        },
    )
    found = decoded(EVENT_HUBS.places, hub)
    assert found["offset"] == ["00000000000000000009"] and found["timestamp"] == [time] and found["key"] == ["p"]
    assert ("x-opt-offset", "25789595200") in found["message_annotations"][0]


def test_no_dialect_reads_the_annotations_of_another() -> None:
    for places in (EVENT_STREAMS.places, EVENT_HUBS.places):
        assert decoded(places, from_rabbitmq(1), names=["offset"])["offset"] == [None]


ANNOTATION = st.sampled_from(["x-stream-offset", "x-opt-rabbitmq-received-time", "x-key", "x-other"])
VALUE = st.one_of(st.integers(-5, 2**40), st.text(max_size=3), st.none(), st.integers(0, 9).map(timestamp))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.dictionaries(ANNOTATION, VALUE, max_size=4), st.booleans()), min_size=1, max_size=6))
def test_many_messages_give_what_each_gives(content: list[tuple[dict[str, Any], bool]]) -> None:
    raws = [
        bytes(
            Message(body=b"x", inferred=True, annotations={symbol(k): v for k, v in each.items()}, durable=d).encode()
        )
        for each, d in content
    ]
    for names in (["offset"], NAMES):
        try:
            singly = [row_columns(raw, names, places=KEYED_RABBITMQ) for raw in raws]
        except RemoteProtocolError:
            with pytest.raises(RemoteProtocolError):
                decoded(KEYED_RABBITMQ, *raws, names=names)
        else:
            found = decoded(KEYED_RABBITMQ, *raws, names=names)
            texts = [None if row["offset"] is None else row["offset"].decode() for row in singly]
            assert found["offset"] == texts
            if names is NAMES:
                assert found["timestamp_ms"] == [row["timestamp_ms"] for row in singly]
                assert found["key"] == [None if row["key"] is None else row["key"].decode() for row in singly]


def test_keys_are_written_where_the_dialect_has_them() -> None:
    columns = {"value": pa.array([b"v"] * 2), "key": pa.array(["k", None]), "partition": pa.array(["0", "1"])}
    by_proton = []
    for places in (EVENT_STREAMS.places, RABBITMQ.places, KEYED_RABBITMQ, EVENT_HUBS.places):
        message = Message()
        message.decode(encode_columns(columns, places)[0].as_py())
        by_proton.append((message.annotations, message.instructions, message.group_id))
    assert by_proton == [
        ({"event-streams-group-key": "k"}, {"event-streams-target-partition": "0"}, None),
        (None, None, "k"),
        ({"x-key": "k"}, None, None),
        ({"x-opt-partition-key": "k"}, None, None),
    ]


def test_a_group_id_of_the_row_counts_more_than_its_key() -> None:
    properties = pa.array([{"group_id": "g"}, {"group_id": None}], pa.struct([("group_id", pa.string())]))
    columns = {"value": pa.array([b"v"] * 2), "key": pa.array(["k", "k"]), "properties": properties}
    rows = block(*(bytes(each) for each in encode_columns(columns, RABBITMQ.places).to_pylist()))
    assert decode_columns(rows, ["key"], places=RABBITMQ.places)["key"].to_pylist() == ["g", "k"]


def test_a_log_reads_the_keys_of_its_door() -> None:
    message = Message(body=b"x", inferred=True, annotations={symbol("x-opt-partition-key"): "p"})
    incoming = incoming_columns(block(message, message), places=EVENT_HUBS.places)
    assert incoming.group_key.to_pylist() == ["p", "p"] and not np.any(incoming.malformed)
    assert incoming_columns(block(message)).group_key.to_pylist() == [None]
