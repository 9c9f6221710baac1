"""What `make today` tells: where what pip gives today is not what constraints.txt says."""

from __future__ import annotations

from tests.packaging.test_release import dry_run
from tests.packaging.today import differences

CONSTRAINTS = """# comment
certifi==2026.10.18
Typing_Extensions==4.16.0
old==1.0 ; python_version < "3.0"
old==2.0 ; python_version >= "3.0"
not-here==1.0
"""


def test_a_package_of_another_version_is_told_and_one_without_a_version() -> None:
    installed = {"certifi": "2026.10.19.post1", "typing-extensions": "4.16.0", "old": "2.0", "new": "3.1"}
    assert list(differences(CONSTRAINTS, installed)) == [
        "certifi 2026.10.19.post1, and constraints.txt has ==2026.10.18",
        "new 3.1, and constraints.txt has none",
    ]


def test_nothing_of_todays_environment_is_constrained() -> None:
    told = dry_run("--always-make", "VENV=.venv-today", "CONSTRAINTS=", "setup", "audit", "all-tests")
    assert "pip-audit" in told and "-e '.[dev]'" in told
    assert "-c constraints.txt" not in told and ".venv/" not in told
    assert " -c constraints.txt " in dry_run("--always-make", "setup")
