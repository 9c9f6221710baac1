"""The first record that a filter is true of: found as a scan would find it, without reading what cannot match."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_streams.errors import CorruptLog, FilterError, UnknownStream
from spark_streams.filters import OFFSET, PUBLISH_TIME, Expression, Not, Reference, evaluate, parse
from spark_streams.log import NO_TIMESTAMP, Partition, ReferenceLog, StreamConfig, format_offset
from spark_streams.log.search import SearchRange, first_matching, search_range_of
from spark_streams.log.storage.segment import LOG_SUFFIX, Segment
from spark_streams.wire.amqp.columns.encode import encode_columns
from tests.examples import examples

TINY = StreamConfig(timestamp_type="create", segment_max_bytes=600, index_interval_bytes=150)
Row = tuple[int | None, str | None]
"""A timestamp and an application property ``type``."""


def append(partition: Partition, rows: list[Row]) -> None:
    """Append one batch a row: batches of mixed timestamps would be cut anyway."""
    types = pa.array(
        [[("type", kind)] if kind is not None else None for _, kind in rows], pa.map_(pa.string(), pa.string())
    )
    values = encode_columns({"value": pa.array([b"%d" % n for n in range(len(rows))]), "application_properties": types})
    for at, (timestamp, _) in enumerate(rows):
        partition.append(values.slice(at, 1), None, [timestamp])


def expected(rows: list[Row], expression: Expression, start: int = 0) -> int | None:
    """What a scan finds that looks at one row after the other."""

    def lookup(reference: Reference, at: int) -> Any:
        if reference == OFFSET:
            return format_offset(at)
        return rows[at][0] if reference == PUBLISH_TIME else rows[at][1]

    for at in range(start, len(rows)):
        if evaluate(expression, lambda reference, at=at: lookup(reference, at)):
            return at
    return None


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ReferenceLog]:
    with ReferenceLog(tmp_path / "log") as log:
        yield log


# --- the same as a scan

COUNT = 24
times = st.one_of(st.none(), st.integers(-6, 6), st.sampled_from([-386_380_800_000, 2**62]))
row_lists = st.lists(st.tuples(times, st.sampled_from([None, "a", "b"])), min_size=COUNT, max_size=COUNT)
COMPARISONS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
near = st.integers(-1, COUNT + 1)
predicates = st.one_of(
    st.builds("publish_time {} {}".format, COMPARISONS, st.integers(-7, 7)),
    st.builds("publish_time {} {}".format, COMPARISONS, st.sampled_from(["1.5", "-1.5", "-386380800000", "1e300"])),
    st.builds("publish_time BETWEEN {} AND {}".format, st.integers(-7, 7), st.integers(-7, 7)),
    st.builds("publish_time IN ({}, {})".format, st.integers(-7, 7), st.integers(-7, 7)),
    st.sampled_from(["publish_time IS NULL", "publish_time IS NOT NULL", "type IS NULL", "type LIKE '%'"]),
    st.builds("offset {} {}".format, COMPARISONS, near),
    st.builds("offset {} {}".format, COMPARISONS, st.sampled_from(["2.5", "-1e300", "9.9e18"])),
    st.builds("offset {} '{:020d}'".format, COMPARISONS, st.integers(0, COUNT + 1)),
    st.builds("offset {} '{}'".format, COMPARISONS, st.sampled_from(["", "0", "00000000000000000007x", "1", "x", "é"])),
    st.builds("offset BETWEEN '{:020d}' AND '{:020d}'".format, st.integers(0, COUNT), st.integers(0, COUNT)),
    st.builds("offset NOT IN ('{:020d}')".format, st.integers(0, COUNT)),
    st.builds("offset IN ({}, {})".format, near, near),
    st.builds("type {} '{}'".format, COMPARISONS, st.sampled_from(["a", "b", "c"])),
)
texts = st.recursive(
    predicates,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=4,
)


@settings(max_examples=examples(30), deadline=None)
@given(rows=row_lists, asked=st.lists(st.tuples(texts, st.integers(0, COUNT)), min_size=8, max_size=8))
def test_as_a_scan_finds_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], asked: list[tuple[str, int]]
) -> None:
    with ReferenceLog(tmp_path_factory.mktemp("log")) as log:
        partition = log.create_stream("orders", 1, TINY).partitions["0"]
        append(partition, rows)
        assert partition.segment_count > 2
        for text, start in asked:
            assert log.first_matching("orders", "0", parse(text), start) == expected(rows, parse(text), start), text


@settings(max_examples=examples(150), deadline=None)
@given(rows=row_lists, text=texts)
@example([(0, "a")] * COUNT, "offset >= 3 OR publish_time >= 5")
def test_no_place_leaves_out_a_match(rows: list[Row], text: str) -> None:
    place = search_range_of(parse(text))
    for at, (timestamp, _) in enumerate(rows):
        if expected(rows[: at + 1], parse(text), at) is not None:
            assert place.first <= at < place.end
            assert place.from_ms == NO_TIMESTAMP or (timestamp is not None and timestamp >= place.from_ms)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("offset > 5", SearchRange(first=6)),
        ("offset >= '00000000000000000005' AND offset < 9", SearchRange(5, 9)),
        ("offset = '00000000000000000005'", SearchRange(5, 6)),
        ("offset IN (3, 8) OR offset = 5", SearchRange(3, 9)),
        ("offset = '5'", SearchRange(10**18 * 5, 10**18 * 5)),
        ("NOT (offset < 7)", SearchRange(first=7)),
        ("publish_time >= -386380800000", SearchRange(from_ms=-386_380_800_000)),
        ("publish_time > 1.5 AND offset > 3 AND type = 'a'", SearchRange(first=4, from_ms=2)),
        ("publish_time > 1 OR publish_time > 7", SearchRange(from_ms=2)),
        ("publish_time >= 0 OR publish_time >= 5", SearchRange(from_ms=0)),
        ("publish_time >= 5 OR publish_time >= 0", SearchRange(from_ms=0)),
        ("publish_time >= -9223372036854775807", SearchRange(from_ms=-(2**63) + 1)),
        ("publish_time >= -9223372036854775808", SearchRange(from_ms=-(2**63) + 1)),
        ("publish_time > 1 OR type = 'a'", SearchRange()),
        ("publish_time = 2.5", SearchRange(end=0)),
        ("publish_time < 5", SearchRange()),
        ("publish_time IS NULL OR offset IS NULL", SearchRange()),
        ("type = 'a'", SearchRange()),
    ],
)
def test_places(text: str, place: SearchRange) -> None:
    found = search_range_of(parse(text))
    if place.first >= place.end:
        assert found.first >= found.end
    else:
        assert found == place


# --- what is not read


def damage(partition_folder: Path, segments: slice) -> None:
    """Flip a bit of the first body in some segments: what reads it notices (CRC), what only walks headers does not."""
    for file in sorted(partition_folder.glob(f"*{LOG_SUFFIX}"))[segments]:
        content = bytearray(file.read_bytes())
        content[80] ^= 1
        file.write_bytes(bytes(content))


ROWS: list[Row] = [(1000 + at, "b" if at % 10 == 9 else "a") for at in range(60)]


def test_segments_before_a_bound_are_not_read(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        append(log.create_stream("orders", 1, TINY).partitions["0"], ROWS)
    folder = tmp_path / "streams" / "orders" / "0"
    before = sorted(int(file.stem) for file in folder.glob(f"*{LOG_SUFFIX}") if int(file.stem) <= 40)
    damage(folder, slice(0, len(before) - 1))
    with ReferenceLog(tmp_path) as log:
        partition = log.stream("orders").partitions["0"]
        for text in ("type = 'b'", "type = 'b' AND publish_time <= 1045", "type = 'b' OR publish_time > 1041"):
            with pytest.raises(CorruptLog):
                first_matching(partition, parse(text))
        for text in (
            "type = 'b' AND publish_time > 1040",
            "type = 'b' AND offset > 40",
            "type = 'b' AND (publish_time > 1050 OR publish_time BETWEEN 1041 AND 1045 OR publish_time = 1049)",
        ):
            assert first_matching(partition, parse(text)) == 49


def test_what_lies_beyond_an_upper_bound_on_offsets_is_not_read(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        append(log.create_stream("orders", 1, TINY).partitions["0"], ROWS)
    folder = tmp_path / "streams" / "orders" / "0"
    first = sum(int(file.stem) < 20 for file in folder.glob(f"*{LOG_SUFFIX}"))
    damage(folder, slice(first, -1))
    with ReferenceLog(tmp_path) as log:
        partition = log.stream("orders").partitions["0"]
        assert first_matching(partition, parse("type = 'c' AND offset < 20")) is None
        with pytest.raises(CorruptLog):
            first_matching(partition, parse("type = 'c'"))


def test_only_the_stretches_that_can_match_are_read(log: ReferenceLog, monkeypatch: pytest.MonkeyPatch) -> None:
    config = StreamConfig(timestamp_type="create", index_interval_bytes=150)
    partition = log.create_stream("orders", 1, config).partitions["0"]
    append(partition, [*ROWS[:50], (0, "b"), *ROWS[51:]])
    read: list[int] = []
    original = Segment.read_from

    def watched(self: Segment, offset: int, max_bytes: int) -> Any:
        records = original(self, offset, max_bytes)
        read.append(offset)
        return records

    monkeypatch.setattr(Segment, "read_from", watched)
    assert first_matching(partition, parse("type = 'b' AND publish_time >= 1055")) == 59
    assert len(read) == 1 and 50 < read[0] <= 55
    read.clear()
    assert first_matching(partition, parse("publish_time > 5000 OR publish_time = 4000 AND offset > 3")) is None
    assert first_matching(partition, parse("publish_time > 1 AND publish_time < 0.5")) is None
    assert first_matching(partition, parse("offset = '5'")) is None
    assert len(read) == 1, "the second; the others exclude every record by themselves"


@settings(max_examples=examples(20), deadline=None)
@given(rows=row_lists, offset=st.integers(0, COUNT), target=st.integers(-8, 8))
def test_skipping_to_a_time_passes_over_nothing_later(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], offset: int, target: int
) -> None:
    with ReferenceLog(tmp_path_factory.mktemp("log")) as log:
        partition = log.create_stream("orders", 1, TINY).partitions["0"]
        append(partition, rows)
        found = partition.skip_to_time(offset, target)
        assert offset <= found <= COUNT
        assert all(timestamp is None or timestamp < target for timestamp, _ in rows[offset:found])
    with ReferenceLog(log.data_dir) as again:
        assert again.stream("orders").partitions["0"].skip_to_time(offset, target) == found


# --- the rest


def test_every_part_of_a_message(log: ReferenceLog) -> None:
    partition = log.create_stream("orders", 2, TINY).partitions["1"]
    maps = pa.map_(pa.string(), pa.string())
    properties = pa.struct([("subject", pa.string()), ("creation_time", pa.timestamp("us", "UTC"))])
    columns = {
        "value": pa.array([b"abc", b"abcdef"]),
        "properties": pa.array([None, {"subject": "eu-1", "creation_time": 5000}], properties),
        "application_properties": pa.array([[("n", "7")], [("n", "12.50")]], maps),
        "message_annotations": pa.array([None, [("x-tags", '["a","b"]')]], maps),
        "key": pa.array(["k0", "k1"]),
    }
    partition.append(encode_columns(columns), None, [7, NO_TIMESTAMP])
    for text in (
        "properties.subject LIKE 'eu-%'",
        "properties.creation_time = 5",
        "event_time = 5",
        "n > 7",
        "n = 12.5",
        "message_annotations.[x-tags] CONTAINS ALL ('b', 'a')",
        "[message_annotations.x-tags] CONTAINS ANY ('b')",
        "key = 'k1'",
        "body_size > 3",
        "publish_time IS NULL",
        "offset > 0 AND partition = '1'",
    ):
        assert first_matching(partition, parse(text)) == 1, text
        assert first_matching(partition, parse(text), start=2) is None, text
    assert first_matching(partition, parse("publish_time = 7 AND key = 'k0' AND n = 7 AND partition = '1'")) == 0
    assert first_matching(partition, parse("partition = '0'")) is None


def test_messages_that_cannot_be_read_match_by_what_is_known_of_them(log: ReferenceLog) -> None:
    partition = log.create_stream("orders", 1, TINY).partitions["0"]
    good = encode_columns({"value": pa.array([b"x"]), "key": pa.array(["k"])})[0].as_py()
    partition.append([b"\xffbroken", good, b"\x00\x53", good])
    assert first_matching(partition, parse("key = 'k'")) == 1
    assert first_matching(partition, parse("key IS NULL AND offset > 0")) == 2
    assert first_matching(partition, parse("body_size = 7")) == 0


def test_only_what_is_there_at_the_time_of_the_call(log: ReferenceLog) -> None:
    partition = log.create_stream("orders", 1, TINY).partitions["0"]
    wanted = parse("type = 'b'")
    assert first_matching(partition, wanted) is None
    append(partition, [(1, "a")])
    assert first_matching(partition, wanted) is None
    append(partition, [(1, "b")])
    assert first_matching(partition, wanted) == 1


def test_what_retention_removed_is_not_found(tmp_path: Path) -> None:
    config = StreamConfig(timestamp_type="create", segment_max_bytes=600, retention_max_bytes=600)
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("orders", 1, config).partitions["0"]
        append(partition, ROWS)
        assert partition.enforce_retention() > 0
        assert partition.first_offset > 9
        assert first_matching(partition, parse("type = 'b'")) == expected(
            ROWS, parse("type = 'b'"), partition.first_offset
        )
        assert first_matching(partition, parse("offset >= 0")) == partition.first_offset
        assert first_matching(partition, parse("type = 'b' AND publish_time > 0")) == first_matching(
            partition, parse("type = 'b'")
        )
        assert first_matching(partition, parse("offset < 3")) is None


def test_what_cannot_be_asked(log: ReferenceLog) -> None:
    log.create_stream("orders", 1, TINY)
    with pytest.raises(UnknownStream):
        log.first_matching("other", "0", parse("type = 'b'"))
    with pytest.raises(ValueError, match="has no partition '7'; there are: 0"):
        log.first_matching("orders", "7", parse("type = 'b'"))
    deep = parse("type = 'b'")
    for _ in range(100):
        deep = Not(deep)
    with pytest.raises(FilterError):
        log.first_matching("orders", "0", deep)
