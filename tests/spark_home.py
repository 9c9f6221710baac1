"""The installed Spark, with its Python as folders: processes of Spark import it as compiled as any package.

Spark puts ``python/lib/pyspark.zip`` and the zip of py4j on the path of every Python process that it starts. What is in
a zip is compiled again by each of them, which takes about a second; a folder of that name is not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

__all__ = ["spark_home"]


def spark_home() -> Path:
    """Return the folder for SPARK_HOME: made once in each environment, of links to what is installed there."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    home = Path(sys.prefix) / f"spark-home-{pyspark.__version__}"
    if home.exists():
        return home
    made = Path(tempfile.mkdtemp(dir=sys.prefix))
    for each in installed.iterdir():
        if each.name in ("bin", "sbin", "jars", "data", "licenses"):
            (made / each.name).symlink_to(each)
    for zipped in (installed / "python" / "lib").glob("*.zip"):
        package = zipped.name.partition("-")[0].removesuffix(".zip")
        found = find_spec(package)
        assert found is not None and found.origin is not None, package
        folder = made / "python" / "lib" / zipped.name
        folder.mkdir(parents=True)
        (folder / package).symlink_to(Path(found.origin).parent)
    with contextlib.suppress(OSError):  # another process was first
        os.rename(made, home)
    shutil.rmtree(made, ignore_errors=True)
    return home
