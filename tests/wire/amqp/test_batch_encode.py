"""Batches of Event Hubs, written in columns: as Microsoft's SDK encodes them, and as it decodes them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import proton
import pyarrow as pa
import pytest
from azure.eventhub import EventData, EventDataBatch
from azure.eventhub._pyamqp._decode import decode_payload
from azure.eventhub._pyamqp._encode import encode_payload
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.wire.amqp.batch_encode import Batches, join_batches
from spark_streams.wire.amqp.columns.encode import encode_columns
from spark_streams.wire.amqp.dialects import EVENT_HUBS
from spark_streams.wire.amqp.event_batches import split_batch
from tests.examples import examples

PLACES = EVENT_HUBS.places
DURABLE = bytes.fromhex("00 53 70 c0 07 05 56 01 40 40 40 40")
"""The header that the SDK writes in front of what has a key."""


def sdk_batch(key: str | None, *bodies: bytes) -> tuple[list[bytes], bytes]:
    """Return events that the SDK has encoded, and its batch of them."""
    batch = EventDataBatch(1 << 20, partition_key=key)
    for body in bodies:
        batch.add(EventData(body))
    return [bytes(each) for each in batch._message.data], bytes(encode_payload(bytearray(), batch._message))


def joined(payloads: list[bytes], most_bytes: int = 1 << 18) -> Batches:
    batches = join_batches(pa.array(payloads, pa.large_binary()), PLACES, most_bytes)
    assert batches is not None
    return batches


def event(key: Any, body: bytes) -> bytes:
    annotations = {} if key is None else {proton.symbol("x-opt-partition-key"): key}
    return bytes(proton.Message(body=body, inferred=True, annotations=annotations).encode())


@pytest.mark.parametrize("key", [None, "customer-7", "ключ", "k" * 255, "k" * 300], ids=lambda key: str(key)[:10])
@pytest.mark.parametrize("size", [0, 100, 1_000])
def test_a_batch_is_the_one_that_the_sdk_encodes(key: str | None, size: int) -> None:
    events, batch = sdk_batch(key, *(b"%02d" % n + b"x" * size for n in range(20)))
    ours = joined(events)
    assert ours.batched.tolist() == [True]
    assert ours.payloads[0].as_py() == batch.removeprefix(DURABLE)


def test_events_of_several_keys_and_of_none() -> None:
    keys = ["a", None, "b", "a", None, "c", "b", "a"]
    payloads = [event(key, b"%d" % n) for n, key in enumerate(keys)]
    ours = joined(payloads)
    assert ours.rows.tolist() == [0, 3, 7, 1, 4, 2, 6, 5]
    assert ours.bounds.tolist() == [0, 3, 5, 7, 8]
    assert ours.batched.tolist() == [True, True, True, False]
    decoded = [decode_payload(memoryview(each.as_py())) for each in ours.payloads]
    annotation = b"x-opt-partition-key"
    assert [(each.message_annotations or {}).get(annotation) for each in decoded] == [b"a", None, b"b", b"c"]
    assert [bytes(each) for each in decoded[0].data] == [payloads[row] for row in (0, 3, 7)]
    assert ours.payloads[3].as_py() == payloads[5]


def test_where_no_two_go_together_there_are_no_batches() -> None:
    different = pa.array([event(f"k{n}", b"x") for n in range(50)], pa.large_binary())
    large = pa.array([event(None, b"x" * 600)] * 50, pa.large_binary())
    for payloads in (different, large, large.slice(3, 1), large.slice(3, 0)):
        assert join_batches(payloads, PLACES, 1_000) is None


def test_few_events_stay_plain_messages_in_the_order_of_their_key() -> None:
    keys = ["a", "b", "a", "b", "a", "a", None, None]
    payloads = [event(key, b"%d" % n) for n, key in enumerate(keys)]
    ours = join_batches(pa.array(payloads, pa.large_binary()), PLACES, 1 << 18, fewest=3)
    assert ours is not None
    assert ours.rows.tolist() == [0, 2, 4, 5, 1, 3, 6, 7]
    assert ours.bounds.tolist() == [0, 4, 5, 6, 7, 8]
    assert ours.batched.tolist() == [True, False, False, False, False]
    assert ours.payloads.to_pylist()[1:] == [payloads[row] for row in (1, 3, 6, 7)]
    assert join_batches(pa.array(payloads, pa.large_binary()), PLACES, 1 << 18, fewest=5) is None


def test_what_is_no_message_stays_alone_in_its_place() -> None:
    payloads = [event(None, b"%d" % n) for n in range(40)]
    payloads[17], payloads[30] = b"\x00\x53\x99", b""
    ours = joined(payloads)
    assert ours.rows.tolist() == list(range(40))
    assert ours.bounds.tolist() == [0, 17, 18, 30, 31, 40]
    assert ours.payloads[1].as_py() == payloads[17] and ours.payloads[3].as_py() == b""


def test_a_key_that_is_a_symbol_is_the_same_key() -> None:
    ours = joined([event("a", b"1"), event(proton.symbol("a"), b"2"), event("a", b"3")])
    assert ours.bounds.tolist() == [0, 3]
    assert split_batch(ours.payloads[0].as_py()).key == "a"


def test_a_slice_of_what_the_client_encodes() -> None:
    values = pa.array([b"%d" % n for n in range(1_000)], pa.binary())
    payloads = encode_columns({"value": values, "key": pa.array(["k"] * 1_000)}, PLACES).slice(900, 50)
    ours = joined(payloads.to_pylist())
    sliced = join_batches(payloads, PLACES, 1 << 18)
    assert sliced is not None and sliced.payloads.equals(ours.payloads)
    assert len(decode_payload(memoryview(ours.payloads[0].as_py())).data) == 50


KEYS = st.sampled_from([None, None, "", "a", "b", "ключ", "long " * 60])
EVENTS = st.lists(st.tuples(KEYS, st.integers(0, 400)), max_size=60)


@settings(max_examples=examples(300))
@given(EVENTS, st.integers(0, 3_000), st.booleans(), st.sampled_from([2, 2, 3, 8]))
def test_grouping_keeps_everything_and_the_order_of_each_key(
    events: list[tuple[str | None, int]], most_bytes: int, broken: bool, fewest: int
) -> None:
    payloads = [event(key, b"%d:" % n + b"x" * size) for n, (key, size) in enumerate(events)]
    if broken and payloads:
        middle = len(payloads) // 2
        payloads[middle], events[middle] = b"\x00\x53", (None, 0)  # it has no key that could be read
    ours = join_batches(pa.array(payloads, pa.large_binary()), PLACES, most_bytes, fewest)
    if ours is None:
        return
    assert sorted(ours.rows.tolist()) == list(range(len(payloads)))
    sent: dict[str | None, list[int]] = {}
    deliveries = list(
        zip(ours.payloads.to_pylist(), ours.batched.tolist(), pairwise(ours.bounds.tolist()), strict=True)
    )
    for raw, batched, (first, stop) in deliveries:
        rows = ours.rows[first:stop].tolist()
        if not batched:
            assert [raw] == [payloads[row] for row in rows] and len(rows) == 1
        else:
            assert len(raw) <= most_bytes and len(rows) >= fewest
            parts = split_batch(raw)
            assert {events[row][0] for row in rows} == {parts.key}
            found = [raw[start:end] for start, end in zip(parts.starts, parts.ends, strict=True)]
            assert found == [payloads[row] for row in rows]
        for row in rows:
            sent.setdefault(events[row][0], []).append(row)
    assert all(rows == sorted(rows) for rows in sent.values())


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 400), min_size=2, max_size=80), st.integers(500, 3_000))
def test_a_batch_is_as_large_as_its_limit_allows(sizes: list[int], most_bytes: int) -> None:
    payloads = [event(None, b"x" * size) for size in sizes]
    ours = join_batches(pa.array(payloads, pa.large_binary()), PLACES, most_bytes)
    lengths = np.array([len(each) for each in payloads])
    head = 5 if lengths.max() < 256 else 8
    if ours is None:
        assert all(a + b + 2 * head > most_bytes for a, b in pairwise(lengths))
        return
    for first, stop in pairwise(ours.bounds.tolist()):
        if stop < len(payloads):
            assert int((lengths[first : stop + 1] + head).sum()) > most_bytes
