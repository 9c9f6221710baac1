"""Delivery annotations from a template: bytes that were made by hand, and what qpid-proton reads."""

from __future__ import annotations

import numpy as np
import pytest
from proton import Data, Message, symbol, timestamp

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP, delivery_annotations

BODY = b"\x00\x53\x75\xa0\x01x"


def test_the_bytes() -> None:
    ((rows, sections),) = delivery_annotations(np.array([1]), np.array([1585672841000]), None)
    # The bytes in golden/specification.hex with an offset of 20 digits instead of 16: three lengths grow by 4.
    expected = (
        "005371c14f04a3146576656e742d73747265616d732d6f6666736574a314" + "30" * 19 + "31"
        "a3176576656e742d73747265616d732d74696d657374616d70830000017131776728"
    )
    assert rows.tolist() == [0]
    assert sections.dtype == np.uint8 and sections.flags.c_contiguous
    assert sections.tobytes().hex() == expected


def test_what_proton_reads() -> None:
    offsets = np.array([0, 9, 10, 99_999, 10**18, 2**63 - 1])
    timestamps = np.array([0, -1, 2**63 - 1, -(2**63) + 1, 5, -386380800000])
    ((rows, sections),) = delivery_annotations(offsets, timestamps, "7")
    assert rows.tolist() == list(range(6))
    shown = []
    for i in range(6):
        message = Message()
        message.decode(sections[i].tobytes() + BODY)
        assert message.instructions == {
            symbol("event-streams-offset"): symbol(f"{offsets[i]:020d}"),
            symbol("event-streams-timestamp"): timestamp(int(timestamps[i])),
            symbol("event-streams-source-partition"): symbol("7"),
        }
        kinds = Data()
        kinds.decode(sections[i].tobytes())
        shown.append(message.instructions["event-streams-offset"])
        assert type(message.instructions["event-streams-timestamp"]) is timestamp
        assert type(message.instructions["event-streams-offset"]) is symbol
    assert shown == sorted(shown)


def test_events_without_timestamp_are_a_group_of_their_own() -> None:
    offsets, timestamps = np.arange(5), np.array([NO_TIMESTAMP, 7, NO_TIMESTAMP, -1, 8])
    groups = delivery_annotations(offsets, timestamps, "0")
    assert [rows.tolist() for rows, _ in groups] == [[1, 3, 4], [0, 2]]
    raws: list[bytes] = [b""] * 5
    for rows, sections in groups:
        for row, section in zip(rows.tolist(), sections, strict=True):
            raws[row] = section.tobytes() + BODY
    ends = np.cumsum([len(raw) for raw in raws])
    block = MessageBlock(b"".join(raws), ends - np.array([len(raw) for raw in raws]), ends)
    columns = decode_columns(block, ["offset", "timestamp_ms", "source_partition", "value"])
    assert columns["timestamp_ms"].to_pylist() == [None, 7, None, -1, 8]
    assert columns["offset"].to_pylist() == [f"{n:020d}" for n in range(5)]
    assert columns["source_partition"].to_pylist() == ["0"] * 5
    assert columns["value"].to_pylist() == [b"x"] * 5
    (only,) = delivery_annotations(offsets[:1], timestamps[:1], None)
    assert only[0].tolist() == [0]


def test_edges() -> None:
    assert delivery_annotations(np.zeros(0, np.int64), np.zeros(0, np.int64), "0") == []
    ((_, sections),) = delivery_annotations(np.array([5]), np.array([6]), "p" * 300)
    message = Message()
    message.decode(sections[0].tobytes() + BODY)
    assert message.instructions["event-streams-source-partition"] == "p" * 300
    assert message.instructions["event-streams-timestamp"] == 6
    with pytest.raises(LocalProtocolError, match="offset -1 is negative"):
        delivery_annotations(np.array([3, -1]), np.array([0, 0]), None)
    with pytest.raises(LocalProtocolError):
        delivery_annotations(np.array([3]), np.array([0]), "é")
