"""Files of the spool: all parts of them that a micro-batch can name, and damaged ones."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_streams.errors import SpoolLost
from spark_streams.spark.feed import spool_writer
from spark_streams.spark.feed.page_file import Events, PageRange, read_events
from spark_streams.spark.feed.spool import Spool
from spark_streams.spark.feed.spool_writer import SpoolWriter
from spark_streams.wire.feed.line import Dialect
from spark_streams.wire.feed.lines import Lines, parse_lines

Row = tuple[bytes, str | None, str]


def page(start: int, stop: int, every: int = 50) -> bytes:
    """Lines of events, of several kinds, with a checkpoint after every ``every`` of them."""
    out = []
    for n in range(start, stop):
        event = [f'{{"n":{n}}}', f'"text {n}"', f'"\\"{n}\\"\\n"', f'"{n}","key":"k{n}"', "null"][n % 5]
        out.append(f'{{"event":{event}}}\n')
        if (n + 1) % every == 0:
            out.append(f'{{"cursor":"after {n}"}}\n')
    return "".join(out).encode()


def expected_of(lines: Lines) -> list[Row]:
    """Each event with its key and the cursor that covers it."""
    events, keys = lines.values.to_pylist(), lines.keys.to_pylist()
    found: list[Row] = []
    for cursor, covered in zip(lines.cursors.to_pylist(), lines.covered.tolist(), strict=True):
        found += [(events[n], keys[n], cursor) for n in range(len(found), covered)]
    return found


def rows_of(block: Events) -> list[Row]:
    its = zip(block.values.to_pylist(), block.keys.to_pylist(), strict=True)
    cursors = list(zip(block.covered.tolist(), block.cursors.to_pylist(), strict=True))
    return [(value, key, next(c for end, c in cursors if end > n)) for n, (value, key) in enumerate(its)]


def spooled(folder: Path, blocks: list[bytes]) -> list[PageRange]:
    """Write blocks to a spool as a fetcher does; return all that can be planned."""
    writer = SpoolWriter(Spool(str(folder), "q"), "x")
    for block in blocks:
        assert writer.take(parse_lines(block, Dialect.V2A, 0), moved=True)
    planned = writer.plan(None, 1 << 30)
    assert planned is not None
    assert planned.bytes <= sum(map(len, blocks))
    return planned.ranges


def read(folder: Path, pages: list[PageRange]) -> list[Row]:
    found: list[Row] = []
    for each in pages:
        with pa.OSFile(str(folder / "q" / each.file)) as file:
            for block in read_events(file, each):
                found += rows_of(block)
    return found


def test_all_checkpoints_of_a_file_can_be_the_ends_of_a_page(tmp_path: Path) -> None:
    blocks = [page(0, 330), page(330, 400), b'{"event":{}}\n{"cursor":"few"}\n', page(400, 700)]
    (whole,) = spooled(tmp_path, blocks)
    lines = parse_lines(b"".join(blocks), Dialect.V2A, 0)
    expected = expected_of(lines)
    assert read(tmp_path, [whole]) == expected and len(expected) == 701
    ends = [0, *lines.covered.tolist()]
    for first, start in enumerate(ends[:-1]):
        for stop in ends[first + 1 :]:
            assert read(tmp_path, [PageRange(whole.file, start, stop)]) == expected[start:stop]


def test_events_that_wait_long_for_their_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_writer, "HELD_BYTES", 1_000)
    blocks = [page(start, start + 100, every=1_000) for start in range(0, 1_000, 100)]
    rows = read(tmp_path, spooled(tmp_path, blocks))
    assert rows == expected_of(parse_lines(b"".join(blocks), Dialect.V2A, 0)) and len(rows) == 1_000


def test_damaged_events_are_told_and_not_read(tmp_path: Path) -> None:
    (whole,) = spooled(tmp_path, [page(0, 250), page(250, 500)])
    place = tmp_path / "q" / whole.file
    good = place.read_bytes()
    told: list[str] = []
    for at in range(0, len(good), 97):
        place.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        with pytest.raises(SpoolLost) as caught:
            read(tmp_path, [whole])
        told.append(str(caught.value))
    for events in ("0 to 250", "250 to 500"):
        assert f"its events {events} are damaged: they differ from their checksum" in told
    assert "its index is damaged: it differs from its checksum" in told


def test_a_file_that_was_cut_is_told(tmp_path: Path) -> None:
    (whole,) = spooled(tmp_path, [page(0, 500)])
    place = tmp_path / "q" / whole.file
    good = place.read_bytes()
    for size in (0, 5, 1_000, len(good) - 1):
        place.write_bytes(good[:size])
        with pytest.raises(SpoolLost, match=f"end is missing after {size} bytes: the file was cut"):
            read(tmp_path, [whole])
    place.write_bytes(good)
    with pytest.raises(SpoolLost, match="it has 500 events, 501 were planned"):
        read(tmp_path, [PageRange(whole.file, 0, 501)])
