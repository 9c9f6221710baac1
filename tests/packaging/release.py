"""What ``make release-check`` does: whether this checkout can be released, and as what.

Builds the sdist and, from it, the wheel; has twine check both; installs each, with extra ``log``, in a virtual
environment of its own, where all modules of the package are imported, and the command says its version; and looks for
the version in CHANGELOG.md. What was built is left in build/release/dist. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "release"

SMOKE = """
import importlib, importlib.metadata, pkgutil, sys
import spark_streams

OF_EXTRAS = {"pyspark", "pytest"}
failed, imported = [], 0
for module in pkgutil.walk_packages(spark_streams.__path__, "spark_streams.", onerror=failed.append):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
        imported += 1
    except ModuleNotFoundError as fault:
        if fault.name.partition(".")[0] not in OF_EXTRAS:
            failed.append(f"{module.name}: {fault}")
assert not failed, failed
assert imported > 200, imported
assert "site-packages" in spark_streams.__file__, spark_streams.__file__
names = {path.parts[0] for path in importlib.metadata.files("spark-streams")}
assert not names & {"sources", "sinks", "conf", "tests"}, names
print(f"{imported} modules imported")
"""
"""Imports all modules, but those that need what an extra brings that is not installed."""


def faults_of_the_changelog(text: str, version: str, tag: str | None) -> list[str]:
    """Return what is wrong with a changelog for the release of a version.

    Args:
        text: the changelog.
        version: that of pyproject.toml.
        tag: the tag that is released, such as ``v0.1.0``; None while nothing is. With one, the version needs a date.
    """
    faults = []
    if tag is not None and tag != f"v{version}":
        faults.append(f"the tag is {tag}, and pyproject.toml has version {version}: expected v{version}")
    heading = re.search(rf"^## \[{re.escape(version)}\](?: - (.+))?$", text, re.MULTILINE)
    if heading is None:
        faults.append(f"CHANGELOG.md has no heading '## [{version}] - YYYY-MM-DD', for the version of pyproject.toml")
    elif tag is not None and not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[1] or ""):
        faults.append(f"CHANGELOG.md has '{heading[0]}': expected the day of the release, as YYYY-MM-DD")
    return faults


def run(*command: object, cwd: Path = ROOT) -> str:
    """Run a command and return what it prints; end with all that it said when it fails."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}release-check: this failed: {' '.join(map(str, command))}")
    return done.stdout


def install_and_try(package: Path, version: str) -> None:
    """Install a file in a new virtual environment, import its modules there, and ask the command for its version."""
    environment = FOLDER / f"venv-{package.suffix.removeprefix('.')}"
    run(sys.executable, "-m", "venv", "--clear", environment)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", f"{package}[log]")
    tried = run(python, "-c", SMOKE, cwd=FOLDER).strip()  # away from the checkout, whose package would be imported
    said = run(environment / "bin" / "spark-streams", "--version", cwd=FOLDER).strip()
    if said != f"spark-streams {version}":
        sys.exit(f"release-check: {package.name}: spark-streams --version says '{said}', expected {version}")
    print(f"release-check: {package.name}: {tried}, {said}", flush=True)
    shutil.rmtree(environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tag", help="the tag that is released, such as v0.1.0: the changelog then needs a date")
    tag = parser.parse_args().tag
    (version,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    faults = faults_of_the_changelog((ROOT / "CHANGELOG.md").read_text(), version, tag)
    if faults:
        sys.exit("\n".join(f"release-check: {fault}" for fault in faults))
    shutil.rmtree(FOLDER, ignore_errors=True)
    print("release-check: building the sdist, and the wheel from it", flush=True)
    run(sys.executable, "-m", "build", "--outdir", FOLDER / "dist")
    built = sorted((FOLDER / "dist").iterdir())
    if [package.suffix for package in built] != [".whl", ".gz"]:
        sys.exit(f"release-check: built were {[package.name for package in built]}, expected a wheel and an sdist")
    print(run(sys.executable, "-m", "twine", "check", "--strict", *built), end="", flush=True)
    print("release-check: installing each in an environment of its own: a minute or two", flush=True)
    for package in built:
        install_and_try(package, version)
    print(f"release-check: version {version} can be released: {', '.join(package.name for package in built)}")


if __name__ == "__main__":
    main()
