"""RowBlocks of a task's rows: cut alike on every attempt, and with digests that tell other rows."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.client.digested_rows import Destinations, RowBlock, RowBlocks, RowLabels

ROWS = [b"row %d" % n for n in range(2_500)]


def by_name(first_row: int, rows: pa.Table) -> Destinations:
    """Rows go to the stream that column `to` names; without it all go to `s`."""
    import numpy as np

    if "to" not in rows.column_names:
        return {"s": np.arange(rows.num_rows)}
    names = np.array(rows.column("to").to_pylist())
    return {str(name): np.flatnonzero(names == name) for name in np.unique(names)}


def blocks(
    rows: list[bytes],
    sizes: tuple[int, ...] = (),
    to: list[str] | None = None,
    block_rows: int = 1_024,
    begin: bytes = b"",
) -> list[RowBlock]:
    """All blocks of rows that come in batches of these sizes, and the rest in one."""
    columns = {"payload": pa.array(rows, pa.large_binary())}
    table = pa.table(columns if to is None else {**columns, "to": to})
    cutter = RowBlocks(by_name, block_rows, begin)
    found, at = [], 0
    for size in (*sizes, len(rows)):
        found += cutter.add(table.slice(at, size))
        at += size
    found += cutter.finish()
    assert cutter.rows == len(rows)
    assert [row for _, part in found for row in part.column("payload").to_pylist()] == rows
    return [block for block, _ in found]


def shape(found: list[RowBlock]) -> list[tuple[int, int, int]]:
    return [(block.first_row, block.rows, block.digest) for block in found]


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 900), max_size=6), block_rows=st.integers(1, 1_500))
def test_blocks_do_not_depend_on_the_batches_that_rows_come_in(sizes: list[int], block_rows: int) -> None:
    assert shape(blocks(ROWS, tuple(sizes), block_rows=block_rows)) == shape(blocks(ROWS, block_rows=block_rows))


def test_windows_are_full_but_for_the_last_which_is_never_empty() -> None:
    assert [(w.first_row, w.rows) for w in blocks(ROWS)] == [(0, 1024), (1024, 1024), (2048, 452)]
    assert [(w.first_row, w.rows) for w in blocks(ROWS[:2048])] == [(0, 1024), (1024, 1024)]
    assert [(w.first_row, w.rows) for w in blocks(ROWS[:1])] == [(0, 1)]
    assert blocks([]) == []


def test_a_digest_covers_all_rows_before_it_and_none_behind() -> None:
    first, second, third = (w.digest for w in blocks(ROWS))
    longer = [w.digest for w in blocks([*ROWS, b"more"])]
    assert longer[:2] == [first, second]
    assert longer[2] != third
    earlier = [w.digest for w in blocks([b"other", *ROWS[1:]])]
    assert all(a != b for a, b in zip(earlier, (first, second, third), strict=True))


def test_digests_use_all_their_bits_and_differ_whatever_differs() -> None:
    """Ten bits agree by chance once in 1,024 times, so of a thousand changes hardly any goes unnoticed."""
    plain = blocks(ROWS[:100])[0].digest
    one_row = [blocks([*ROWS[: n % 100], b"other %d" % n, *ROWS[n % 100 + 1 : 100]])[0].digest for n in range(1_000)]
    swapped = [blocks([*ROWS[:n], ROWS[n + 1], ROWS[n], *ROWS[n + 2 : 100]])[0].digest for n in range(99)]
    shorter = [blocks(ROWS[:n])[0].digest for n in range(1, 100)]
    assert one_row.count(plain) < 8
    assert swapped.count(plain) < 4
    assert shorter.count(plain) < 4
    assert len(set(one_row)) > 500
    assert all(0 <= digest < 1024 for digest in one_row)
    assert max(one_row) >= 512


def test_bytes_that_move_from_one_row_to_the_next_are_other_rows() -> None:
    assert blocks([b"ab", b"c"])[0].digest != blocks([b"a", b"bc"])[0].digest
    assert blocks([b"", b"x"])[0].digest != blocks([b"x", b""])[0].digest


def test_the_end_of_the_task_is_in_the_last_digest() -> None:
    assert blocks(ROWS[:1024])[0].digest != blocks(ROWS[:1025])[0].digest


def test_destinations_are_in_the_digest() -> None:
    to = ["a", "b"] * 50
    plain = blocks(ROWS[:100], to=to)[0]
    assert {name: rows.tolist() for name, rows in plain.places.items()} == {
        "a": list(range(0, 100, 2)),
        "b": list(range(1, 100, 2)),
    }
    others = [blocks(ROWS[:100], to=[*to[:n], "a" if to[n] == "b" else "b", *to[n + 1 :]])[0] for n in range(100)]
    assert [other.digest for other in others].count(plain.digest) < 4
    assert blocks(ROWS[:100], to=["c" if t == "b" else t for t in to])[0].digest != plain.digest
    assert blocks(ROWS[:100], to=["a"] * 100)[0].digest != blocks(ROWS[:100], to=["b"] * 100)[0].digest


def test_what_it_begins_with_is_in_the_digest() -> None:
    assert blocks(ROWS, begin=b"1")[0].digest != blocks(ROWS, begin=b"2")[0].digest


def test_rows_in_slices_of_larger_arrays_digest_alike() -> None:
    whole = pa.table({"payload": pa.array([b"before", *ROWS[:10], b"after"], pa.large_binary())})
    cutter = RowBlocks(by_name)
    assert cutter.add(whole.slice(1, 10)) == []
    ((block, _),) = cutter.finish()
    assert block.digest == blocks(ROWS[:10])[0].digest


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6), data=st.data())
def test_rows_are_named_by_the_labels_that_came_with_them(sizes: list[int], data: st.DataObject) -> None:
    labels, names = RowLabels(), [f"batch {n} row {row}" for n, size in enumerate(sizes) for row in range(size)]
    for n, size in enumerate(sizes):
        labels.add(size, f"batch {n} row {{}}".format)
    assert labels.rows == len(names)
    start = 0
    for end in data.draw(st.lists(st.integers(0, len(names)), max_size=3).map(sorted)):
        taken = labels.take(end)
        assert [taken(row) for row in range(start, end)] == names[start:end]
        start = end
    assert [labels(row) for row in range(start, len(names))] == names[start:]
