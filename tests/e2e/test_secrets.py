"""Secrets appear nowhere: not in plans, pages, logs, errors, event logs, checkpoints, spools or pickles.

A program of its own, with users and tokens of its own, and Spark's pages switched on. It is also a client of a Spark
Connect server, which shows requests as they are, but for what the setting of conf/spark-defaults.conf takes out.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
KINDS = (
    "partition", "plan", "stream-plan", "progress", "pickle", "stream-pickle", "not-there", "refused", "page", "repr",
)  # fmt: skip
OF_STREAMS = ("stream-plan", "progress", "stream-pickle")
NAMES = ("url", "option", "query", "token", "wrong", "password", "bearer", "refused")
SHOWN = ("shown-url", "shown-option", "shown-token")
"""Options of a Spark Connect client whose session has no redaction."""
OF_FILES = {"password": "password", "token": "bearer", "wrong": "refused"}


def holding(
    files: Mapping[str, bytes],
    marked: Mapping[str, str],
    form: Callable[[bytes], bytes],
    names: tuple[str, ...] = NAMES,
) -> list[tuple[str, str]]:
    """Return which secret is in which file, in a form of its bytes."""
    return [(name, file) for file, content in files.items() for name in names if form(marked[name].encode()) in content]


def basic(secret: bytes) -> bytes:
    """Return what HTTP's basic authentication sends for user ann; the rest of three bytes is left out."""
    return base64.b64encode((b"ann:" + secret)[: (4 + len(secret)) // 3 * 3])


def mask(secret: bytes) -> bytes:
    """Return the bytes as a pickle has them (docs/security.md)."""
    return bytes(byte ^ 0xA5 for byte in secret)


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_no_secret_is_shown(
    kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, rate_limits: bool
) -> None:
    marked = {name: f"geheim{name}{secrets.token_hex(8)}" for name in (*NAMES, *SHOWN)}
    apart = tmp_path_factory.mktemp("secrets")
    for file, name in OF_FILES.items():
        (apart / file).write_text(marked[name])
    ran = subprocess.run(
        [sys.executable, "-m", "tests.e2e.secrets_program", kind, str(tmp_path)],
        env={
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SECRETS_FOLDER": str(apart),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        },
        cwd=tmp_path,
        input=json.dumps(marked).encode(),
        capture_output=True,
        timeout=580,
    )
    assert ran.returncode == 0, ran.stderr.decode()[-6000:]
    files = {str(file.relative_to(tmp_path)): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    files |= {"stdout": ran.stdout, "stderr": ran.stderr}
    assert holding(files, marked, bytes) == []
    assert holding(files, marked, basic) == []
    masked = holding(files, marked, mask)
    assert {file.rpartition("-")[2] for _, file in masked} == {"pickle"}, "only sources, readers and writers"
    assert {name for name, _ in masked} == {"url", "option", "query", "token"}, "tasks read the others themselves"
    # What was looked at is what it is meant to be: the streams' names, which are no secrets, are there.
    for what in KINDS:
        found = [file for file in files if file.startswith("shown/") and file.endswith(f"-{what}")]
        assert len(found) >= (3 if rate_limits or what not in OF_STREAMS else 2), what
    assert any(b"seen-in-plans" in content for file, content in files.items() if file.endswith("-partition"))
    assert any(b"BatchScan" in content for file, content in files.items() if file.endswith("-page"))
    assert any(b"SparkListenerSQLExecutionStart" in c for file, c in files.items() if file.startswith("events/"))
    assert any("/offsets/" in file for file in files)
    assert not rate_limits or any(file.startswith("spool/") for file in files), "streams of feeds need Spark 4.2"
    assert b"BatchScan" in b"".join(c for file, c in files.items() if file.startswith("events/"))
    seen = {(name, re.sub(r"/.*-", "/", file)) for name, file in holding(files, marked, bytes, SHOWN)}
    if kind == "classic":
        assert seen == set()
        return
    # Where Spark Connect shows what it was asked, options with secrets stand as long as nothing takes them out.
    log = {(name, where) for name, where in seen if where.startswith("events/")}
    assert {name for name, _ in log} == {*SHOWN}
    assert {(name, "shown/page") for name in SHOWN} <= seen
    assert b"(redacted)" in b"".join(c for file, c in files.items() if file.endswith("-connect-page"))


def test_the_page_names_the_setting() -> None:
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text().splitlines()
    ((name, value),) = [line.split(None, 1) for line in lines if line.startswith("spark.sql.redaction.")]
    for page in ("security.md", "databricks.md"):
        assert f"{name} {value}\n" in (ROOT / "docs" / page).read_text()
