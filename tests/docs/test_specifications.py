"""Each code that the repository refers to has its row in docs/specifications.md; nothing points at other papers."""

from __future__ import annotations

import functools
import re
import subprocess
from collections import Counter

import pytest

from tests.docs.pages import ROOT

PAGE = "docs/specifications.md"
LETTERS = "ES|[ACEFHKNPQSXZ]"
"""What codes with a hyphen begin with; KIP-228's rows, W1 to W9 and R1 to R7, have none."""
CODE = rf"(?:{LETTERS})-\d{{1,3}}|[WR][1-9]"
CODES = re.compile(rf"(?<![\w.%/$+-])({CODE})(?:(?: to |\.\.)({CODE}))?(?![\w-])")
"""Not what a sign of base64 comes before: pictures in notebooks hold letters and digits of every kind."""
NAMED = re.compile(r"^ *def test_(es|[acefnpxz])_?(\d+)_(?:([acefnpxz])_?(\d+)_)?", re.MULTILINE)
"""Tests that are named by one code or two: ``test_es_111_…``, ``test_c05_c06_…``."""
OUTSIDE = re.compile(
    r"DESIGN\.md|STYLE\.md|LAYOUT\.md|shared/specs|the design\b|(specification|filter) notes"
    r"|\bnotes'? (bytes|vectors?)\b|\bnotes,? (sections? |ambiguity )?[A-Z]?-?\d+(?![\d_])|Spec: [^.]*\bnotes\b"
    r"|\bthe notes (say|list|take|ask|on [A-Z])|of the notes where"
)
OUTSIDE_HAS = ("DESIGN", "STYLE", "LAYOUT", "shared/specs", "design", "notes")
"""Papers that are not here, and words that each of these has. "Notes" of a record batch are something else:
``spark_streams/log/format/batch_headers.py``."""
FOLDERS = ("spark_streams", "sources", "sinks", "tests", "docs", "conf", "notebooks")
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")
ENDINGS = (".py", ".md", ".toml", ".txt", ".yml", ".ipynb", ".proto", ".hex", ".java", ".go", ".js", ".cfg", ".sh")
SELF = "tests/docs/test_specifications.py"


def number_of(code: str) -> tuple[str, int]:
    """Return a code's letters and number: A-07 is A-7."""
    found = re.fullmatch(r"([A-Z]+)-?(\d+)", code)
    assert found, code
    return found[1], int(found[2])


@functools.cache
def codes_in(text: str) -> set[tuple[str, int]]:
    """Return the codes that a text names; of ``A-26 to A-28`` those between, too, also over the end of a line."""
    found = set()
    for match in CODES.finditer(re.sub(r"\s*\n[\s#]*", " ", text)):
        letters, first = number_of(match[1])
        others, last = number_of(match[2] or match[1])
        assert others == letters and last >= first, match[0]
        found |= {(letters, number) for number in range(first, last + 1)}
    for one, first_number, two, second_number in NAMED.findall(text):
        found.add((one.upper(), int(first_number)))
        found |= {(two.upper(), int(second_number))} if two else set()
    return found


def rows() -> list[list[str]]:
    """Return the cells of the rows that stand for a code."""
    lines = (ROOT / PAGE).read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [row for row in cells if re.fullmatch(CODE, row[0])]


@functools.cache
def sources() -> dict[str, str]:
    """The text of each file that may refer to the page, by its name."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    ours = (
        name
        for name in names.split("\0")
        if name in FILES or (name.endswith(ENDINGS) and name.split("/")[0] in FOLDERS and name != SELF)
    )
    return {name: (ROOT / name).read_text(errors="replace") for name in ours if (ROOT / name).is_file()}


def missing(name: str, text: str, there: set[tuple[str, int]]) -> list[str]:
    """Return the codes that a file refers to and that have no row."""
    return [f"{name}: {letters}-{number}" for letters, number in sorted(codes_in(text) - there)]


def there() -> set[tuple[str, int]]:
    return {number_of(row[0]) for row in rows()}


def test_each_code_has_its_row() -> None:
    known = there()
    assert [code for name, text in sources().items() for code in missing(name, text, known)] == []


def test_many_codes_are_found() -> None:
    """If the pattern no longer found them, the test above would say nothing."""
    used = {code for name, text in sources().items() if name != PAGE for code in codes_in(text)}
    letters = Counter(letter for letter, _ in used)
    assert letters.keys() == {"A", "C", "E", "ES", "F", "H", "N", "P", "Q", "R", "S", "W", "X", "Z"}
    assert len(used) > 250 and letters["ES"] == 70 and letters["A"] == 29


def test_each_row_has_a_clause_and_a_decision() -> None:
    found = rows()
    assert len(found) > 300
    assert [row[0] for row in found if len(row) not in (3, 5) or not all(row)] == []
    assert [row[0] for row in found if len(row[-1]) < 20 or not row[-1].endswith(".")] == []


def test_no_code_stands_twice() -> None:
    assert [code for code, times in Counter(number_of(row[0]) for row in rows()).items() if times > 1] == []


def test_nothing_points_at_papers_that_are_not_here() -> None:
    perhaps = {name: text for name, text in sources().items() if any(word in text for word in OUTSIDE_HAS)}
    assert 20 < len(perhaps) < len(sources())
    lines = {name: re.sub(r"\s+", " ", text) for name, text in perhaps.items()}
    assert [f"{name}: {match[0]}" for name, text in lines.items() for match in OUTSIDE.finditer(text)] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("what retention took is skipped (A-23)", []),
        ("what retention took is skipped (A-923)", ["x: A-923"]),
        ("Spec: A-7, C-05 to C-08 and ES-111; rows W1 and R7", []),
        ("Spec: A-28 to\n# A-31.", ["x: A-30", "x: A-31"]),
        ("def test_es_999_there_is_no_such_thing() -> None:", ["x: ES-999"]),
        ("def test_c05_c99_of_two() -> None:", ["x: C-99"]),
        ("row W9 is there; KIP-228, RFC 8259, UTF-8, x-opt-1, V2A-1, ISO-8859-1 and SHA-256 are no codes", []),
    ],
)
def test_a_code_without_a_row_is_noticed(text: str, expected: list[str]) -> None:
    assert missing("x", text, there()) == expected


def test_a_reference_to_other_papers_is_noticed() -> None:
    outside = [
        "(DESIGN.md, section 3)",
        "Spec: Streams Protocol Reference, Credit; notes, section 7.",
        "an empty one is none (notes, ambiguity 8)",
        "both are read (notes C-14, F-3)",
        "as the notes say of it",
        "the decisions of the specification notes",
    ]
    assert [text for text in outside if not OUTSIDE.search(text)] == []
    inside = ["Return the notes of one encoded batch.", "with the notes in them", "so the notes on disk are the same"]
    assert [text for text in inside if OUTSIDE.search(text)] == []
