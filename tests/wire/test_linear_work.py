"""The work of every decoder grows with the bytes that it is given, and not faster; and not with one value's length.

Else a peer's small request keeps the processor for minutes. ``work.py`` counts the work, so that no machine is too slow
for these tests; ``decoding_families.py`` has the bytes, and the decoders are found in the code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_streams
from tests.wire.decoding_families import FAMILIES, Family
from tests.wire.work import Work, work_of

ROOT = Path(spark_streams.__file__).parent
MOST_TIMES = 15
"""What ten times the bytes may take: bisections take a little more than ten times, a square takes a hundred."""
BYTES_A_STEP = 200
"""Of a long value; a part of a kibibyte takes a few steps."""
_works: dict[str, list[Work]] = {}


def works(family: Family) -> list[Work]:
    """The work at once, ten and a hundred times the size; the first time imports and fills caches."""
    if family.name not in _works:
        makes = [family.make(family.size * times) for times in (1, 10, 100)]
        makes[0]()
        _works[family.name] = [work_of(do) for do in makes]
    return _works[family.name]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_work_is_linear_in_the_bytes(family: Family) -> None:
    small, middle, large = works(family)
    for less, more in ((small, middle), (middle, large)):
        assert more.steps <= MOST_TIMES * less.steps
        assert more.touched <= MOST_TIMES * less.touched
    if family.long:
        assert large.steps <= small.steps + 100 * family.size / BYTES_A_STEP


# --- which functions decode

PLACES = (
    "wire",
    "log/format",
    "filters/predicates",
    "filters/protobuf.py",
    "filters/text.py",
    "server/feed/request_bodies.py",
)
BYTES = frozenset(
    {"bytes", "bytearray", "memoryview", "uint8", "Readable", "Bytes", "MessageBlock", "BinaryArray", "Buffer", "Frame"}
    | {"Frames", "Words", "PaddedWords", "Records"}
)
READS = re.compile("decode|parse|read|load|from_|extract")
WRITES = re.compile("encode|pack|write|compress|append|fixed|constant|sized|counted|single_record|is_large|bloom_of")
OTHERS = {
    "malformed": "raises an error that shows a hundred characters",
    "shown": "shows a hundred characters",
    "checksum": "zlib's",
    "may_match": "of a filter of 255 bytes at most",
    "joined": "writes an answer",
    "chosen": "chooses from two arrays",
    "parse_pointer": "of an option",
    "split_message": "writes frames",
}
"""Functions with bytes among their arguments that read none of a peer's, or not as many as there are."""
Place = tuple[str, int, str]


def decoders() -> Iterator[Place]:
    """The public functions that take bytes, or by their names read texts: file, first line and name."""
    for place in PLACES:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for of, function in public_functions(ast.parse(file.read_text())):
                if not WRITES.match(function.name) and (READS.match(function.name) or takes_bytes(function)):
                    line = min([function.lineno, *(each.lineno for each in function.decorator_list)])
                    if function.name not in OTHERS and of != "FieldType.":  # a protocol, without code
                        yield str(file), line, of + function.name


def public_functions(module: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield "", node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from (
                (f"{node.name}.", each)
                for each in node.body
                if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")
            )


def takes_bytes(function: ast.FunctionDef) -> bool:
    arguments = [*function.args.args, *function.args.kwonlyargs]
    named = {
        getattr(node, "id", getattr(node, "attr", None))
        for argument in arguments
        if argument.annotation is not None
        for node in ast.walk(argument.annotation)
    }
    return bool(named & BYTES)


def test_every_decoder_is_among_them() -> None:
    entered = {(code.co_filename, code.co_firstlineno) for family in FAMILIES for code in works(family)[-1].entered}
    without = [
        f"{Path(file).relative_to(ROOT)}: {name}" for file, line, name in decoders() if (file, line) not in entered
    ]
    assert not without, "no family of decoding_families.py runs these: add one that makes their loops turn"


# --- regular expressions, whose work cannot be counted

SEARCHES = ("search", "finditer", "findall", "sub", "subn")
RESTARTS = {
    ("wire/feed/json_pointer.py", "search"): "of an option",
    ("wire/feed/strict_json.py", "sub"): "of six characters, none of which can begin another match",
}
"""Where a regular expression is looked for, and not matched at one place."""


def test_no_expression_starts_again_at_every_byte() -> None:
    """A string without an end is read to the end of the text from each of its quotes on: a square."""
    found = set()
    for place in PLACES:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Attribute) and node.attr in SEARCHES:
                    found.add((file.relative_to(ROOT).as_posix(), node.attr))
    assert found == set(RESTARTS)
