"""Tell in what this environment differs from constraints.txt: what pip gives today from what changes are tested with.

`make today` runs it. A difference is no failure: constraints.txt is brought up to date when somebody changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"


def differences(constraints: str, installed: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each package that is installed and not pinned to its version.

    Args:
        constraints: text of a file of constraints.
        installed: the version of each package, by its canonical name.
    """
    lines = (Requirement(line) for line in constraints.splitlines() if line and not line.startswith("#"))
    pinned = {canonicalize_name(each.name): each for each in lines if not each.marker or each.marker.evaluate()}
    for name, version in sorted(installed.items()):
        if name not in pinned:
            yield f"{name} {version}, and constraints.txt has none"
        elif not pinned[name].specifier.contains(version, prereleases=True):
            yield f"{name} {version}, and constraints.txt has {pinned[name].specifier}"


if __name__ == "__main__":
    here = {canonicalize_name(each.name): each.version for each in distributions() if each.name != "spark-streams"}
    print(*(f"today: {line}" for line in differences(CONSTRAINTS.read_text(), here)), sep="\n", flush=True)
