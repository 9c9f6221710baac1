"""With the base package alone drivers and executors work; commands, doors and fixtures say what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_streams import cli, protocols
from spark_streams.errors import PackageMissing
from spark_streams.log import ReferenceLog
from spark_streams.server import FeedConfig, RabbitConfig, ServerThread, WebConfig
from spark_streams.testing import LogProcess

WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({protocols.OF_THE_LOG!r}))\n"
"""Has each import of them fail, as it does where they are not installed."""
LINE = (
    "needs packages that are not installed (click, h11, jinja2, prometheus_client, rich, starlette, uvicorn): "
    "pip install 'spark-streams[log]'"
)


def run(program: str, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", WITHOUT + program, *words]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("words", [["--version"], ["log", "serve"], ["demo"]], ids=" ".join)
def test_the_command_says_what_to_install(words: list[str], tmp_path: Path) -> None:
    ran = run("from spark_streams.cli import run; run()", tmp_path, *words)
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", f"Error: the command spark-streams {LINE}\n")


def test_what_else_is_there_is_found() -> None:
    with pytest.raises(AttributeError, match=r"module spark_streams\.cli has no attribute mian"):
        getattr(cli, "mian")  # noqa: B009


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one of the packages is missing, as where others have brought the rest."""
    monkeypatch.setattr(protocols, "find_spec", lambda name: None if name == "jinja2" else name)


@pytest.mark.usefixtures("lacking")
@pytest.mark.parametrize(("config", "name"), [(FeedConfig, "feedapi"), (WebConfig, "web")])
def test_a_door_that_speaks_http_says_so(config: type[FeedConfig | WebConfig], name: str, tmp_path: Path) -> None:
    words = rf"the door --{name} needs packages that are not installed \(jinja2\): pip install 'spark-streams\[log\]'"
    with ReferenceLog(tmp_path) as log:
        with pytest.raises(PackageMissing, match=words), ServerThread(log, config(port=0)):
            pass
        with ServerThread(log, RabbitConfig(port=0)) as server:
            assert server.urls.keys() == {"rabbitmq-stream"}


@pytest.mark.usefixtures("lacking")
def test_a_log_in_its_own_process_is_not_started() -> None:
    with pytest.raises(PackageMissing, match=r"the reference log needs packages .* pip install 'spark-streams\[log\]'"):
        LogProcess()


def test_pytest_starts_and_the_fixture_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_one(reference_log): pass\ndef test_two(): pass\n")
    ran = run("import pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '--log-window']))", tmp_path)
    assert "1 passed, 1 error" in ran.stdout, ran.stdout + ran.stderr
    assert f"\nfixture 'reference_log': the reference log {LINE}\n" in ran.stdout
    assert "Traceback" not in ran.stdout + ran.stderr


PUBLISH = """
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructField, StructType
import spark_streams.monitoring, spark_streams.worker_python
from spark_streams.sources.feedapi import FeedDataSource

vars(TaskContext._getOrCreate()).update(_partitionId=0, _localProperties={}, _taskAttemptId=0, _attemptNumber=0)
source = FeedDataSource({"url": sys.argv[1], "stream": "orders"})
writer = source.writer(StructType([StructField("value", StringType())]), False)
writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"value": ["a", "b"]})]))])
"""


def test_a_sink_stores_events_in_a_data_directory(tmp_path: Path) -> None:
    """By the code of the feed's door."""
    with ReferenceLog(tmp_path) as log:
        log.create_stream("orders", 1)
    ran = run(PUBLISH, tmp_path, str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    with ReferenceLog(tmp_path) as log:
        assert log.stream("orders").partitions["0"].next_offset == 2
