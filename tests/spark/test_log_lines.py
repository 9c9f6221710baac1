"""Which log lines a process of Spark's writes: by what is set up there, and by option ``logLevel``."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_streams.client.retry import retries
from spark_streams.errors import OptionError
from spark_streams.options.amqp_events import parse_sink as parse_sink_options
from spark_streams.options.amqp_events import parse_source
from spark_streams.options.feedapi import parse_sink as parse_feed_sink
from spark_streams.options.feedapi import parse_source as parse_feed_source
from spark_streams.options.rabbitmq_stream import parse_sink as parse_rabbit_sink
from spark_streams.options.rabbitmq_stream import parse_source as parse_rabbit_source
from spark_streams.spark import log_lines
from spark_streams.spark.log_lines import COLLECTED, ReadHandler, counted, show_log_lines, show_task_lines

PACKAGE = logging.getLogger("spark_streams")
BELOW = logging.getLogger("spark_streams.spark.progress")
URLS = {
    "amqp-events": ("amqp://localhost", parse_source, parse_sink_options),
    "rabbitmq-stream": ("rabbitmq-stream://localhost", parse_rabbit_source, parse_rabbit_sink),
    "feedapi": ("http://localhost/orders", parse_feed_source, parse_feed_sink),
}


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """A process in which nothing has set up logging, and its stderr."""
    stderr, before = io.StringIO(), (PACKAGE.handlers[:], PACKAGE.level)
    PACKAGE.handlers.clear()
    PACKAGE.setLevel(logging.NOTSET)
    monkeypatch.setattr(log_lines, "_level_before", None)
    monkeypatch.delenv(COLLECTED, raising=False)
    yield stderr
    PACKAGE.handlers[:], level = before
    PACKAGE.setLevel(level)


def alone(stderr: io.StringIO) -> None:
    """Take the handlers and the stderr away that pytest has for the test, and sets anew after it."""
    logging.getLogger().handlers.clear()
    sys.stderr = stderr


def written(stderr: io.StringIO) -> list[str]:
    """The levels of the lines that are written when each level says something."""
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        BELOW.log(level, "words")
    levels = [line.split()[2] for line in stderr.getvalue().splitlines()]
    stderr.seek(0)
    stderr.truncate()
    return levels


@pytest.mark.parametrize(
    ("level", "levels"),
    [
        ("info", ["INFO", "WARNING", "ERROR"]),
        ("debug", ["DEBUG", "INFO", "WARNING", "ERROR"]),
        ("warning", ["WARNING", "ERROR"]),
        ("error", ["ERROR"]),
    ],
)
def test_the_option_says_what_is_written(process: io.StringIO, level: str, levels: list[str]) -> None:
    alone(process)
    show_log_lines(level)
    assert written(process) == levels
    show_log_lines("info")  # another query, in the same process
    assert written(process) == ["INFO", "WARNING", "ERROR"]
    assert len(PACKAGE.handlers) == 1


def test_a_level_of_python_s_logging_counts(process: io.StringIO) -> None:
    alone(process)
    PACKAGE.setLevel(logging.ERROR)
    show_log_lines("info")
    assert written(process) == ["ERROR"]
    show_log_lines("debug")
    assert written(process) == ["DEBUG", "INFO", "WARNING", "ERROR"]
    show_log_lines("info")
    assert written(process) == ["ERROR"]


def test_handlers_of_python_s_logging_are_left_alone(process: io.StringIO) -> None:
    alone(process)
    own = io.StringIO()
    logging.getLogger().addHandler(handler := logging.StreamHandler(own))
    handler.setFormatter(logging.Formatter(log_lines.FORMAT))
    show_log_lines("info")
    assert PACKAGE.handlers == [] and written(own) == ["WARNING", "ERROR"] and process.getvalue() == ""
    show_log_lines("debug")
    assert PACKAGE.handlers == [] and written(own) == ["DEBUG", "INFO", "WARNING", "ERROR"]


def test_a_task_says_what_spark_collects_or_what_the_option_asks_for(
    process: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(process)
    show_task_lines("info")
    assert PACKAGE.handlers == [] and not BELOW.isEnabledFor(logging.INFO)
    show_task_lines("debug")
    assert written(process) == ["DEBUG", "INFO", "WARNING", "ERROR"]
    show_task_lines("info")  # a task of another query
    assert not BELOW.isEnabledFor(logging.INFO)
    monkeypatch.setenv(COLLECTED, "1")
    show_task_lines("error")
    assert not BELOW.isEnabledFor(logging.WARNING)
    show_task_lines("info")
    assert BELOW.isEnabledFor(logging.INFO)


def test_a_task_s_line_names_the_query_the_format_the_stream_and_the_partition(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = parse_source(
        {"url": "amqp://localhost", "stream": "orders", "queryName": "copies"},
        streaming=True,
    )
    batch = pa.record_batch({"value": [b"abc", None]})

    def tried_again() -> Iterator[pa.RecordBatch]:
        retries.add()
        yield batch

    retries.add()  # by an earlier task of this process
    with caplog.at_level(logging.INFO, "spark_streams.spark.tasks"):
        assert list(counted(iter([batch, batch]), options.label, "orders", "0")) == [batch, batch]
        assert list(counted(tried_again(), options.label, "orders", "1")) == [batch]
    assert caplog.messages[0].startswith(
        "query 'copies': amqp-events stream 'orders' partition '0': 4 events, 6 bytes in "
    )
    assert not caplog.messages[0].endswith("retries: 0")
    assert caplog.messages[1].endswith(" s, retries: 1")
    contexts = [record.context for record in caplog.records]  # type: ignore[attr-defined]
    assert [(context["partition"], context["retries"]) for context in contexts] == [("0", "0"), ("1", "1")]


@pytest.mark.parametrize("format", URLS)
def test_every_format_has_the_option(format: str) -> None:
    url, source, sink = URLS[format]
    options = {"url": url, "stream": "orders"}
    for read in (lambda given: source(given, streaming=True), sink):
        assert read(options).log_level == "info"  # type: ignore[no-untyped-call]
        assert read({**options, "loglevel": "WARNING"}).log_level == "warning"  # type: ignore[no-untyped-call]
        with pytest.raises(OptionError, match=r"'loud' is none of debug, info, warning, error$"):
            read({**options, "logLevel": "loud"})  # type: ignore[no-untyped-call]
        with pytest.raises(OptionError, match=r"'warn' is none of .*, did you mean 'warning'\?$"):
            read({**options, "logLevel": "warn"})  # type: ignore[no-untyped-call]
    assert source(options, streaming=True).label == f"{format} stream 'orders'"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a pipe does not tell")
def test_a_line_returns_when_it_was_read() -> None:
    """Spark forgets what it has not read of a source's pipe when it ends the source."""
    reads, writes = os.pipe()
    with os.fdopen(writes, "w") as pipe:
        handler, returned = ReadHandler(pipe), threading.Event()

        def write() -> None:
            handler.emit(logging.makeLogRecord({"msg": "the last word"}))
            returned.set()

        thread = threading.Thread(target=write)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(log_lines, "READ_S", 60.0)
            thread.start()
            while not log_lines._unread(pipe):
                time.sleep(0.001)
            assert not returned.is_set()
            assert os.read(reads, 100) == b"the last word\n"
            assert returned.wait(60.0)
        thread.join()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(log_lines, "READ_S", 0.01)
            handler.emit(logging.makeLogRecord({"msg": "nobody reads"}))  # and it returns
    os.close(reads)


def test_what_is_no_pipe_is_not_waited_for() -> None:
    assert not log_lines._unread(io.StringIO())
    with open(os.devnull, "w") as nowhere:
        assert not log_lines._unread(nowhere)
    assert not log_lines._unread(nowhere)
