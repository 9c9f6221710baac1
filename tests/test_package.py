"""What importing costs, and what is public."""

from __future__ import annotations

import subprocess
import sys

import spark_streams


def test_importing_the_package_imports_no_spark() -> None:
    code = "import sys, spark_streams; print([m for m in sys.modules if m.split('.')[0] in ('pyspark', 'proton')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_public() -> None:
    assert spark_streams.__all__ == ["register"]


def test_spark_finds_the_format_by_its_module() -> None:
    from spark_streams.sources.amqp_events import AmqpEventsDataSource

    import pyspark_amqp_events

    assert pyspark_amqp_events.DefaultSource is AmqpEventsDataSource
    assert AmqpEventsDataSource.name() == "amqp-events"


def test_registering_twice_is_no_error() -> None:
    from pyspark.errors import AnalysisException

    class Registration:
        def register(self, source: type) -> None:
            raise AnalysisException("[DATA_SOURCE_ALREADY_EXISTS] Data source 'amqp-events' already exists.")

    class Session:
        dataSource = Registration()

    spark_streams.register(Session())
