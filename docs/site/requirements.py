"""Print what the extra ``site`` of pyproject.toml names, a line each: the site needs that, and not the package."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    print(*project["optional-dependencies"]["site"], sep="\n")
