"""What the encoder sends, leaves out and refuses for peers of each dialect, as qpid-proton reads it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proton import Message, symbol

from spark_streams.errors import SchemaError
from spark_streams.wire.amqp.columns.encode import encode_columns
from spark_streams.wire.amqp.dialects import EVENT_HUBS, EVENT_STREAMS, RABBITMQ, Dialect
from spark_streams.wire.amqp.dialects.rabbitmq import keyed
from tests.examples import examples

TEXT_MAP = pa.map_(pa.string(), pa.string())
GROUP_KEY = "event-streams-group-key"
RAW = bytes(Message(body=b"raw", inferred=True, annotations={symbol("own"): "1"}).encode())


def sent(dialect: Dialect, **columns: Any) -> list[Message]:
    """The messages of rows; a column that begins with a list of pairs is a map."""
    arrays = {
        name: pa.array(column, TEXT_MAP) if name in ("message_annotations", "application_properties") else column
        for name, column in columns.items()
    }
    n = max(len(column) for column in arrays.values())
    arrays.setdefault("value", [b"x"] * n)
    encoded = encode_columns(
        {k: v if isinstance(v, pa.Array) else pa.array(v) for k, v in arrays.items()}, dialect.places
    )
    messages = []
    for each in encoded.to_pylist():
        messages.append(Message())
        messages[-1].decode(each)
    return messages


def annotations(messages: list[Message]) -> list[dict[str, Any] | None]:
    return [None if m.annotations is None else {str(k): v for k, v in m.annotations.items()} for m in messages]


def test_a_row_for_rabbitmq_is_what_proton_writes() -> None:
    columns = {
        "value": pa.array([b"body"]),
        "key": pa.array(["customer-7"]),
        "partition": pa.array(["orders-0"]),
        "filter_value": pa.array(["emea"]),
        "to": pa.array(["/exchanges/x/a.b"]),
        "message_annotations": pa.array([[("x-opt-a", "b")]], TEXT_MAP),
    }
    theirs = Message(
        body=b"body", inferred=True, address="/exchanges/x/a.b", group_id="customer-7",
        annotations={symbol("x-stream-filter-value"): "emea", symbol("x-opt-a"): "b"},
    )  # fmt: skip
    (ours,) = encode_columns(columns, RABBITMQ.places).to_pylist()
    expected = bytes(theirs.encode())
    first, end = b"\xa3\x15x-stream-filter-value", b"\x00\x53\x73"  # proton's heads of maps have four bytes
    assert ours[ours.index(first) : ours.index(end)] == expected[expected.index(first) : expected.index(end)]
    (message,) = sent(RABBITMQ, **columns)
    assert message.instructions is None
    for part in ("annotations", "address", "group_id", "body", "subject"):
        assert getattr(message, part) == getattr(theirs, part), part


def test_a_named_annotation_has_the_key_and_group_id_does_not() -> None:
    (message,) = sent(keyed("x-key"), key=["k"], message_annotations=[[("x-key", "old"), (GROUP_KEY, "k")]])
    assert annotations([message]) == [{"x-key": "k"}] and message.group_id is None


def test_what_tells_where_a_row_came_from_is_not_sent() -> None:
    origin = {
        RABBITMQ: ["x-stream-offset", "x-routing-key", "x-exchange", "x-opt-rabbitmq-received-time"],
        EVENT_HUBS: ["x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time"],
        EVENT_STREAMS: [],
    }
    everything = [(name, "1") for names in origin.values() for name in names]
    for dialect, names in origin.items():
        found = annotations(sent(dialect, message_annotations=[everything, None, [], [("x-own", "2")]]))
        assert found == [{name: "1" for name, _ in everything if name not in names}, None, {}, {"x-own": "2"}]


def test_a_key_of_another_dialect_goes_beside_no_key() -> None:
    maps = [[(GROUP_KEY, "k"), ("x-a", "1")]]
    assert annotations(sent(RABBITMQ, key=["k"], message_annotations=maps)) == [{"x-a": "1"}]
    with pytest.raises(SchemaError, match=f"key '{GROUP_KEY}' does not begin with 'x-'"):
        sent(RABBITMQ, key=pa.array([None], pa.string()), message_annotations=maps)


def test_an_annotation_that_the_peer_does_not_take_is_an_error() -> None:
    maps = [[("x-a", "1")], None, [("x-b", "1"), ("own", "2")]]
    with pytest.raises(SchemaError, match=r"'message_annotations', row 2: key 'own' .* rename it, put it into column"):
        sent(RABBITMQ, message_annotations=maps)
    for dialect in (EVENT_STREAMS, EVENT_HUBS):
        assert annotations(sent(dialect, message_annotations=maps))[2] == {"x-b": "1", "own": "2"}
    assert len(sent(RABBITMQ, message_annotations=pa.array(maps, TEXT_MAP).slice(0, 2))) == 2


def test_of_whole_messages_no_map_is_looked_at() -> None:
    maps = [[("own", "1")], [("x-a", "1")]]
    found = sent(
        RABBITMQ, message=pa.array([RAW, None], pa.binary()), message_annotations=maps, filter_value=["f", "g"]
    )
    assert annotations(found) == [{"own": "1"}, {"x-stream-filter-value": "g", "x-a": "1"}]


def test_nulls_in_maps_are_sent_where_they_do_no_harm() -> None:
    maps = [[("x-a", None), ("x-b", "1")], [("x-a", None)], None]
    for dialect, there in ((RABBITMQ, {}), (EVENT_STREAMS, {"x-a": None}), (EVENT_HUBS, {"x-a": None})):
        found = sent(dialect, message_annotations=maps, application_properties=maps)
        assert annotations(found) == [{**there, "x-b": "1"}, there, None]
        assert [m.properties for m in found] == [{**there, "x-b": "1"}, there, None]


def test_a_filter_value_wins_over_the_annotation_of_that_name() -> None:
    name = "x-stream-filter-value"
    maps = [[(name, "old"), ("x-a", "1")], [(name, "old")], None, None]
    found = annotations(sent(RABBITMQ, filter_value=["new", None, "new", None], message_annotations=maps))
    assert found == [{name: "new", "x-a": "1"}, {name: "old"}, {name: "new"}, None]
    assert annotations(sent(EVENT_STREAMS, filter_value=["new"])) == [None]


def test_column_to_fills_only_what_is_null() -> None:
    properties = pa.array([{"to": "own"}, {"to": None}, None], pa.struct([("to", pa.string())]))
    assert [m.address for m in sent(RABBITMQ, to=["a", "b", None], properties=properties)] == ["own", "b", None]


KEYS = st.sampled_from(["x-a", "x-stream-offset", "x-b", GROUP_KEY, "x-routing-key", "x-key"])
TEXTS = st.none() | st.sampled_from(["", "é", "k"])
MAPS = st.none() | st.dictionaries(KEYS, TEXTS, max_size=4).map(lambda pairs: list(pairs.items()))


@settings(max_examples=examples(60))
@given(rows=st.lists(st.tuples(st.text(max_size=2), TEXTS, MAPS), min_size=1, max_size=8), skipped=st.integers(0, 3))
def test_any_rows(rows: list[tuple[str, str | None, list[tuple[str, str | None]] | None]], skipped: int) -> None:
    keys = pa.array([key for key, _, _ in rows])
    filters = pa.array([text for _, text, _ in rows], pa.string())
    maps = pa.array([pairs for _, _, pairs in rows], TEXT_MAP)
    columns = {"key": keys, "filter_value": filters, "message_annotations": maps}
    expected = []
    for key, text, pairs in rows:
        gone = {"x-stream-offset", "x-routing-key", GROUP_KEY}
        wanted = {name: value for name, value in pairs or () if name not in gone and value is not None}
        wanted |= {"x-key": key} | ({} if text is None else {"x-stream-filter-value": text})
        expected.append(wanted)
    first = min(skipped, len(rows) - 1)
    cut = {name: column.slice(first) for name, column in columns.items()}
    assert annotations(sent(keyed("x-key"), **cut)) == expected[first:]
