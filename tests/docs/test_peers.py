"""docs/peers.md: each row says who does what, how that is known, what we do about it, and which test shows it."""

from __future__ import annotations

import itertools
import re

import pytest

from tests.docs.pages import ROOT, code_spans, tables

PAGE = "docs/peers.md"
NAME = re.compile(r"[\w/-]+/test_\w+\.py::test_\w+")


def rows() -> list[list[str]]:
    (found,) = tables(PAGE, "What real peers do")
    return found


def faults(row: list[str]) -> list[str]:
    """Return what is wrong with a row."""
    if len(row) != 5 or not all(row):
        return [f"{len(row)} cells, or an empty one"]
    peer, _, _, _, shown = row
    found = [] if re.search(r"\d", peer) else ["no version"]
    names = code_spans(shown)
    found += [] if names else ["no test"]
    for name in names:
        file, _, test = name.partition("::")
        there = ROOT / "tests" / file
        if not NAME.fullmatch(name) or not there.is_file():
            found.append(f"no test is {name}")
        elif not re.search(rf"^ *(async )?def {test}\(", there.read_text(), re.MULTILINE):
            found.append(f"{file} has no {test}")
    return found


def test_each_row_names_a_test_that_is_there() -> None:
    assert len(rows()) >= 25
    assert {row[1]: wrong for row in rows() if (wrong := faults(row))} == {}


def test_rows_of_one_peer_stand_together() -> None:
    peers = [peer for peer, _ in itertools.groupby(row[0] for row in rows())]
    assert len(peers) == len(set(peers))


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        (["A 1", "b", "c", "d"], "4 cells"),
        (["A 1", "b", "", "d", "`docs/test_peers.py::test_rows_of_one_peer_stand_together`"], "an empty one"),
        (["A", "b", "c", "d", "`docs/test_peers.py::test_rows_of_one_peer_stand_together`"], "no version"),
        (["A 1", "b", "c", "d", "docs/test_peers.py"], "no test"),
        (["A 1", "b", "c", "d", "`docs/test_peers.py`"], "no test is docs/test_peers.py"),
        (["A 1", "b", "c", "d", "`docs/test_none.py::test_a`"], "no test is"),
        (["A 1", "b", "c", "d", "`docs/test_peers.py::test_rows`"], "has no test_rows"),
    ],
)
def test_a_row_that_says_too_little_is_noticed(row: list[str], wrong: str) -> None:
    (found,) = faults(row)
    assert wrong in found
