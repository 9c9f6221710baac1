"""The index of a spooled file: tasks read the same lines with it and without it, and find damaged ones."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_streams.client.feed import Dialect, Lines, parse_lines
from spark_streams.errors import SpoolLost
from spark_streams.spark.feed import page_index, spool_writer
from spark_streams.spark.feed.page_index import read_index, read_lines
from spark_streams.spark.feed.spool import PageRange, Spool
from spark_streams.spark.feed.spool_writer import SpoolWriter
from tests.client.feed.scripted import BadFeed, Part, numbered
from tests.spark.feed.batches import Life, values

Row = tuple[bytes, str]


def page(start: int, stop: int, every: int = 50) -> bytes:
    """Lines of events, of several kinds, with a checkpoint after every ``every`` of them."""
    out = []
    for n in range(start, stop):
        event = [f'{{"n":{n}}}', f'"text {n}"', f'"\\"{n}\\"\\n"'][n % 3]
        out.append(f'{{"event":{event}}}\n')
        if (n + 1) % every == 0:
            out.append(f'{{"cursor":"after {n}"}}\n')
    return "".join(out).encode()


def rows_of(blocks: list[Lines]) -> list[Row]:
    """Each event with the cursor that covers it."""
    waiting: list[bytes] = []
    found: list[Row] = []
    for lines in blocks:
        assert lines.values is not None
        events, done = lines.values.to_pylist(), 0
        for cursor, covered in zip(lines.cursors.to_pylist(), lines.covered.tolist(), strict=True):
            found += [(event, cursor) for event in (*waiting, *events[done:covered])]
            waiting, done = [], covered
        waiting += events[done:]
    assert not waiting
    return found


def spooled(folder: Path, blocks: list[bytes]) -> list[PageRange]:
    """Write blocks to a spool as a fetcher does; return all that can be planned."""
    writer = SpoolWriter(Spool(str(folder), "q"), "x")
    for block in blocks:
        lines = parse_lines(block, Dialect.V2A, 0, values=False, checked=False)
        assert writer.take(block, lines, moved=True)
    planned = writer.plan(None, 1 << 30)
    assert planned is not None
    return planned.ranges


def read(folder: Path, pages: list[PageRange]) -> list[Row]:
    found: list[Lines] = []
    for each in pages:
        with pa.OSFile(str(folder / "q" / each.file)) as file:
            found += read_lines(file, each, Dialect.V2A, 0, 1 << 20)
    return rows_of(found)


def test_all_checkpoints_of_a_file_can_be_the_ends_of_a_page(tmp_path: Path) -> None:
    blocks = [page(0, 330), page(330, 400), b'{"event":{}}\n{"cursor":"few"}\n', page(400, 700)]
    (whole,) = spooled(tmp_path, blocks)
    written = b"".join(blocks)
    expected = rows_of([parse_lines(written, Dialect.V2A, 0)])
    assert read(tmp_path, [whole]) == expected and len(expected) == 701
    with pa.OSFile(str(tmp_path / "q" / whole.file)) as file:
        assert [written[b.start : b.stop].count(b"event") for b in read_index(file)] == [300, 30, 70, 300]
    ends = [0, *parse_lines(written, Dialect.V2A, 0).ends.tolist()]
    for first, start in enumerate(ends[:-1]):
        for stop in ends[first + 1 :]:
            part = rows_of([parse_lines(written[start:stop], Dialect.V2A, 0)])
            assert read(tmp_path, [PageRange(whole.file, start, stop)]) == part


def test_lines_that_wait_long_for_their_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_writer, "HELD_BYTES", 1_000)
    blocks = [page(start, start + 100, every=1_000) for start in range(0, 1_000, 100)]
    assert len(read(tmp_path, spooled(tmp_path, blocks))) == 1_000


def test_a_file_of_an_earlier_version_has_no_index(tmp_path: Path) -> None:
    (whole,) = spooled(tmp_path, [page(0, 500)])
    expected = read(tmp_path, [whole])
    place = tmp_path / "q" / whole.file
    place.write_bytes(place.read_bytes()[: whole.stop])
    with pa.OSFile(str(place)) as file:
        assert not read_index(file)
    assert read(tmp_path, [whole]) == expected


def test_an_earlier_version_reads_the_lines_alone(tmp_path: Path) -> None:
    (whole,) = spooled(tmp_path, [page(0, 500)])
    lines = (tmp_path / "q" / whole.file).read_bytes()[whole.start : whole.stop]
    assert lines == page(0, 500)


def test_damaged_lines_are_told_and_not_read(tmp_path: Path) -> None:
    (whole,) = spooled(tmp_path, [page(0, 500)])
    place = tmp_path / "q" / whole.file
    good = place.read_bytes()
    for at in (0, 700, whole.stop - 1):
        place.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        with pytest.raises(SpoolLost, match="damaged: they differ from their checksum"):
            read(tmp_path, [whole])
    for at in (whole.stop, (whole.stop + len(good)) // 2, len(good) - 12):
        place.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        with pytest.raises(SpoolLost, match="its index is damaged"):
            read(tmp_path, [whole])


def test_a_query_reads_with_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    lines_at = page_index.lines_at
    monkeypatch.setattr(page_index, "lines_at", lambda *given: seen.append(1) or lines_at(*given))
    with (
        BadFeed({0: Part(numbered(0, 3_000))}, page=lambda: 500, every=100) as feed,
        Life(feed.url, spoolLocation=str(tmp_path)) as life,
    ):
        assert values(life.until(3_000)) == numbered(0, 3_000)
    assert seen
