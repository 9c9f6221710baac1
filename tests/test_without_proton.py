"""Without python-qpid-proton, which pip has to compile: what is not AMQP works, and AMQP says what to install."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from spark_streams.log import ReferenceLog
from spark_streams.wire.amqp.columns.encode import encode_columns

ROOT = Path(__file__).resolve().parents[1]
WITHOUT = "import sys; sys.modules.update(dict.fromkeys(('proton', 'cproton', 'cproton_ffi', 'cffi')))\n"
"""Has each import of them fail, as it does where they are not installed."""
COMMAND = f"{WITHOUT}from spark_streams.cli import main; main()"
DOORS = ["--rabbitmq-stream", "0", "--feedapi", "0", "--data-dir", "kept"]


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", COMMAND, *words]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=120)


READ = """
from spark_streams.sources.{module} import {source} as Source
made = Source({options!r})
reader = made.reader(made.schema())
values = [batch.column("value").to_pylist() for part in reader.partitions() for batch in reader.read(part)]
print({module!r}, b"".join(sum(values, [])).decode())
"""


def test_the_other_formats_and_their_doors_work(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "kept") as log:
        events = encode_columns({"value": pa.array([b"a", b"b"])})
        log.create_stream("orders", 1).partitions["0"].append(events)
    line = [sys.executable, "-c", COMMAND, "log", "serve", *DOORS, "--until-stdin-closes"]
    with subprocess.Popen(line, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        doors = json.loads(process.stdout.readline())
        rabbit = doors["rabbitmq-stream"].replace("//", "//guest:guest@")
        program = (
            WITHOUT
            + READ.format(
                module="rabbitmq_stream", source="RabbitStreamDataSource", options={"url": rabbit, "stream": "orders"}
            )
            + READ.format(module="feedapi", source="FeedDataSource", options={"url": f"{doors['feedapi']}/orders"})
        )
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        process.stdin.close()
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["rabbitmq_stream ab", "feedapi ab"]


def test_amqp_says_what_to_install(tmp_path: Path) -> None:
    options = {"url": "amqp://localhost:1", "stream": "orders"}
    program = WITHOUT + READ.format(module="amqp_events", source="AmqpEventsDataSource", options=options)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ran.stderr.splitlines()[-1] == (
        "spark_streams.errors.PackageMissing: AMQP needs python-qpid-proton, which is not installed: pip install "
        "python-qpid-proton, which compiles it and needs a C compiler and Python's headers"
    )
    tried = command("tail", "amqp://localhost:1#orders", cwd=tmp_path)
    assert (tried.returncode, tried.stderr) == (1, "Error: " + ran.stderr.splitlines()[-1].partition(": ")[2] + "\n")


def test_a_door_that_needs_it_says_so(tmp_path: Path) -> None:
    ran = command("log", "serve", "--stream", "orders", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (
        1,
        "Error: the door --amqp needs python-qpid-proton, which is not installed: pip install python-qpid-proton, "
        "which compiles it and needs a C compiler and Python's headers, or "
        "name the doors that need none of it, --rabbitmq-stream 5552 --feedapi 8080\n",
    )


def test_the_page_names_all_other_packages() -> None:
    """Those that ``pip install --no-deps`` leaves out."""
    project = (ROOT / "pyproject.toml").read_text()
    (needed,) = re.findall(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    names = re.findall(r'^    "([\w-]+)', needed, re.MULTILINE)
    page = (ROOT / "docs" / "databricks.md").read_text()
    (line,) = re.findall(r"`pip install (pyarrow [^`]*)`", page)
    assert [*line.split(), "tomli"] == [name for name in names if name != "python-qpid-proton"]
