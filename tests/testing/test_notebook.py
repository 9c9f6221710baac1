"""What the notebooks begin with; that they run with it is in tests/notebooks."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from spark_streams.testing import LogProcess, Notebook, notebook

pytestmark = pytest.mark.spark


def test_on_databricks_all_of_it_is_there(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "19.0")
    secrets = SimpleNamespace(get=lambda scope, key: f"{scope}/{key}")
    utilities = SimpleNamespace(DBUtils=lambda session: SimpleNamespace(secrets=secrets))
    monkeypatch.setitem(sys.modules, "pyspark.dbutils", utilities)
    here = Notebook("tour", "orders:4")
    assert here.on_databricks and here.spark is spark
    assert here.folder == "/Volumes/main/default/spark_streams/tour"
    assert Notebook("tour", volume="/Volumes/a/b/c").folder == "/Volumes/a/b/c/tour"
    assert here.secret("amqp-url") == "spark-streams/amqp-url"
    assert "There is no page to show: on Databricks" in str(here.window())
    assert "<iframe" not in here.window("orders")._repr_html_()
    here.stop()
    assert spark.range(3).count() == 3


def test_elsewhere_a_log_is_started_unless_a_variable_names_another(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    here = Notebook("tour", "orders:2")
    try:
        assert not here.on_databricks
        orders = {"url": here.secret("amqp-url"), "stream": "orders"}
        spark.sql("SELECT 'a' AS value").write.format("amqp-events").options(**orders).mode("append").save()
        rabbit = {"url": here.secret("rabbitmq-url"), "superStream": "orders"}
        assert here.spark.read.format("rabbitmq-stream").options(**rabbit).load().count() == 1
        assert here.secret("event-hubs-connection").startswith("Endpoint=sb://")
        monkeypatch.setenv("SPARK_STREAMS_FEED_URL", "https://service.example.com")
        assert here.secret("feed-url") == "https://service.example.com"
        with pytest.raises(KeyError):
            here.secret("something")
        assert here.window().url == here._log.urls["web"].rstrip("/") + "/"  # type: ignore[union-attr]
        frame = here.window("orders", height=300)
        assert f'<iframe src="{frame.url}" width="100%" height="300"' in frame._repr_html_()
        page = requests.get(str(frame), timeout=120)
        assert page.status_code == 200 and "http://localhost:*" in page.headers["Content-Security-Policy"]
    finally:
        here.stop()
    assert spark.range(3).count() == 3, "a Spark that was there goes on"
    assert not Path(here.folder).exists()


def test_what_was_started_ends_if_spark_does_not_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    logs: list[LogProcess] = []

    def fail(ending: ExitStack, settings: object) -> None:
        raise RuntimeError("no Java")

    def log(**named: Any) -> LogProcess:
        logs.append(LogProcess(**named))
        return logs[0]

    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(notebook, "LogProcess", log)
    monkeypatch.setattr(notebook, "spark_until", fail)
    with pytest.raises(RuntimeError, match="no Java"):
        Notebook("tour", "orders:2")
    assert logs[0].urls and logs[0].pid is None
    assert list(tmp_path.iterdir()) == []
