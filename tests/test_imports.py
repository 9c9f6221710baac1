"""What a format loads: a query's processes load its own protocol's modules, and no library of another one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from spark_streams.testing import StreamFactory

OTHERS = {
    "rabbitmq_stream": {
        "proton",
        "cproton",
        "starlette",
        "uvicorn",
        "requests",
        "pandas",
        "rstream",
        "google.protobuf",
    },
    "amqp_events": {"starlette", "uvicorn", "requests", "pandas", "rstream", "google.protobuf"},
    "feedapi": {"proton", "cproton", "starlette", "uvicorn", "pandas", "rstream", "google.protobuf"},
}
"""Format's module to the packages that neither its source nor its sink imports. Protobuf is for filters."""

ROOMS = {"rabbitmq_stream": "rabbitmq", "amqp_events": "amqp", "feedapi": "feed"}
"""Format's module to its protocol's room."""

WHOLE = """
import json, sys
import spark_streams.client.{room}.client
from spark_streams.sources.{format} import {source}
made = {source}({options!r})
schema = made.schema()
made.streamReader(schema), made.reader(schema), made.sink()
print(json.dumps(sorted(sys.modules)))
"""

SOURCES = {
    "rabbitmq_stream": ("RabbitStreamDataSource", {"url": "rabbitmq-stream://localhost", "stream": "s"}),
    "amqp_events": ("AmqpEventsDataSource", {"url": "amqp://localhost", "stream": "s"}),
    "feedapi": ("FeedDataSource", {"url": "http://localhost/s"}),
}


def loaded(program: str) -> set[str]:
    """Return the modules of a process that ran a program."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("format", OTHERS)
def test_a_format_loads_its_own_protocol_only(format: str) -> None:
    source, options = SOURCES[format]
    program = WHOLE.format(format=format, room=ROOMS[format], source=source, options=options)
    modules = loaded(program)
    assert modules & OTHERS[format] == set()
    rooms = {name.split(".")[2] for name in modules if name.startswith("spark_streams.client.")} & set(ROOMS.values())
    assert rooms == {ROOMS[format]}
    assert not [name for name in modules if name.startswith("spark_streams.server")]


READ = """
import json, sys
from spark_streams.sources.{format} import {source}
made = {source}({options!r})
reader = made.reader(made.schema())
rows = sum(batch.num_rows for partition in reader.partitions() for batch in reader.read(partition))
assert rows == {rows}, rows
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize(
    "more",
    [{}, {"key": "k"}, {"application_properties": {"region": "north"}, "properties": {"subject": "s"}}],
    ids=["values", "keys", "properties"],
)  # a few messages with properties, which are not decoded in columns, do load it
@pytest.mark.parametrize("format", ["rabbitmq_stream", "amqp_events"])
def test_reading_does_not_load_pandas(reference_log: StreamFactory, format: str, more: dict[str, object]) -> None:
    stream = reference_log.create("orders")
    stream.produce([{"value": "text", **more}] * 100)
    options = stream.options(format.replace("_", "-"))
    modules = loaded(READ.format(format=format, source=SOURCES[format][0], options=options, rows=100))
    assert f"spark_streams.client.{ROOMS[format]}.range_reader" in modules
    assert modules & OTHERS[format] == set()


@pytest.mark.parametrize("rows", [3, 1_000], ids=["few", "many"])
def test_reading_feeds_does_not_load_pandas(reference_log: StreamFactory, rows: int) -> None:
    stream = reference_log.create("orders")
    stream.produce([{"value": '{"n": 1}', "key": "k" if number % 2 else None} for number in range(rows)])
    options = stream.options("feedapi")
    modules = loaded(READ.format(format="feedapi", source="FeedDataSource", options=options, rows=rows))
    assert "spark_streams.client.feed.range_reader" in modules
    assert modules & OTHERS["feedapi"] == set()


def test_a_task_of_spooled_pages_loads_nothing_that_makes_requests() -> None:
    """What a worker loads for a task, beside the task itself."""
    read = "from spark_streams.spark.feed import reader, tasks, page_file"
    modules = loaded(f"import json, sys\n{read}\nprint(json.dumps(sorted(sys.modules)))")
    assert not {"requests", "urllib3", "spark_streams.spark.feed.micro_batch"} & modules


def test_finding_the_formats_loads_no_protocol() -> None:
    found = "import pyspark_amqp_events, pyspark_feedapi, pyspark_rabbitmq_stream"
    modules = loaded(f"import json, sys\n{found}\nprint(json.dumps(sorted(sys.modules)))")
    assert not [name for name in modules if name.startswith(("spark_streams.client", "spark_streams.server", "proton"))]
    assert {"spark_streams.sources.feedapi", "spark_streams.sources.amqp_events"} <= modules
