"""``spark-streams-python``: workers run PySpark's files instead of its archive; all else runs in its Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spark_streams.worker_python import executable, with_files

WHERE = "import sys\nprint(__name__, __file__, sys.argv)\n"


def archive_in(home: Path) -> str:
    """Make ``pyspark.zip`` where Spark has it, with a module ``pyspark.where``, and return its path."""
    archive = home / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("pyspark/__init__.py", "")
        files.writestr("pyspark/where.py", WHERE)
    return str(archive)


def files_in(folder: Path) -> str:
    """Make the package ``pyspark`` with the same module in a folder, and return the folder's path."""
    (folder / "pyspark").mkdir(parents=True, exist_ok=True)
    for name, text in {"__init__.py": "", "daemon.py": "", "where.py": WHERE}.items():
        (folder / "pyspark" / name).write_text(text)
    return str(folder)


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # As the command does; in a process of its own, as it may become another program.
    program = "import sys; from spark_streams.worker_python import main; sys.argv[0] = 'spark-streams-python'; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_downloaded_spark_has_its_files_beside_the_archive(tmp_path: Path) -> None:
    archive, folder = archive_in(tmp_path), files_in(tmp_path / "python")
    assert with_files(["", archive, "/elsewhere"]) == ["", folder, "/elsewhere"]


def test_an_installed_spark_is_the_package_itself(tmp_path: Path) -> None:
    folder = files_in(tmp_path / "site-packages")
    archive = archive_in(tmp_path / "site-packages" / "pyspark")
    assert with_files([archive, folder]) == [folder, folder]


def test_an_archive_alone_stays(tmp_path: Path) -> None:
    archive = archive_in(tmp_path / "spark")
    files_in(tmp_path / "spark" / "other")
    assert with_files([archive]) == [archive]


def test_files_of_another_spark_are_not_taken(tmp_path: Path) -> None:
    # The folder that holds the home has a package of that name, which is not this Spark's.
    archive = archive_in(tmp_path / "spark")
    files_in(tmp_path)
    assert with_files([archive]) == [archive]


def test_the_jar_of_sparks_core_is_left_out() -> None:
    assert with_files(["/a", "/spark/jars/spark-core_2.13-4.3.0.jar", "/spark/jars/other.jar"]) == [
        "/a",
        "/spark/jars/other.jar",
    ]


def test_what_is_left_out_is_not_read_again_when_caches_are_dropped(tmp_path: Path) -> None:
    archive, _ = archive_in(tmp_path), files_in(tmp_path / "python")
    jar = tmp_path / "jars" / "spark-core_2.13-4.3.0.jar"
    jar.parent.mkdir()
    shutil.copy(archive, jar)
    where = tmp_path / "python" / "pyspark" / "where.py"
    where.write_text("import sys\nprint(list(sys.path_importer_cache))\n")
    done = run("-m", "pyspark.where", cwd=tmp_path, PYTHONPATH=os.pathsep.join([archive, str(jar)]))
    assert done.stderr == ""
    assert archive not in done.stdout and str(jar) not in done.stdout


def test_other_entries_stay_as_they_are() -> None:
    assert with_files(["/a/other.zip", "/spark/python/lib/py4j-0.10-src.zip", "/b"]) == [
        "/a/other.zip",
        "/spark/python/lib/py4j-0.10-src.zip",
        "/b",
    ]


def test_a_module_of_pyspark_runs_as_with_m(tmp_path: Path) -> None:
    archive, folder = archive_in(tmp_path), files_in(tmp_path / "python")
    done = run("-m", "pyspark.where", "pyspark.worker", "x", cwd=tmp_path, PYTHONPATH=archive)
    where = os.path.join(folder, "pyspark", "where.py")
    assert done.stderr == ""
    assert done.stdout == f"__main__ {where} {[where, 'pyspark.worker', 'x']}\n"
    assert list((tmp_path / "python" / "pyspark").glob("__pycache__/__init__.*.pyc")), "bytecode is kept"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["-c", "import sys; print(sys.argv)", "a", "b"], "['-c', 'a', 'b']\n"),
        (["-m", "json.tool", "--help"], "usage: "),
        (["program.py", "1"], "program 1\n"),
    ],
)
def test_anything_else_is_the_python_it_belongs_to(tmp_path: Path, arguments: list[str], shown: str) -> None:
    (tmp_path / "program.py").write_text("import sys; print('program', *sys.argv[1:])")
    done = run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(shown)


def test_its_exit_code_is_the_programs(tmp_path: Path) -> None:
    assert run("-c", "raise SystemExit(7)", cwd=tmp_path).returncode == 7


def test_the_installed_command_is_what_workers_use() -> None:
    assert Path(executable()).name == "spark-streams-python"
    done = subprocess.run([executable(), "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
    assert done.stdout.strip() == sys.executable


def test_without_the_command_python_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert executable() == str(tmp_path / "python")
