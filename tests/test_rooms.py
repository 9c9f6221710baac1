"""The house: no import circle, files of one idea, and the same roles in the sibling rooms of the three protocols."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.code_lines import product_code

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "spark_streams"
PROTOCOLS = ("amqp", "rabbitmq", "feed")
ROLES = {
    "client": ({"client", "errors", "pushdown", "range_reader", "row_decoder"}, PROTOCOLS),
    "server": ({"config"}, PROTOCOLS),
    "server of connections": ({"connection", "handshake", "node"}, ("amqp", "rabbitmq")),
}
MOST_LINES = 400
FEW_LINES = 70
MOST_SMALL = 20
"""Modules of fewer than 70 lines that are a role of their own; more of them, and ideas lie in pieces."""
MOST_CODE = 39_000
"""Lines of code of the whole product, without docstrings, comments, blanks and imports; only an issue changes it."""


def modules() -> dict[str, Path]:
    """Return the product's modules by their dotted names."""
    found = {}
    for folder, base in ((PACKAGE, ROOT), (ROOT / "sources", PACKAGE), (ROOT / "sinks", PACKAGE)):
        for file in folder.rglob("*.py"):
            parts = (
                (PACKAGE / file.relative_to(ROOT) if base is PACKAGE else file).relative_to(ROOT).with_suffix("").parts
            )
            found[".".join(parts).removesuffix(".__init__")] = file
    return found


def imported(tree: ast.Module, known: set[str]) -> set[str]:
    """Return the modules among the known ones that a module imports anywhere, under TYPE_CHECKING too."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= whole & known
            if whole - known:
                names.add(node.module)
    return names & known


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return a circle of imports, each imported by the next; none when there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as fault:
        return list(fault.args[1])
    return []


def test_no_imports_go_in_a_circle() -> None:
    files = modules()
    known = set(files)
    assert {"spark_streams.wire.amqp.message", "spark_streams.sinks.feedapi", "spark_streams.log"} <= known
    graph = {name: imported(ast.parse(file.read_text()), known) - {name} for name, file in files.items()}
    assert circle(graph) == []


def test_a_circle_is_found_under_type_checking_too() -> None:
    known = {"a", "a.b", "c"}
    first = imported(ast.parse("if TYPE_CHECKING:\n    from c import Thing"), known)
    second = imported(ast.parse("def f():\n    from a import b"), known)
    assert (first, second) == ({"c"}, {"a.b"})
    assert set(circle({"a.b": first, "c": second})) == {"a.b", "c"}


def lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def test_a_file_holds_one_idea() -> None:
    long = {file.relative_to(ROOT).as_posix(): lines(file) for file in modules().values() if lines(file) > MOST_LINES}
    assert long == {}


def test_few_modules_are_small() -> None:
    small = [file for file in modules().values() if lines(file) < FEW_LINES and file.name != "__init__.py"]
    assert len(small) <= MOST_SMALL, sorted(file.relative_to(ROOT).as_posix() for file in small)


@pytest.mark.parametrize("layer", ROLES)
def test_the_same_role_has_the_same_name(layer: str) -> None:
    roles, protocols = ROLES[layer]
    for protocol in protocols:
        room = PACKAGE / layer.split()[0] / protocol
        assert roles <= {file.stem for file in room.glob("*.py")}, room


def test_the_product_stays_as_small_as_it_is() -> None:
    counted = product_code(ROOT)
    assert {"pyspark_feedapi.py", "spark_streams/errors.py", "sources/feedapi.py", "sinks/feedapi.py"} <= counted.keys()
    assert sum(counted.values()) <= MOST_CODE
