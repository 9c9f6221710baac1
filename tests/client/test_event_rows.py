"""Both formats make the same rows of the same bytes, whatever columns are asked for; what cannot be read is told."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spark_streams.client import AmqpClient, RabbitClient, RangeRead
from spark_streams.client.amqp.row_decoder import RowDecoder as AmqpRows
from spark_streams.client.rabbitmq.pushdown import PushedFilter
from spark_streams.client.rabbitmq.row_decoder import RowDecoder as RabbitRows
from spark_streams.endpoint import RABBITMQ_SCHEMES, parse_url
from spark_streams.errors import RemoteProtocolError
from spark_streams.filters import parse
from spark_streams.log import ReferenceLog
from spark_streams.offsets import format_offset
from spark_streams.position import EARLIEST, After
from spark_streams.server import AmqpConfig, RabbitConfig, ServerThread
from spark_streams.wire.amqp.columns.block import MessageBlock, foreign
from spark_streams.wire.rabbitmq.chunk import ChunkHeader, ChunkRecords
from tests.examples import examples
from tests.wire.amqp.columns.test_columns import (
    MESSAGE_COLUMNS,
    block,
    common_messages,
    counted,
    damaged,
    plain,
    section,
    symbol,
)

GOOD = b"\x00\x53\x75\xa0\x04good"
EU = section(0x74, counted(0xC1, 0xD1, [b"\xa1\x06region", b"\xa1\x02eu"], False))
BIG = b"\x00\x53\x74\xc1\x05\x02\xa1\x00\x56\x02"
"""Application properties with a boolean that is none."""
Rows = tuple[list[dict[str, Any]], str]
"""The rows that came, and the error that came then."""


def with_offset(number: int) -> bytes:
    pairs = [symbol("event-streams-offset"), symbol(format_offset(number)), symbol("event-streams-source-partition")]
    return section(0x71, counted(0xC1, 0xD1, [*pairs, symbol("s")], False))


def at(milliseconds: int) -> bytes:
    """A message with this creation-time."""
    return section(0x73, counted(0xC0, 0xD0, [b"\x40"] * 9 + [struct.pack(">Bq", 0x83, milliseconds)], False)) + GOOD


def listed(batches: Iterator[pa.RecordBatch]) -> Rows:
    rows: list[dict[str, Any]] = []
    try:
        for batch in batches:
            columns = {name: plain(batch.column(name)) for name in batch.schema.names}
            rows += ({name: column[i] for name, column in columns.items()} for i in range(batch.num_rows))
    except RemoteProtocolError as fault:
        return rows, str(fault)
    return rows, ""


def by_rabbitmq(read: RangeRead, raws: Sequence[bytes]) -> Rows:
    stored = block(list(raws))
    header = ChunkHeader(*([0] * len(ChunkHeader.__dataclass_fields__)))
    records = ChunkRecords(header, np.arange(len(raws)), stored.buffer, stored.starts, stored.ends)
    pushed = PushedFilter(residual=read.filter)
    return listed(RabbitRows(read, pushed, 99, 1 << 20).batches([records]))


def by_amqp(read: RangeRead, raws: Sequence[bytes]) -> Rows:
    def batches() -> Iterator[pa.RecordBatch]:
        decoder = AmqpRows(read, EARLIEST, read.filter)
        found = decoder.decode(block([with_offset(number) + raw for number, raw in enumerate(raws)]))
        yield found.batch
        if found.fault is not None:
            raise found.fault

    return listed(batches())


def read_of(raws: Sequence[bytes], columns: Sequence[str], condition: str | None = None, **how: Any) -> RangeRead:
    end = format_offset(len(raws) - 1)
    return RangeRead("s", "s", EARLIEST, end, tuple(columns), filter=condition and parse(condition), **how)


def both(raws: Sequence[bytes], columns: Sequence[str], condition: str | None = None, **how: Any) -> Rows:
    """Return the rows of messages, which are the same in both formats."""
    read = read_of(raws, columns, condition, **how)
    found = by_rabbitmq(read, raws)
    rows, fault = by_amqp(read, raws)
    assert rows == found[0]
    assert re.sub(r"byte \d+", "byte", fault) == re.sub(r"byte \d+", "byte", found[1])  # behind other annotations
    return found


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.one_of(common_messages.filter(lambda raw: raw[2:3] not in (b"\x70", b"\x71")), damaged()), min_size=1),
    st.sets(st.sampled_from([*MESSAGE_COLUMNS, "offset"]), min_size=1),
    st.sampled_from([None, "region = 'eu'", "event_time >= 0", "key IS NULL", "properties.subject > ''"]),
)
def test_both_formats_agree_whatever_is_asked_for(raws: list[bytes], names: set[str], condition: str | None) -> None:
    assume(not foreign(block(raws)).any() and not any(raw[2:3] in (b"\x70", b"\x71") for raw in raws))
    rows, fault = both(raws, sorted(names), condition)
    assert fault or condition or len(rows) == len(raws)


@pytest.mark.parametrize("columns", [("value",), ("offset", "value"), MESSAGE_COLUMNS])
def test_symbols_beyond_ascii_change_no_other_cell(columns: Sequence[str]) -> None:
    fields = section(0x73, counted(0xC0, 0xD0, [b"\x40"] * 6 + [b"\xa3\x05gr\xf6\xdfe", b"\xa3\x02\xc3\xa9"], False))
    # A content type in Latin-1, as rhea 3.0.5 writes it: those who ask for properties cannot read it.
    sized = section(0x72, counted(0xC1, 0xD1, [b"\xa3\x08x-gr\xc3\xb6\xc3\x9f", b"\xa1\x01L"], False)) + EU + GOOD
    rows, fault = both([GOOD, sized, EU + GOOD], columns)
    assert (fault, [row["value"] for row in rows]) == ("", [b"good"] * 3)
    if "message_annotations" in columns:
        assert rows[1]["message_annotations"] == [("x-größ", "L")]
    rows, fault = both([GOOD, sized, EU + GOOD], columns, "region = 'eu'")
    assert len(rows) == 2 and not fault
    _, fault = both([GOOD, fields + GOOD], columns)
    assert ("not UTF-8" in fault) is ("properties" in columns)


@pytest.mark.parametrize(
    ("broken", "needs", "says"),
    [
        (b"\x00\x53\x77\x73\x00\x11\x00\x00", "value", "amqp-value section: AMQP char: 0x00110000"),
        (GOOD + b"\xff\xfe\xfd", "value", "message at byte 9: 0xff, expected a section"),
        (GOOD + b"\x00\x53\x77\xa1\x01b", "value", "amqp-value section after the data section"),
        (BIG + GOOD, "application_properties", "application-properties section: AMQP boolean: 0x02"),
    ],
)
def test_a_broken_part_fails_what_needs_it_and_says_where(broken: bytes, needs: str, says: str) -> None:
    raws = [GOOD, broken, GOOD]
    others = [name for name in MESSAGE_COLUMNS if name != needs]
    rows, fault = both(raws, ["offset", *others])
    assert (len(rows), fault, rows[1]["message"]) == (3, "", broken)
    rows, fault = both(raws, ["offset", needs, *others])
    assert [row["offset"] for row in rows] == [format_offset(0)]
    place = f"stream 's' partition 's' offset '{format_offset(1)}': "
    assert fault.startswith(place) and says in fault
    assert (
        f'startingOffsets {{"s": {{"after": "{format_offset(1)}"}}}}; commands: --from after:{format_offset(1)}'
        in fault
    )
    assert both(raws, [needs], f"offset <> '{format_offset(1)}'") == both([GOOD, GOOD], [needs])
    reader = {"value": "body_size > 9", "application_properties": "region = 'eu'"}[needs]
    assert says in both(raws, ["offset"], reader)[1]


def test_what_holds_nothing_is_null_and_what_is_empty_is_empty() -> None:
    nothing = [b"", b"\x00\x53\x75\x40", b"\x00\x53\x77\x40", section(0x73, b"\x45")]
    empty = [b"\x00\x53\x75\xa0\x00", b"\x00\x53\x77\xa1\x00", b"\x00\x53\x75\x40\x00\x53\x75\xa0\x00"]
    text = b"\x00\x53\x77\xa1\x04null"
    for times in (1, 5):  # few messages are decoded one by one
        rows, fault = both([*nothing, *empty, text] * times, ["value"])
        assert [row["value"] for row in rows] == [None, None, None, None, b"", b"", b"", b"null"] * times
        assert not fault
    assert len(both([*nothing, *empty], ["offset"], "body_size IS NULL")[0]) == 4
    assert len(both([*nothing, *empty], ["offset"], "body_size = 0")[0]) == 3


INSTANTS = [1_700_000_000, 1_700_000_000_000, 1_700_000_000_000_000, 1_700_000_000_000_000_000, 138_000_000_000_000_000]
INSTANTS += [2**63 - 1, -1, -(2**63)]
FAR = [ms for ms in INSTANTS if abs(ms) > 9_223_372_036_854_775]


@pytest.mark.parametrize("ms", INSTANTS)
def test_creation_times_of_any_size(ms: int) -> None:
    raws = [GOOD, at(ms), at(5)]
    assert both(raws, ["value"]) == ([{"value": b"good"}] * 3, "")
    passing = [offset for offset, time in ((1, ms), (2, 5)) if time >= 5]
    rows, fault = both(raws, ["offset"], "event_time >= 5")
    assert ([int(row["offset"]) for row in rows], fault) == (passing, "")
    assert len(both(raws, ["offset"], f"properties.creation_time = {ms}")[0]) == 1
    rows, fault = both(raws, ["properties", "offset"], timestamp_overflow="null")
    times = [row["properties"] and row["properties"]["creation_time"] for row in rows]
    assert times == [None, None if ms in FAR else ms * 1_000, 5_000]
    rows, fault = both(raws, ["properties", "offset"])
    if ms not in FAR:
        assert len(rows) == 3
        return
    assert [int(row["offset"]) for row in rows] == [0]
    assert f"partition 's' offset '{format_offset(1)}': property creation-time: {ms} ms does not fit" in fault
    assert "set option 'timestampOverflow' to 'null'" in fault
    rows, fault = both(raws, ["properties", "offset"], "properties.creation_time = 5")
    assert ([int(row["offset"]) for row in rows], fault) == ([2], "")


CLIENTS = {
    "rabbitmq-stream-js-client 1.0.0, a key of annotations as a string": (
        "005372d10000000c00000002a103782d61a10176005375a00178",
        {"message_annotations": [("x-a", "v")], "value": b"x"},
    ),
    "rabbitmq-stream-js-client 1.0.0, a property that is 0": (
        "005374d10000000800000002a1017040005375a00178",
        {"application_properties": [("p", None)], "value": b"x"},
    ),
    "rhea 3.0.5, the BigInt 10": (
        "00537345005374d10000001000000002a10170d10000000400000000005375a00178",  # behind its header
        {"application_properties": [("p", "{}")], "value": b"x"},
    ),
    "rhea 3.0.5, two data sections": ("005375a0026162005375a0026364", {"value": b"abcd"}),
}
"""What clients write (``findings/``), and the cells of it."""


@pytest.mark.parametrize("client", CLIENTS)
def test_what_clients_write_that_one_would_not_guess(client: str) -> None:
    written, cells = CLIENTS[client]
    assert both([GOOD, bytes.fromhex(written)], list(cells)) == ([*both([GOOD], list(cells))[0], cells], "")


def test_a_text_as_the_body_of_rstream_is_no_amqp_message() -> None:
    # AMQPMessage(body="x") of rstream 1.1.1: a binary of one byte, and behind it the rest of a map.
    written = "005375a001c11904a10454595045a10642494e415259a10556414c5545a10178"
    rows, fault = both([GOOD, bytes.fromhex(written)], ["value"])
    assert (rows, "message at byte 6: 0x19, expected a section" in fault) == ([{"value": b"good"}], True)


def test_what_lies_beyond_the_range_fails_nobody() -> None:
    raws = [GOOD, BIG + GOOD]
    read = RangeRead("s", "s", EARLIEST, format_offset(0), ("application_properties",))
    assert by_amqp(read, raws) == by_amqp(read, raws[:1]) == ([{"application_properties": None}], "")


def test_an_event_whose_offset_cannot_be_read_is_told_too() -> None:
    read = read_of([GOOD] * 2, ["value"])
    broken = section(0x71, counted(0xC1, 0xD1, [symbol("event-streams-offset"), b"\xa3\x01\xff"], False)) + GOOD
    decoder = AmqpRows(read, EARLIEST)
    found = decoder.decode(block([with_offset(0) + GOOD, broken]))
    assert found.batch.num_rows == 1 and not found.done
    assert "stream 's' partition 's': delivery-annotations section: AMQP string or symbol: not UTF-8" in str(
        found.fault
    )
    assert decoder.passes_end(block([broken]))
    assert decoder.rows_left(block([broken])) == 0


@pytest.mark.parametrize("door", ["amqp", "rabbitmq"])
def test_the_doors_deliver_it_and_reading_goes_on_behind_it(tmp_path: Path, door: str) -> None:
    with ReferenceLog(tmp_path) as log, ServerThread(log, AmqpConfig(port=0), RabbitConfig(port=0)) as server:
        partition = log.create_stream("s", 1).partitions["0"]
        partition.append([GOOD, GOOD + b"\xff\xfe\xfd", GOOD], None, [0, 0, 0])
        if door == "amqp":
            _reads_on(AmqpClient(parse_url(server.amqp_url)), "0")
        else:
            _reads_on(RabbitClient(parse_url(server.rabbit_url, schemes=RABBITMQ_SCHEMES)), "s")


def _reads_on(opened: AmqpClient | RabbitClient, name: str) -> None:
    with opened as client:
        last = client.describe("s").partitions[name].latest
        rows, fault = listed(client.fetch(RangeRead("s", name, EARLIEST, last, ("offset", "value"))))
        assert [row["value"] for row in rows] == [b"good"]
        assert f"stream 's' partition '{name}' offset '" in fault
        offset = fault.split("offset '")[1].split("'")[0]
        rows, fault = listed(client.fetch(RangeRead("s", name, After(offset), last, ("value",))))
        assert (rows, fault) == ([{"value": b"good"}], "")
        rows, fault = listed(client.fetch(RangeRead("s", name, EARLIEST, last, ("message",))))
        assert ([row["message"][9:] for row in rows], fault) == ([b"", b"\xff\xfe\xfd", b""], "")


@pytest.mark.parametrize(
    ("entry", "is_foreign"),
    [
        (b"", False),
        (b"hello", True),
        (b"\0", True),
        (b"\0\x53", True),
        (bytes(900), True),
        (b"\0\x53\x75", False),
        (b"\0\x53\x79\x40", True),
        (b"\0\x80" + bytes(7) + b"\x75\xa0\0", False),
        (b"\0\xa3\x10amqp:data:binary\xa0\0", False),
        (b"\0\xa3\x10amqp:sasl:binary\xa0\0", True),
    ],
)
def test_what_is_no_amqp_is_known_by_its_first_bytes(entry: bytes, is_foreign: bool) -> None:
    assert foreign(block([GOOD, entry, GOOD])).tolist() == [False, is_foreign, False]
    assert foreign(MessageBlock(entry, np.array([0]), np.array([len(entry)]))).tolist() == [is_foreign]
    assert foreign(block([entry, b"Sports", b"ports"])).tolist() == [is_foreign, True, True], "neighbours do not count"


def test_payloads_that_begin_with_0_are_known_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those with the number of an Avro schema: to look at each one alone took fifty times as long."""
    looked: list[int] = []
    monkeypatch.setattr("spark_streams.wire.amqp.columns.block.section_head", lambda raw, at: looked.append(at))
    assert foreign(block([bytes(4) + b"\x2aavro"] * 9)).all() and not looked
    assert not foreign(block([b"\0\x80" + bytes(7) + b"\x75\xa0\0"])).any() and looked == [0]
