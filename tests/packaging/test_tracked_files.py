"""What the repository holds: no addresses of package registries, no paths of one machine, only what belongs there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

WORDS = ["py.pi", "python.hosted", "npm.js", "npm.mirror", "mav.en", "arti.factory", "nex.us", "deb.ian", "index-.url"]
"""With a dot in the middle, so that this file does not name what it looks for."""
*HOSTS, OPTION = (word.replace(".", "") for word in WORDS)
REGISTRY = re.compile(rf"https?://[^\s\"')]*(?:{'|'.join(HOSTS)})[^\s\"')]*|{OPTION}", re.IGNORECASE)
MACHINE = re.compile(r"(?<![\w.])/(?:work|root|home|Users)/\w[\w./-]*")
TOP = {
    *("pyproject.toml", "README.md", "spark_streams", "sources", "sinks", "tests", "notebooks", "conf"),
    *("Makefile", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "constraints.txt", "pyspark_amqp_events.py"),
    *("pyspark_feedapi.py", "pyspark_rabbitmq_stream.py"),
    *("SECURITY.md", "findings", ".ci", ".github", ".gitignore", ".pre-commit-config.yaml"),
}


def tracked() -> list[str]:
    """Return the names of the files that git knows."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def found(pattern: re.Pattern[str]) -> list[str]:
    """Return what matches in tracked files of text, as file: match."""
    return [
        f"{name}: {match.group()}"
        for name in tracked()
        for match in pattern.finditer((ROOT / name).read_bytes().decode("utf-8", "replace"))
    ]


def test_no_file_names_a_package_registry() -> None:
    assert found(REGISTRY) == []


def test_no_file_names_a_folder_of_one_machine() -> None:
    assert found(MACHINE) == []


def test_the_patterns_find_what_they_should() -> None:
    assert all(REGISTRY.search(f"resolved: https://registry.{host}.org/rhea/-/rhea-3.tgz") for host in HOSTS)
    assert REGISTRY.search(f"pip install --{OPTION} x") and not REGISTRY.search("https://keepachangelog.com")
    assert MACHINE.search("see " + "/" + "work/main/x.py") and not MACHINE.search("a/work/b")


def test_the_top_level_is_what_was_agreed() -> None:
    assert {name.split("/")[0] for name in tracked()} - TOP == set()


def test_constraints_are_exact_and_without_addresses() -> None:
    for file in (ROOT / "constraints.txt", *(ROOT / "tests").rglob("constraints*.txt")):
        lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
        assert [
            line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+( ; python_version (<|>=) \"3\.\d+\")?", line)
        ] == []
