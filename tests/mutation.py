"""A random but repeatable share of a folder's mutants, each judged by the tests of its room; `make mutation`.

mutmut changes the sources one small piece at a time (`<` to `<=`, `1` to `2`, an argument to None) and runs the tests
that reach the changed function. A mutant that no test minds has survived: a test is missing there, the code does
nothing, or the change makes no difference. The tests are those that need neither Spark nor a broker, with the same
Hypothesis examples every time. Verdicts are kept in build/mutation: a second run tries what survived, and what is in
functions that changed since; `make clean` forgets them.

Left out are what runs at import and decorated functions, properties among them (by mutmut), and the words of messages.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

LEFT_OUT = ["*_pb2.py", "spark_streams/spark/progress/listener.py"]
"""What is generated, and what nothing but Spark can judge."""

ROOMS = {
    "spark_streams/wire": "tests/wire tests/filters/predicates/test_amqp_sql.py",
    "spark_streams/wire/feed": "tests/wire/feed",
    "spark_streams/wire/rabbitmq": "tests/wire/rabbitmq",
    "spark_streams/log": "tests/log",
    "spark_streams/filters": "tests/filters",
    "spark_streams/options": "tests/options tests/test_endpoint.py tests/test_secrets.py",
    "spark_streams/options/values.py": "tests/options tests/test_endpoint.py",
    "spark_streams/endpoint.py": "tests/options tests/test_endpoint.py",
    "spark_streams/position.py": "tests/test_position.py tests/options tests/spark",
    "spark_streams/spark/splitting.py": "tests/spark/test_splitting.py tests/spark",
    "spark_streams/secrets.py": "tests/test_secrets.py",
    "spark_streams/spark": "tests/spark tests/spark/test_splitting.py tests/test_monitoring.py",
    "spark_streams/client": "tests/client",
    "spark_streams/client/feed": "tests/client/feed",
    "spark_streams/client/rabbitmq": "tests/client/rabbitmq",
    "spark_streams/server": "tests/server",
    "spark_streams/server/feed": "tests/server/feed",
    "spark_streams/server/rabbitmq": "tests/server/rabbitmq",
}
"""Which tests judge a folder or a module: those of its longest prefix here."""


def tests_of(target: str) -> list[str]:
    """Return the tests that judge this folder or module."""
    rooms = [room for room in ROOMS if target == room or target.startswith(f"{room}/")]
    if not rooms:
        raise SystemExit(f"no tests are named for {target}; name them in ROOMS of {Path(__file__).name}")
    return ROOMS[max(rooms, key=len)].split()


def workplace(target: str) -> Path:
    """Make the folder that mutmut works in: links to the sources and tests, and its own settings."""
    place = REPOSITORY / "build" / "mutation" / target.replace("/", "-").removesuffix(".py")
    place.mkdir(parents=True, exist_ok=True)
    for name in ("spark_streams", "tests", "docs", "conf"):
        if not (place / name).is_symlink():
            (place / name).symlink_to(REPOSITORY / name)
    settings = {
        "source_paths": ["spark_streams"],
        "only_mutate": [f"{target}/*" if (REPOSITORY / target).is_dir() else target],
        "do_not_mutate": LEFT_OUT,
        "also_copy": ["docs", "conf"],
        "pytest_add_cli_args_test_selection": tests_of(target),
        "pytest_add_cli_args": ["--hypothesis-profile=same", "-m", "not spark and not nightly and not rabbitmq"],
        "timeout_constant": 4.0,
        "track_dependencies": False,
        "use_setproctitle": False,
    }
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (place / "pyproject.toml").write_text(f"{(REPOSITORY / 'pyproject.toml').read_text()}\n[tool.mutmut]\n{lines}")
    return place


def mutmut(place: Path, *arguments: str) -> int:
    """Run mutmut there, one mutant at a time; what tests write goes to memory where that can be."""
    memory = {"TMPDIR": "/dev/shm"} if os.access("/dev/shm", os.W_OK) else {}
    with (place / "mutmut.log").open("a") as log:
        return subprocess.call(
            [sys.executable, "-m", "mutmut", "run", "--max-children", "1", *arguments],
            cwd=place,
            env={**os.environ, **memory},
            stdout=log,
            stderr=log,
        )


def verdicts(place: Path) -> dict[str, int | None]:
    """Return pytest's exit code by mutant, None for one that was not tried."""
    codes: dict[str, int | None] = {}
    for kept in sorted((place / "mutants" / "spark_streams").rglob("*.meta")):
        codes.update(json.loads(kept.read_text())["exit_code_by_key"])
    return codes


