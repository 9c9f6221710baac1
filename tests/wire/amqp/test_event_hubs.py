"""Messages on their way through the Event Hubs door, read back by proton's decoder: keys, annotations, and the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import proton
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.event_batches import split_batch
from spark_streams.wire.amqp.event_hubs import Newest, outgoing_pieces, runtime_metrics, with_group_keys
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP
from spark_streams.wire.columnar.interleave import Ranges, interleave
from tests.wire.amqp.messages import by_proton

GROUP, PARTITION = "event-streams-group-key", "x-opt-partition-key"
SEQUENCE, OFFSET, TIME = "x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time"

values = st.one_of(st.text(max_size=300), st.integers(-5, 1 << 40), st.binary(max_size=9), st.none(), st.booleans())
keys = st.one_of(st.sampled_from([GROUP, PARTITION, SEQUENCE, OFFSET, TIME]), st.text("abc-x", min_size=1, max_size=9))
annotations = st.one_of(st.none(), st.dictionaries(keys.map(proton.symbol), values, max_size=5))
messages = st.builds(
    lambda body, notes, subject: proton.Message(body, annotations=notes, subject=subject),
    st.one_of(st.binary(max_size=20), st.text(max_size=400)),
    annotations,
    st.one_of(st.none(), st.text(max_size=5)),
)


def long_descriptor(raw: bytes) -> bytes:
    """Return a message whose first section's descriptor is an ulong of nine bytes (AMQP 1.0 part 1 §1.6.10)."""
    return b"\x00\x80" + bytes(7) + raw[2:]


def decoded(raw: bytes) -> proton.Message:
    message = proton.Message()
    message.decode(raw)
    return message


def placed(raws: list[bytes]) -> tuple[bytes, Any, Any]:
    """Return messages one after the other, with a byte in front of each that is none of theirs."""
    starts, buffer = [], bytearray()
    for raw in raws:
        buffer += b"\x00"
        starts.append(len(buffer))
        buffer += raw
    places = np.array(starts, np.int64)
    return bytes(buffer), places, places + np.array([len(raw) for raw in raws], np.int64)


def texts(joined: Any, pieces: tuple[Ranges, ...]) -> list[bytes]:
    ends = np.cumsum(sum(piece.ends - piece.starts for piece in pieces))
    raw = bytes(joined)
    return [raw[start:end] for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]


def same_otherwise(left: proton.Message, right: proton.Message) -> None:
    assert (left.body, left.subject, left.properties) == (right.body, right.subject, right.properties)


@given(st.lists(st.tuples(messages, st.booleans(), st.sampled_from([NO_TIMESTAMP, -5, 1_700_000_000_000])), min_size=1))
@example([(proton.Message(b"x", annotations={proton.symbol(GROUP): "k"}), True, 7)] * 40)
def test_what_goes_out_has_the_logs_annotations_and_its_own(sent: list[tuple[proton.Message, bool, int]]) -> None:
    raws = [long_descriptor(by_proton(message)) if long else by_proton(message) for message, long, _ in sent]
    buffer, starts, ends = placed(raws)
    numbers = np.arange(len(sent), dtype=np.int64) * 1_000_000_007
    times = np.array([time for _, _, time in sent], np.int64)
    pieces = outgoing_pieces(buffer, starts, ends, numbers, times)
    for (message, _, time), number, raw in zip(sent, numbers.tolist(), texts(interleave(*pieces), pieces), strict=True):
        got = decoded(raw)
        same_otherwise(got, message)
        stored = dict(message.annotations or {})
        assigned = {SEQUENCE: number, OFFSET: f"{number:020d}"}
        if time != NO_TIMESTAMP:
            assigned[TIME] = time
        kept = {key: value for key, value in stored.items() if key not in (SEQUENCE, OFFSET, TIME)}
        if GROUP in kept:
            kept[PARTITION] = kept.pop(GROUP)
        assert got.annotations == {**kept, **assigned}
        assert type(got.annotations[SEQUENCE]) is int and type(got.annotations[OFFSET]) is str
        assert list(got.annotations)[: len(assigned)] == list(assigned), "the log's own come first"


@given(st.lists(st.tuples(messages, st.booleans()), min_size=1))
@example([(proton.Message(b"x", annotations={proton.symbol(PARTITION): "k"}), False)] * 40)
def test_partition_keys_are_stored_as_group_keys(sent: list[tuple[proton.Message, bool]]) -> None:
    raws = [long_descriptor(by_proton(message)) if long else by_proton(message) for message, long in sent]
    buffer, starts, ends = placed(raws)
    block = with_group_keys(MessageBlock(np.frombuffer(buffer, np.uint8), starts, ends))
    stored = bytes(block.buffer)
    for (message, _), raw, start, end in zip(sent, raws, block.starts, block.ends, strict=True):
        got = decoded(stored[int(start) : int(end)])
        same_otherwise(got, message)
        before = dict(message.annotations or {})
        if PARTITION in before:
            before.pop(GROUP, None)
            before[GROUP] = before.pop(PARTITION)
            assert got.annotations == before
        else:
            assert stored[int(start) : int(end)] == raw, "what has no key is as it was"


@given(st.lists(st.one_of(st.binary(max_size=300), st.just(b"same size")), min_size=1, max_size=50), st.booleans())
@example([b"0123456789"] * 40, True)
@example([b"0" * 300] * 40, False)
def test_a_batch_is_split_into_its_events(events: list[bytes], keyed: bool) -> None:
    """By the specification's own words for a data section (part 3 §3.2.6): 0x75, vbin8 or vbin32."""
    sections = [
        b"\x00\x53\x75" + (b"\xa0" + bytes([len(e)]) if len(e) < 256 else b"\xb0" + len(e).to_bytes(4, "big")) + e
        for e in events
    ]
    envelope = by_proton(proton.Message(annotations={proton.symbol(PARTITION): "k"})) if keyed else b""
    envelope = envelope[: envelope.index(b"\x00\x53\x77")] if b"\x00\x53\x77" in envelope else envelope
    raw = envelope + b"".join(sections)
    batch = split_batch(raw)
    assert batch.key == ("k" if keyed else None)
    assert [raw[start:end] for start, end in zip(batch.starts, batch.ends, strict=True)] == events


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\x53\x75",
        b"\x00\x53\x75\xa0\x05abc",
        b"\x00\x53\x75\xa1\x01a",
        b"\x00\x53\x77\xa1\x01a",
        b"\x00\x53\x75\xa0\x01a\x00\x53\x77\xa1\x01a",
        b"\x00\x53\x72\xc1\x03\x02\xa3\x01",
        b"\xff\xff",
    ],
)
def test_what_is_no_batch(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        split_batch(raw)


def test_runtime_metrics_are_delivery_annotations() -> None:
    message = decoded(runtime_metrics(Newest(41, 1_700_000_000_000), 1_700_000_000_500) + b"\x00\x53\x75\xa0\x00")
    assert message.instructions == {
        "last_enqueued_sequence_number": 41,
        "last_enqueued_offset": f"{41:020d}",
        "last_enqueued_time_utc": proton.timestamp(1_700_000_000_000),
        "runtime_info_retrieval_time_utc": proton.timestamp(1_700_000_000_500),
    }
