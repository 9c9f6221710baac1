"""Secrets appear nowhere: not in plans, pages, logs, errors, event logs, checkpoints, spools or pickles.

By day in what this process sees of plans, errors and checkpoints, with a log in this process, as that of the run lets
anybody in. At night a program of its own, with users and tokens of its own, and Spark's pages switched on. It is also a
client of a Spark Connect server, which shows requests as they are, but for what the setting of conf/spark-defaults.conf
takes out.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, FeedConfig, RabbitConfig, ServerThread
from spark_streams.testing import KeptQuery
from tests.client.feed.scripted import EchoingFeed, Part, numbered

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_800)]

ROOT = Path(__file__).parents[2]
KINDS = (
    "partition", "plan", "stream-plan", "progress", "pickle", "stream-pickle", "not-there", "refused", "page", "repr",
)  # fmt: skip
OF_STREAMS = ("stream-plan", "progress", "stream-pickle")
NAMES = ("url", "option", "query", "token", "wrong", "password", "bearer", "refused", "key")
SHOWN = ("shown-url", "shown-option", "shown-token", "shown-key")
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


def basic(secret: bytes, user: bytes = b"ann:") -> bytes:
    """Return what HTTP's basic authentication sends for a user; the rest of three bytes is left out."""
    return base64.b64encode((user + secret)[: (4 + len(secret)) // 3 * 3])


def basic_of_bob(secret: bytes) -> bytes:
    """Return what is sent for user bob."""
    return basic(secret, b"bob:")


def unquoted(secret: bytes) -> bytes:
    """Return the bytes of a signature, which is percent-encoded in a token."""
    return unquote_to_bytes(secret)


def mask(secret: bytes) -> bytes:
    """Return the bytes as a pickle has them (docs/security.md)."""
    return bytes(byte ^ 0xA5 for byte in secret)


@pytest.mark.parametrize("name", ["amqp-events", pytest.param("rabbitmq-stream", marks=pytest.mark.nightly), "feedapi"])
def test_no_secret_is_shown_by_plans_errors_and_checkpoints(
    spark: SparkSession, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str], rate_limits: bool
) -> None:
    right, wrong = (f"geheim-{kind}-{secrets.token_hex(8)}" for kind in ("right", "wrong"))
    users = {"ann": right}
    shown: list[str] = []

    def fails(run: Callable[[], object]) -> None:
        with pytest.raises(PySparkException) as caught:
            run()
        shown.append(f"{caught.value} {caught.value!r}")
        assert "AuthenticationFailed" in shown[-1]

    with (
        ReferenceLog(tmp_path / "log") as log,
        ServerThread(
            log,
            AmqpConfig(port=0, users=users),
            RabbitConfig(port=0, users=users, authentication_delay_ms=0),
            FeedConfig(port=0, tokens=(right,)),
        ) as server,
    ):
        log.create_stream("orders", 1).partitions["0"].append([b"\x00\x53\x75\xa0\x02{}"])

        def options(secret: str) -> dict[str, str]:
            if name == "feedapi":
                return {"url": f"{server.feed_url}/orders", "token": secret}
            url = server.urls["amqp" if name == "amqp-events" else name]
            return {"url": url, "stream": "orders", "username": "ann", "password": secret}

        frame = spark.read.format(name).options(**options(right)).load()
        frame.explain(True)
        frame.explain("formatted")
        shown += [repr(frame), frame._jdf.queryExecution().toString()]
        assert frame.count() == 1
        fails(lambda: spark.read.format(name).options(**options(wrong)).load().count())
        if name == "feedapi" and not rate_limits:
            return  # streams of feeds need Spark 4.2
        with KeptQuery(tmp_path) as query:
            stream = spark.readStream.format(name)
            query.drain(stream.options(**options(right), startingOffsets="earliest").load())
            assert len(query.rows) == 1
            shown.append(json.dumps([dict(each) for each in query.running.recentProgress], default=str))
            wrongly = stream.options(**options(wrong)).load()
            fails(lambda: query.drain(wrongly))
            shown.append(str(query.running.exception()))
    shown += capfd.readouterr()
    shown += [file.read_text(errors="replace") for file in query.checkpoint.rglob("*") if file.is_file()]
    assert "BatchScan" in "".join(shown)
    for text in shown:
        assert right not in text and wrong not in text


@pytest.mark.parametrize("how", ["token", "password"])
def test_what_a_feed_echoes_is_shown_without_secrets(
    spark: SparkSession, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    secret, key = (f"geheim/{each}+{secrets.token_hex(8)}" for each in ("secret", "key"))
    user = {"token": secret} if how == "token" else {"username": "ann", "password": secret}
    with EchoingFeed({0: Part(numbered(0, 3))}) as feed:
        reader = spark.read.format("feedapi").options(url=f"{feed.url}/orders?key={key}", **user)
        with pytest.raises(PySparkException) as caught:
            reader.load().count()
        assert any("Authorization" in asked.headers for asked in feed.fetches)
    shown = f"{caught.value} {caught.value!r} {capfd.readouterr()}"
    assert "status 403" in shown and "***" in shown
    for form in (secret, key, basic(secret.encode()).decode(), quote(secret, safe=""), quote(key, safe="")):
        assert form not in shown


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_no_secret_is_shown(
    kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, rate_limits: bool, chance: random.Random
) -> None:
    marked = {name: f"geheim{name}{chance.getrandbits(64):016x}" for name in (*NAMES, *SHOWN)}
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
        timeout=1_700,
    )
    assert ran.returncode == 0, ran.stderr.decode()[-6000:]
    files = {str(file.relative_to(tmp_path)): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    files |= {"stdout": ran.stdout, "stderr": ran.stderr}
    assert holding(files, marked, bytes) == []
    signatures = {f"signature {n}": each for n, each in enumerate((apart / "signatures").read_text().split())}
    assert len(signatures) == 2, "of a connection string, and of a token"
    assert (
        holding(files, signatures, bytes, (*signatures,)) == holding(files, signatures, unquoted, (*signatures,)) == []
    )
    assert {name for name, _ in holding(files, signatures, mask, (*signatures,))} == {*signatures}, "in pickles"
    assert holding(files, marked, basic) == holding(files, marked, basic_of_bob) == []
    assert any(
        b'"Authorization": "' in content and b"***" in content
        for file, content in files.items()
        if file.endswith("-feedapi-echo")
    )
    masked = holding(files, marked, mask)
    assert {file.rpartition("-")[2] for _, file in masked} == {"pickle"}, "only sources, readers and writers"
    assert {name for name, _ in masked} == {"url", "option", "query", "token", "key"}, (
        "tasks read the others themselves"
    )
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


def test_the_setting_takes_out_what_is_under_a_name_that_nobody_knows() -> None:
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text().splitlines()
    ((name, value),) = [line.split(None, 1) for line in lines if line.startswith("spark.sql.redaction.")]
    for page in ("security.md", "databricks.md"):
        assert f"{name} {value}\n" in (ROOT / "docs" / page).read_text()
    for option, shown in (("stream", True), ("password", False), ("pasword", False), ("streamToken", False)):
        asked = f'  options {{\n    key: "{option}"\n    value: "gehe\\"im"\n  }}\n'
        assert ("im" in re.sub(value, "***", asked)) is shown
