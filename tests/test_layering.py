"""Who may import whom: the table of layers, enforced on every import statement of what is shipped."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "spark_streams"

ALLOWED = {
    "protocols": {"errors"},
    "redaction": set(),
    "preloaded": set(),
    "fork_server": {"preloaded"},
    "worker_python": {"fork_server"},
    "errors": {"redaction"},
    "instants": set(),
    "position": {"instants", "errors"},
    "offsets": {"position", "errors"},
    "rows": {"wire"},
    "wire": {"position", "offsets", "instants", "errors", "redaction"},
    "log": {"wire", "filters", "rows", "offsets", "errors"},
    "secrets": {"errors"},
    "endpoint": {"protocols", "secrets", "errors", "redaction"},
    "filters": {"wire", "rows", "position", "offsets", "errors"},
    "options": {"wire", "position", "offsets", "instants", "filters", "endpoint", "secrets", "errors"},
    "client": {
        *("protocols", "wire", "filters", "rows", "position", "offsets"),
        *("endpoint", "secrets", "redaction", "errors"),
    },
    "server": {"protocols", "wire", "log", "filters", "position", "offsets", "instants", "redaction", "errors"},
    "spark": {
        *("options", "filters", "rows", "client", "position", "offsets", "endpoint", "errors"),
        *("redaction", "pyspark"),
    },
    "monitoring": {"spark", "client", "pyspark"},
    "sources": {"spark", "client", "options", "rows", "filters", "errors", "pyspark"},
    "sinks": {"spark", "client", "options", "rows", "filters", "errors", "pyspark"},
    "testing": {"protocols", "worker_python", "client", "rows", "position", "endpoint", "errors", "pyspark"},
}
"""Layer to the layers it may import besides itself; ``cli`` is not here: it may import everything."""

AT_TOP = sorted(ROOT.glob("pyspark_*.py"))
"""The modules that Spark imports by the name of a format."""

ENTRANCES = {
    "spark_streams/__init__.py": {"protocols", "spark", "pyspark"},
    **{file.name: {"sources"} for file in AT_TOP},
}
"""The modules above all layers, through which Spark and users come in."""

CROSS = {"sources": {"sinks"}, "sinks": {"server"}}
"""A format has one DataSource class; it hands writing over to the sink of its name. The sink of feeds may be given a
log's data directory, which it opens as the log's door does."""

NO_SOCKETS = ("socket", "ssl", "asyncio", "selectors", "threading", "time", "http")
"""What the sans-IO codec may not touch: connections, threads and clocks."""


def shipped() -> list[Path]:
    """Return every module that the wheel has."""
    folders = (PACKAGE, ROOT / "sources", ROOT / "sinks")
    return [*(file for folder in folders for file in sorted(folder.rglob("*.py"))), *AT_TOP]


def layer_of(file: Path) -> str:
    """Return a module's layer: the first word below the package."""
    parts = file.relative_to(PACKAGE if file.is_relative_to(PACKAGE) else ROOT).with_suffix("").parts
    return parts[0]


def imported(tree: ast.Module) -> set[str]:
    """Return all modules that are imported anywhere in a file, but under TYPE_CHECKING."""
    only_types = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for child in ast.walk(statement)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in only_types:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            assert node.module is not None
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def layers(names: set[str]) -> set[str]:
    """Return the layers, and pyspark, that imported names belong to."""
    found = set()
    for name in names:
        top, *rest = name.split(".")
        if top == "pyspark":
            found.add("pyspark")
        elif top == "spark_streams" and rest:
            found.add(rest[0])
    return found


def upwards(file: Path) -> set[str]:
    """Return the layers that a module imports and may not know."""
    where, layer = file.relative_to(ROOT).as_posix(), layer_of(file)
    found = layers(imported(ast.parse(file.read_text())))
    if where in ENTRANCES:
        return found - ENTRANCES[where]
    if layer == "cli":
        return set()
    assert layer in ALLOWED, f"{where} is in no layer: add it to the table, or move it"
    return found - ALLOWED[layer] - CROSS.get(layer, set()) - {layer}


def test_imports_point_downwards() -> None:
    assert {file.relative_to(ROOT).as_posix(): wrong for file in shipped() if (wrong := upwards(file))} == {}


def test_the_codec_opens_no_socket_and_reads_no_clock() -> None:
    codec = sorted((PACKAGE / "wire").rglob("*.py"))
    tops = {file: {name.split(".")[0] for name in imported(ast.parse(file.read_text()))} for file in codec}
    assert len(codec) > 50
    assert {file.relative_to(ROOT).as_posix(): tops[file] for file in codec if tops[file] & set(NO_SOCKETS)} == {}


def test_the_table_is_about_what_there_is() -> None:
    there = {layer_of(file) for file in shipped()}
    assert set(ALLOWED) - there == set(), "layers that are gone"
    assert there - set(ALLOWED) == {"__init__", "cli", *(file.stem for file in AT_TOP)}
    assert "pyspark_amqp_events" in there


def test_the_check_finds_what_it_should() -> None:
    tree = ast.parse("import pyspark.sql\ndef f():\n    from spark_streams.server import LogServer\n")
    assert layers(imported(tree)) == {"pyspark", "server"}
    hidden = ast.parse("if TYPE_CHECKING:\n    from pyspark.sql import SparkSession\n")
    assert layers(imported(hidden)) == set()


BANNED_NAMES = {"manager", "helper", "helpers", "util", "utils", "data"}
OF_AN_OPTION = {"data_loss.py"}
"""Named after option ``failOnDataLoss``."""


def test_no_module_is_named_after_nothing() -> None:
    found = [file.name for file in shipped() if BANNED_NAMES & set(file.stem.split("_"))]
    assert set(found) - OF_AN_OPTION == set()
