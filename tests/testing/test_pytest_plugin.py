"""The plugin as users' tests meet it: its options, its fixture ``spark``, and how what it gives shows itself."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_streams import worker_python
from spark_streams.log import ReferenceLog
from spark_streams.testing import KeptQuery, LogProcess, StreamFactory, pytest_plugin, spark_session


class FakeSpark:
    """What the fixture does with a session."""

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[FakeSpark, dict[str, str]]]:
    """Note the sessions that are started, in the place of a Spark, and their settings."""
    pytest.importorskip("pyspark")
    found: list[tuple[FakeSpark, dict[str, str]]] = []

    def start(settings: dict[str, str]) -> FakeSpark:
        os.environ["PYSPARK_PYTHON"] = worker_python.executable()
        found.append((FakeSpark(), settings))
        return found[-1][0]

    def there() -> FakeSpark | None:
        return next((session for session, _ in found if not session.stopped), None)

    monkeypatch.setattr(spark_session, "_built", start)
    monkeypatch.setattr("spark_streams.register", lambda session: None)
    monkeypatch.setattr(spark_session, "spark_there", there)
    monkeypatch.setenv("PYSPARK_PYTHON", "before")
    return found


def test_help_lists_the_options_and_settings(pytester: pytest.Pytester) -> None:
    told = pytester.runpytest_inprocess("--help")
    told.stdout.fnmatch_lines(["*Spark and the reference log of spark-streams:", "*--reference-log-dir=DIR"])
    text = told.stdout.str()
    options = ("--log-window", "--reference-log-timeout=SECONDS", "--spark-streams-conf=NAME=VALUE")
    for name in (*options, "reference_log_arguments", "spark_streams_conf"):
        assert name in text


def test_a_project_may_have_an_option_spark_conf(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--spark-conf')\n    parser.addini('spark_conf', 'theirs', default='')\n"
    )
    pytester.makepyfile("def test_one(pytestconfig): assert pytestconfig.getoption('--spark-conf') == 'a'")
    pytester.runpytest_inprocess("--spark-conf", "a").assert_outcomes(passed=1)


def test_the_session_has_the_settings_of_the_file_and_of_the_command_line(
    pytester: pytest.Pytester, started: list[tuple[FakeSpark, dict[str, str]]]
) -> None:
    pytester.makeini("[pytest]\nspark_streams_conf =\n  spark.sql.shuffle.partitions = 4\n  spark.master=local[1]\n")
    pytester.makepyfile("def test_one(spark): pass\ndef test_two(spark): assert not spark.stopped\n")
    given = ("--spark-streams-conf", "spark.master=local[3]", "-p", "no:cacheprovider")
    pytester.runpytest_inprocess(*given).assert_outcomes(passed=2)
    ((session, settings),) = started
    assert session.stopped
    assert "warehouse" in settings.pop("spark.sql.warehouse.dir")
    assert settings == {"spark.sql.shuffle.partitions": "4", "spark.master": "local[3]"}
    assert os.environ["PYSPARK_PYTHON"] == "before"


def test_a_setting_of_spark_that_is_none(
    pytester: pytest.Pytester, started: list[tuple[FakeSpark, dict[str, str]]]
) -> None:
    pytester.makepyfile("def test_one(spark): pass")
    told = pytester.runpytest_inprocess("--spark-streams-conf", "local[3]")
    told.stdout.fnmatch_lines(["*'local[[]3[]]' is no setting of Spark: expected NAME=VALUE*"])
    assert started == []


def test_without_pyspark_one_sentence_says_what_to_install(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytest_plugin, "find_spec", lambda name: None)
    pytester.makepyfile("def test_one(spark): pass\ndef test_two(): pass")
    told = pytester.runpytest_inprocess()
    told.assert_outcomes(errors=1, passed=1)
    told.stdout.fnmatch_lines(["fixture 'spark' needs pyspark: pip install 'spark-streams[[]spark[]]'"])


def test_a_projects_own_fixture_wins(
    pytester: pytest.Pytester, started: list[tuple[FakeSpark, dict[str, str]]]
) -> None:
    pytester.makeconftest("import pytest\n@pytest.fixture\ndef spark(): return 'theirs'\n")
    pytester.makepyfile("def test_one(spark): assert spark == 'theirs'")
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
    assert started == []


def test_a_spark_that_cannot_have_the_formats_is_stopped(
    started: list[tuple[FakeSpark, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(session: FakeSpark) -> None:
        assert os.environ["PYSPARK_PYTHON"] != "before"
        raise RuntimeError("no formats")

    monkeypatch.setattr("spark_streams.register", refuse)
    with pytest.raises(RuntimeError, match="no formats"), ExitStack() as ending:
        spark_session.spark_until(ending, {})
    ((session, _),) = started
    assert session.stopped and os.environ["PYSPARK_PYTHON"] == "before"


@pytest.mark.spark
def test_a_spark_that_another_thread_has_started_is_taken_and_gets_the_formats(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr("spark_streams.register", given.append)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)  # as in a thread of its own
    with ExitStack() as ending:
        found = spark_session.spark_until(ending, {"spark.master": "local[7]"})
    assert found.sparkContext.applicationId == spark.sparkContext.applicationId and given == [found]
    assert spark.range(3).count() == 3
    monkeypatch.setattr(found._sc, "_jsc", None)  # as after SparkContext.stop, which leaves the session
    assert spark_session.spark_there() is None


@pytest.mark.spark
def test_a_spark_that_runs_is_taken_and_goes_on(spark: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"def test_one(spark): assert spark.sparkContext.applicationId == {spark.sparkContext.applicationId!r}\n"
        "def test_two(spark): spark.read.format('amqp-events').schema('value string')"
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)
    assert spark.range(3).count() == 3


def test_the_log_keeps_its_data_where_it_is_told_and_has_further_arguments(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeini("[pytest]\nreference_log_arguments = --stream fixed:3\n")
    pytester.makepyfile("def test_one(reference_log): reference_log.create('orders').produce(['a'])")
    given = ("--reference-log-dir", str(tmp_path / "kept"), "--reference-log-timeout", "120")
    pytester.runpytest_inprocess(*given).assert_outcomes(passed=1)
    with ReferenceLog(tmp_path / "kept") as log:
        fixed, orders = log.streams()
        assert (fixed.name, len(fixed.partitions)) == ("fixed", 3)
        assert orders.name.startswith("orders-") and orders.partitions["0"].next_offset == 1


def test_the_time_for_the_logs_start(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(reference_log): pass")
    told = pytester.runpytest_inprocess("--reference-log-timeout", "0.001")
    told.assert_outcomes(errors=1)
    told.stdout.fnmatch_lines(["*the log did not start within 0.001 s*"])


def test_what_the_fixtures_give_shows_what_it_is(reference_log: StreamFactory, tmp_path: Path) -> None:
    process = reference_log.process
    shown = repr(process)
    assert shown.startswith(f"<LogProcess {process.pid}, amqp://127.0.0.1:") and "http://127.0.0.1:" in shown
    assert "guest" not in shown and "SharedAccessKey" not in shown
    assert repr(reference_log) == f"<StreamFactory of {shown}>"
    stream = reference_log.create("orders", 2, timestamp_type="create")
    assert repr(stream) == f"<LogStream '{stream.name}', 2 partitions, timestamp_type=create>"
    assert repr(reference_log.create("one")).endswith("', 1 partition>")
    assert repr(LogProcess()) == "<LogProcess not running>"
    query = KeptQuery(tmp_path, "q")
    query.batches[0] = [SimpleNamespace(), SimpleNamespace()]  # type: ignore[list-item]
    assert repr(query) == f"<KeptQuery 'q', 2 rows in 1 micro-batches, {tmp_path / 'checkpoint'}>"
