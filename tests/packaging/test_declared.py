"""What the code imports is what pyproject.toml declares, in the base or in the extra of its part."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spark_streams.protocols import OF_THE_LOG
from tests.packaging.release import ROOT
from tests.test_layering import imported, shipped

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PARTS = {
    "log": (
        "spark_streams/cli/",
        "spark_streams/server/feed/",
        "spark_streams/server/http/",
        "spark_streams/server/web/",
        "spark_streams/spark/progress/prometheus.py",
        "spark_streams/testing/log_window.py",
    ),
    "opentelemetry": ("spark_streams/spark/progress/opentelemetry.py",),
    "spark": ("spark_streams/", "sources/", "sinks/"),  # which of them may import it, tests/test_layering.py says
    "test": ("spark_streams/testing/",),  # pytest, which brings its users' plugin to life
}
"""Extra to the modules that may import what it brings."""
OURS = {"spark_streams", "pyspark_amqp_events", "pyspark_feedapi", "pyspark_rabbitmq_stream"}
INSTALLED = packages_distributions()


def requirements(extra: str | None = None) -> list[Requirement]:
    """Return the requirements of the base package or of an extra, as pyproject.toml has them."""
    lines = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


def names(required: Iterable[Requirement]) -> set[str]:
    return {canonicalize_name(each.name) for each in required}


@functools.cache
def distributions(top: str) -> frozenset[str]:
    """Return the packages that have a module at the top, of which ``google`` has several: none for Python's own."""
    if top in sys.stdlib_module_names or top in OURS:
        return frozenset()
    return frozenset(map(canonicalize_name, INSTALLED.get(top, [top])))


def tops(source: str) -> set[str]:
    """Return the modules at the top that a file imports, but for types alone."""
    return {module.partition(".")[0] for module in imported(ast.parse(source))}


def undeclared(where: str, source: str) -> set[str]:
    """Return the modules that a file imports, and that neither the base nor the extra of its part brings."""
    extras = [extra for extra, parts in PARTS.items() if where.startswith(parts)]
    declared = names(requirements()).union(*(names(requirements(extra)) for extra in extras))
    return {top for top in tops(source) if distributions(top) and not distributions(top) & declared}


def test_what_is_imported_is_declared_where_it_is_used() -> None:
    files = {file.relative_to(ROOT).as_posix(): file.read_text() for file in shipped()}
    assert {where: found for where, text in files.items() if (found := undeclared(where, text))} == {}


def test_an_import_that_is_not_declared_is_noticed() -> None:
    assert undeclared("spark_streams/client/tcp.py", "import click, numpy, json") == {"click"}
    assert undeclared("spark_streams/server/http/door.py", "import h11\ndef f():\n    import yaml") == {"yaml"}
    assert undeclared("spark_streams/spark/progress/figures.py", "import prometheus_client") == {"prometheus_client"}


@pytest.mark.parametrize("extra", [None, "log"])
def test_what_is_declared_is_imported(extra: str | None) -> None:
    used = {each for file in shipped() for top in tops(file.read_text()) for each in distributions(top)}
    assert names(requirements(extra)) - used == set()


def test_the_sentence_names_what_the_extra_brings() -> None:
    assert {canonicalize_name(module) for module in OF_THE_LOG} == names(requirements("log"))


IMPORT_ALL = f"""
import importlib, json, pkgutil, sys
sys.modules.update(dict.fromkeys({OF_THE_LOG!r}))
import spark_streams
lacking = []
for module in pkgutil.walk_packages(spark_streams.__path__, "spark_streams."):
    try:
        module.name.endswith("__main__") or importlib.import_module(module.name)
    except ModuleNotFoundError as fault:
        assert fault.name.partition(".")[0] in {OF_THE_LOG!r}, fault
        lacking.append(module.name)
import pyspark_amqp_events, pyspark_feedapi, pyspark_rabbitmq_stream
print(json.dumps(lacking))
"""
"""Imports every module where the packages of the log are not installed."""


def test_only_the_log_needs_its_packages() -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    lacking = [name.replace(".", "/") for name in json.loads(ran.stdout)]
    assert [name for name in lacking if not name.startswith(PARTS["log"])] == []
    assert {"spark_streams/cli/command", "spark_streams/server/web/application"} < set(lacking)
    # The doors are made without them, and say what they lack when they are opened.
    assert not [name for name in lacking if name.endswith(("/config", "/door"))]


def planned(*arguments: str) -> dict[str, str]:
    """Return what pip would install into an empty environment: each package's name, and the file that it takes."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    ran = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)["install"]
    return {canonicalize_name(each["metadata"]["name"]): each["download_info"]["url"] for each in found}


@pytest.mark.nightly
def test_a_base_install_builds_nothing() -> None:
    files = planned("-c", str(ROOT / "constraints.txt"), *map(str, requirements()))
    assert sorted(name for name, file in files.items() if not file.endswith(".whl")) == []
    assert names(requirements()) - {"tomli"} <= files.keys()


@pytest.mark.nightly
@pytest.mark.parametrize("python", re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"])))
def test_everything_has_a_wheel_for_each_python(python: str, tmp_path: Path) -> None:
    """What pip gives today; pip reads markers as of the Python that it runs on, so that pins do not fit others."""
    wheels = ["--only-binary", ":all:", "--python-version", python, "--target", str(tmp_path)]
    required = [*requirements(), *requirements("log")]
    planned(*wheels, *map(str, required))
