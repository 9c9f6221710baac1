"""Two revisions of the product, each in processes of its own, in alternation; the bench itself is this revision's."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.harness.figures import Figures, compare, read_all
from tests.bench.harness.formats import FORMATS
from tests.bench.harness.measure import ROOT

OURS = [form.name for form in FORMATS.values() if form.ours]


def compare_with(revision: str, measures: Sequence[str], options: argparse.Namespace) -> str:
    """Return a table of the least and the median of each figure of a revision, and of the tree as it is.

    Raises:
        subprocess.CalledProcessError: there is no such revision, or a run failed.
    """
    seen = {"old": Figures(), "new": Figures()}
    with checked_out(revision) as tree, tempfile.TemporaryDirectory() as results:
        views = {"old": view(tree, Path(results) / "old"), "new": view(ROOT, Path(results) / "new")}
        for number in range(options.rounds):
            for side in reversed(views) if number % 2 else views:
                folder = Path(results) / f"{side}-{number}"
                _run(views[side], measures, options, folder)
                for figure in read_all(folder):
                    for value in figure.rounds:
                        seen[side].add(figure.measure, figure.subject, {figure.name: value})
    return compare(seen["old"], seen["new"])


@contextlib.contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A work tree of a revision while the context is open."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory(prefix="spark-streams-bench-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def view(tree: Path, folder: Path) -> Path:
    """Return a folder for ``PYTHONPATH`` in which a tree's packages lie as the wheel would have them."""
    package = folder / "spark_streams"
    package.mkdir(parents=True)
    for part in (*(tree / "spark_streams").iterdir(), tree / "sources", tree / "sinks", tree / "conf"):
        if part.name != "__pycache__":
            (package / part.name).symlink_to(part)
    for module in tree.glob("pyspark_*.py"):
        (folder / module.name).symlink_to(module)
    (folder / "tests").symlink_to(ROOT / "tests")
    return folder


def _run(where: Path, measures: Sequence[str], options: argparse.Namespace, results: Path) -> None:
    words = [*measures, "--rounds", "1", "--json", str(results), "--formats", ",".join(options.formats or OURS)]
    words += ["--rows", str(options.rows), "--seconds", str(options.seconds)]
    words += ["--partitions", ",".join(map(str, options.partitions))]
    for name, value in options.conf:
        words += ["--conf", f"{name}={value}"]
    path = os.pathsep.join(filter(None, [str(where), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-m", "tests.bench.peers", *words]
    subprocess.run(command, cwd=where, env=environment, check=True, stdout=sys.stderr)