class Changes:
    """What mutants change, read from the files that mutmut wrote: each holds every function in all its variants."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._bodies: dict[str, dict[str, str]] = {}

    def of(self, mutant: str) -> str:
        """Return a mutant as a diff, with the file's name."""
        module, _, name = mutant.rpartition(".")
        path = f"{module.replace('.', '/')}.py"
        if not (self._place / path).exists():
            path = f"{module.replace('.', '/')}/__init__.py"
        if path not in self._bodies:
            self._bodies[path] = self._variants((self._place / "mutants" / path).read_text())
        original = self._bodies[path][f"{name.rpartition('__mutmut_')[0]}__mutmut_orig"]
        diff = difflib.unified_diff(original.splitlines(), self._bodies[path][name].splitlines(), n=2, lineterm="")
        return "\n".join([f"{path}: {mutant}", *list(diff)[2:]])

    @staticmethod
    def _variants(text: str) -> dict[str, str]:
        lines = text.splitlines()
        found = {}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "__mutmut_" in node.name:
                body = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                found[node.name] = body.replace(node.name, node.name.rpartition("__mutmut_")[0])
        return found


TIMED_OUT = (-24, 24, 36, 152, 255)
"""Exit codes of tests that mutmut ended, which tell a mutant from the original as a failure does."""
PROSE = re.compile(r"""f?"[^"]* [^"]*"|f?'[^']* [^']*'|f?"{3}.*""")


def only_words(diff: str) -> bool:
    """Tell whether a mutant changes nothing but the words of a message: a string with a blank in it."""
    changed = [line for line in diff.splitlines()[1:] if line[:1] in "+-"]
    taken = [PROSE.sub("", line[1:]) for line in changed if line[0] == "-"]
    given = [PROSE.sub("", line[1:]) for line in changed if line[0] == "+"]
    return taken == given


def main() -> None:
    """Try a sample of the mutants of a folder or a module, and print the survivors."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", metavar="FOLDER", help="a folder or a module, e.g. spark_streams/filters")
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    target = given.target.rstrip("/")
    if not (REPOSITORY / target).exists():
        raise SystemExit(f"there is no {target}")
    if not importlib.util.find_spec("mutmut"):
        raise SystemExit("mutmut is missing (it needs Python 3.11): pip install -c constraints.txt -e '.[mutation]'")
    place = workplace(target)
    mutmut(place, "none")  # makes the mutants, and finds which tests reach which function
    if not (place / "mutants" / "mutmut-stats.json").exists():
        raise SystemExit(f"mutmut could not begin; {place / 'mutmut.log'} says why")
    changes = Changes(place)
    mutants = [name for name in sorted(verdicts(place)) if not only_words(changes.of(name))]
    sample = sorted(random.Random(given.seed).sample(mutants, min(given.sample, len(mutants))))
    reached = json.loads((place / "mutants" / "mutmut-stats.json").read_text())["tests_by_mangled_function_name"]
    judged = [name for name in sample if reached.get(name.rpartition("__mutmut_")[0])]
    codes = verdicts(place)
    left = [name for name in judged if codes[name] in (None, 0)]
    if left and mutmut(place, *left):
        raise SystemExit(f"mutmut failed; {place / 'mutmut.log'} says why")
    codes = verdicts(place)
    survivors = [name for name in judged if codes[name] == 0]
    unreached = [name for name in sample if name not in judged]
    timed_out = sum(codes[name] in TIMED_OUT for name in judged)
    for name in survivors:
        print(changes.of(name), end="\n\n")
    for name in unreached:
        print(f"no test reaches: {changes.of(name)}", end="\n\n")
    print(f"{target}: {len(sample)} of {len(mutants)} mutants, seed {given.seed}")
    print(f"survived: {len(survivors)}; in functions that no test reaches: {len(unreached)}; timed out: {timed_out}")
    print(f"share that survived: {(len(survivors) + len(unreached)) / max(1, len(sample)):.1%}")


if __name__ == "__main__":
    main()
