"""A page of events: where it starts, how it goes on, and what a filter leaves of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_streams.filters import parse
from spark_streams.log import Partition, ReferenceLog, StreamConfig
from spark_streams.server.web import event_page
from spark_streams.server.web.event_page import EventPage, page_of, preview_of, start_of
from spark_streams.wire.amqp.columns.encode import encode_columns
from spark_streams.wire.amqp.decode import finished
from spark_streams.wire.amqp.encode import encode_value

T1957 = -386_380_800_000
"""1957-10-04T00:00:00Z in ms."""
NONE = "key = 'none'"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ReferenceLog]:
    with ReferenceLog(tmp_path / "log") as opened:
        yield opened


def filled(log: ReferenceLog, count: int = 30, batch: int = 7) -> Partition:
    """Event i has value ``{"n": i}``, key ``k`` and i modulo 3, and is of 1957-10-04, i minutes after midnight."""
    partition = log.create_stream("orders", 1, StreamConfig(timestamp_type="create")).partitions["0"]
    for first in range(0, count, batch):
        rows = range(first, min(count, first + batch))
        columns = {
            "value": pa.array([b'{"n": %d}' % row for row in rows], pa.binary()),
            "key": pa.array([f"k{row % 3}" for row in rows]),
        }
        partition.append(encode_columns(columns), None, T1957 + 60_000 * np.array(rows))
    return partition


def page(partition: Partition, kind: str, place: str = "", text: str = "", most: int = 5) -> EventPage:
    return finished(page_of(partition, parse(text) if text else None, start_of(kind, place), most))


def offsets(found: EventPage) -> list[int]:
    return [row.offset for row in found.rows]


@pytest.mark.parametrize(
    ("kind", "place", "expected"),
    [
        ("latest", "", [25, 26, 27, 28, 29]),
        ("earliest", "", [0, 1, 2, 3, 4]),
        ("offset", "12", [12, 13, 14, 15, 16]),
        ("offset", "29", [29]),
        ("offset", "9223372036854775807", []),
        ("before", "12", [7, 8, 9, 10, 11]),
        ("before", "3", [0, 1, 2]),
        ("before", "0", []),
        ("before", "9999999999999999999", [25, 26, 27, 28, 29]),
        ("time", "1957-10-04T00:10:00Z", [10, 11, 12, 13, 14]),
        ("time", "1957-10-04 02:09:30+02:00", [10, 11, 12, 13, 14]),
        ("time", str(T1957 + 600_000), [10, 11, 12, 13, 14]),
        ("time", "1900-01-01", [0, 1, 2, 3, 4]),
        ("time", "2100-01-01", []),
    ],
)
def test_a_page_starts_where_one_likes(log: ReferenceLog, kind: str, place: str, expected: list[int]) -> None:
    found = page(filled(log), kind, place)
    assert offsets(found) == expected
    assert found.finished
    assert not found.fault
    if expected:
        assert (found.rows[0].time_ms, found.rows[0].key) == (T1957 + 60_000 * expected[0], f"k{expected[0] % 3}")
        assert found.rows[0].preview == f'{{"n": {expected[0]}}}'


@pytest.mark.parametrize(
    ("kind", "place", "said"),
    [
        ("newest", "", "start is 'newest', expected one of latest, earliest"),
        ("offset", "", "offset is '', expected a number from 0 on"),
        ("offset", "-1", "offset is '-1', expected a number"),
        ("before", "\N{ARABIC-INDIC DIGIT THREE}", "expected a number"),
        ("time", "yesterday", "'yesterday' is no instant, expected milliseconds"),
        ("time", "1957-13-04", "'1957-13-04' is no instant"),
        ("time", str(2**63), "is outside int64"),
    ],
)
def test_a_start_that_is_none_says_what_was_expected(kind: str, place: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        start_of(kind, place)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", range(30)),
        ("key = 'k1'", range(1, 30, 3)),
        ("offset > 4 AND offset <= 21", range(5, 22)),
        (f"publish_time >= {T1957 + 900_000}", range(15, 30)),
        (NONE, ()),
    ],
)
@pytest.mark.parametrize("stride", [2, 9])
def test_pages_forwards_and_backwards_show_every_event_once(
    log: ReferenceLog, text: str, expected: Any, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = filled(log)
    monkeypatch.setattr(event_page, "_stride", lambda partition: stride)
    assert walk(partition, "earliest", text) == list(expected)
    assert walk(partition, "latest", text) == list(expected)


def walk(partition: Partition, kind: str, text: str) -> list[int]:
    """Follow the links of the pages to the end."""
    found = page(partition, kind, text=text, most=4)
    seen = offsets(found)
    for _ in range(100):
        if kind == "earliest" and found.end < partition.next_offset:
            found = page(partition, "offset", str(found.end), text, 4)
            seen += offsets(found)
        elif kind == "latest" and found.first > partition.first_offset:
            found = page(partition, "before", str(found.first), text, 4)
            seen = offsets(found) + seen
        else:
            return seen
        if not found.rows and found.finished:
            return seen
    raise AssertionError("the links lead in a circle")


@pytest.mark.parametrize("kind", ["earliest", "latest"])
def test_a_search_that_takes_long_stops_and_goes_on(
    log: ReferenceLog, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = filled(log, 60)
    monkeypatch.setattr("spark_streams.log.search.BLOCK_BYTES", 1)  # a stored batch at a time
    monkeypatch.setattr(event_page, "_stride", lambda partition: 5)
    monkeypatch.setattr(event_page, "MOST_EVENTS", 10)
    text = f"key = 'k0' AND body_size = 9 AND offset = '{30:020d}' OR {NONE}"
    found = page(partition, kind, text=text)
    assert not found.rows
    assert not found.finished
    assert 10 <= found.records < 20
    assert 10 <= found.end - found.first < 20
    assert walk(partition, kind, text) == [30]


def test_a_search_gives_others_their_turn(log: ReferenceLog, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = filled(log, 60)
    monkeypatch.setattr("spark_streams.log.search.BLOCK_BYTES", 1)
    steps = page_of(partition, parse(NONE), ("earliest", 0), 5)
    assert sum(1 for _ in steps) == 9  # as many as there are stored batches


def test_indexes_narrow_a_search(log: ReferenceLog) -> None:
    found = page(filled(log), "latest", text="offset >= 3 AND offset < 6 AND key = 'k0'")
    assert offsets(found) == [3]
    assert found.records == 3


def test_a_page_of_large_events_ends_before_it_has_its_rows(log: ReferenceLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_page, "MOST_BYTES", 3 << 20)
    partition = log.create_stream("large").partitions["0"]
    for _ in range(6):
        partition.append(encode_columns({"value": pa.array([bytes(1 << 20)], pa.binary())}))
    assert offsets(page(partition, "latest", most=100)) == [3, 4, 5]  # it is looked at three at a time
    found = page(partition, "earliest", most=100)
    assert offsets(found) == [0, 1, 2]
    assert not found.finished
    assert found.rows[0].size == 1 << 20
    assert len(found.rows[0].preview or "") < 200


def test_long_values_are_shown_by_their_first_bytes(log: ReferenceLog) -> None:
    partition = log.create_stream("long").partitions["0"]
    many = encode_value(["x"] * 200_000)
    partition.append(
        [b"\0Su" + encode_value(b"a"), b"\0Sw" + many, b"\0Sw" + encode_value("\u00e4" * 200_000), bytes(300_000)]
    )
    rows = page(partition, "earliest").rows
    assert [row.size for row in rows] == [1, len(many), 400_000, 300_000]
    assert [row.preview[:5] for row in rows if row.preview] == ["a", "d0 00", "\u00e4" * 5, "00 00"]
    assert rows[2].preview == "\u00e4" * 200 + "\u2026"


@pytest.mark.parametrize("kind", ["earliest", "latest"])
def test_damage_is_said_and_hides_no_other_event(
    log: ReferenceLog, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    partition = filled(log, 14)
    file = next((log.data_dir / "streams" / "orders" / "0").glob("*.log"))
    with file.open("r+b") as stored:
        stored.seek(-200, 2)  # in the second of two batches
        byte = stored.read(1)[0]
        stored.seek(-1, 1)
        stored.write(bytes([byte ^ 1]))
    found = page(partition, kind, most=20)
    assert "some from offset 7 on cannot be read" in found.fault
    assert str(file) not in found.fault  # where the log is, is for its operator
    assert str(file) in caplog.text
    assert offsets(found) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("content", "size", "expected"),
    [
        (b"plain", 5, ("plain", True)),
        (b"", 0, ("", True)),
        (None, 0, (None, True)),
        (b"a\nb\tc\x00" + b"x" * 20, 26, ("a\u21b5b\u21e5c\u27e8U+0000\u27e9" + "x" * 20, True)),
        (b"\xff\xfe\x00", 3, ("ff fe 00", False)),
        (b"\xff" * 40, 1000, ("ff " * 32 + "\u2026", False)),
        ("ä".encode() * 200 + b"\xc3", 5_000, ("ä" * 200 + "\u2026", True)),
        (b"ab\xc3", 3, ("61 62 c3", False)),
        ("\u202eevil".encode(), 7, ("\u27e8U+202E\u27e9evil", True)),
    ],
)
def test_a_preview_is_short_and_shows_what_is_there(content: Any, size: int, expected: Any) -> None:
    assert preview_of(content, size) == expected


def test_a_long_event_has_its_key_and_subject(log: ReferenceLog) -> None:
    partition = log.create_stream("orders", 1).partitions["0"]
    properties = pa.array([{"subject": "s"}] * 2, pa.struct([("subject", pa.string())]))
    values = pa.array([b"v" * 20_000, b"w"], pa.binary())
    partition.append(encode_columns({"value": values, "key": pa.array(["long", "short"]), "properties": properties}))
    partition.append(pa.array([b"\x00" * 20_000, b"\x00\x53\x78" * 7_000, b"text" * 5_000], pa.binary()))
    rows = page(partition, "earliest").rows
    assert [(row.key, row.subject) for row in rows] == [("long", "s"), ("short", "s"), *[(None, None)] * 3]
    assert [row.size for row in rows] == [20_000, 1, 20_000, 21_000, 20_000]
