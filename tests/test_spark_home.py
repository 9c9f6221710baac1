"""The SPARK_HOME of tests has what the installed Spark has, its Python as folders."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pyspark
import pytest

from tests.spark_home import spark_home

INSTALLED = Path(pyspark.__file__).parent
NOT_INSTALLED = re.compile("/(tests|benchmark)/")
ZIPS = sorted(each.name for each in (INSTALLED / "python" / "lib").glob("*.zip"))


def test_it_is_made_once() -> None:
    assert spark_home() == spark_home()
    assert len(ZIPS) == 2


@pytest.mark.parametrize("name", ZIPS)
def test_each_package_is_there_as_a_folder(name: str) -> None:
    zipped = zipfile.ZipFile(INSTALLED / "python" / "lib" / name)
    modules = {each for each in zipped.namelist() if each.endswith(".py") and not NOT_INSTALLED.search(each)}
    folder = spark_home() / "python" / "lib" / name
    assert {each.name for each in folder.iterdir()} == {Path(each).parts[0] for each in modules}
    for each in modules:
        assert (folder / each).read_bytes() == zipped.read(each), each


def test_scripts_and_jars_are_the_installed_ones() -> None:
    for each in ("bin", "jars"):
        assert (spark_home() / each).resolve() == (INSTALLED / each).resolve()
