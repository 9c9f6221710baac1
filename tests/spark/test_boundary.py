"""What a user sees of an error of ours: its words, with one line of ours above them; of a defect the whole way."""

from __future__ import annotations

import inspect
import io
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.serializers import SpecialLengths, UTF8Deserializer, read_int
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType
from pyspark.util import handle_worker_exception

from spark_streams.errors import ConnectFailed, LocalProtocolError, OptionError, Refused
from spark_streams.protocols import PROTOCOLS, load
from spark_streams.redaction import remember
from spark_streams.spark.boundary import CALLED, CalledBySpark
from spark_streams.spark.sink import writer
from spark_streams.spark.source import reader

SOURCES: list[type[DataSource]] = [load(protocol.source) for protocol in PROTOCOLS.values()]
FORMATS = {made.name(): made for made in SOURCES}
NOWHERE = {
    "amqp-events": {"url": "amqp://guest:guest@127.0.0.1:1", "stream": "orders"},
    "rabbitmq-stream": {"url": "rabbitmq-stream://guest:guest@127.0.0.1:1", "stream": "orders"},
    "feedapi": {"url": "http://127.0.0.1:1/orders"},
}


def shown(call: Callable[[], object]) -> str:
    """What PySpark's worker tells the JVM of the exception that a call ends with."""
    to_jvm = io.BytesIO()
    try:
        call()
    except BaseException as fault:
        handle_worker_exception(fault, to_jvm)
    to_jvm.seek(0)
    assert read_int(to_jvm) == SpecialLengths.PYTHON_EXCEPTION_THROWN
    return str(UTF8Deserializer().loads(to_jvm))


def frames_of_ours(text: str) -> list[str]:
    """The lines of a traceback that name a file of ours, apart from this one."""
    lines = [line for line in text.splitlines() if line.startswith("  File ") and "/pyspark/" not in line]
    return [line for line in lines if __file__ not in line]


class Deep(CalledBySpark):
    """Raises each error from below others, as a client does."""

    def __init__(self, kind: Callable[[], Exception]) -> None:
        self.kind = kind

    def deeper(self, levels: int) -> None:
        if levels:
            self.deeper(levels - 1)
        try:
            raise OSError("what the kernel said")
        except OSError as fault:
            raise self.kind() from fault

    def partitions(self) -> list[object]:
        self.deeper(7)
        return []

    def read(self) -> Iterator[int]:
        yield 1
        self.deeper(7)

    def other(self) -> None:
        self.deeper(7)


@pytest.mark.parametrize("call", [lambda deep: deep.partitions(), lambda deep: list(deep.read())])
def test_an_error_of_ours_is_shown_without_its_way(call: Callable[[Deep], object]) -> None:
    text = shown(lambda: call(Deep(lambda: ConnectFailed("nobody is there"))))
    assert len(frames_of_ours(text)) == 1
    assert "what the kernel said" not in text and "During handling" not in text and "direct cause" not in text
    assert text.splitlines()[-1] == "spark_streams.errors.ConnectFailed: nobody is there"


@pytest.mark.parametrize("kind", [lambda: ValueError("a slip"), lambda: LocalProtocolError("a slip")])
def test_a_defect_keeps_its_way(kind: Callable[[], Exception]) -> None:
    text = shown(lambda: Deep(kind).partitions())
    assert "in deeper" in text and "what the kernel said" in text
    assert "in deeper" in shown(lambda: list(Deep(kind).read()))


def test_what_spark_does_not_call_keeps_it_too() -> None:
    assert "in deeper" in shown(lambda: Deep(lambda: ConnectFailed("nobody is there")).other())


def test_the_way_is_in_the_log_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    deep = Deep(lambda: ConnectFailed("nobody is there"))
    with caplog.at_level(logging.DEBUG, "spark_streams.spark.boundary"):
        shown(deep.partitions)
    assert "in deeper" in caplog.text and "what the kernel said" in caplog.text
    remember("the kernel said")
    with caplog.at_level(logging.DEBUG, "spark_streams.spark.boundary"):
        shown(deep.partitions)
    assert "the kernel said" not in caplog.records[-1].getMessage()
    caplog.clear()
    with caplog.at_level(logging.INFO, "spark_streams.spark.boundary"):
        shown(deep.partitions)
    assert caplog.text == ""


def test_the_error_is_the_same_one() -> None:
    fault = Refused("amqp:resource-locked", "another has it", "attach")
    fault.given_up = True
    with pytest.raises(Refused) as raised:
        Deep(lambda: fault).partitions()
    assert raised.value is fault
    again = pickle.loads(pickle.dumps(fault))
    assert (str(again), again.retriable, again.given_up) == (str(fault), True, True)


def test_read_stays_a_generator_and_passes_rows_and_its_end_on() -> None:
    assert inspect.isgeneratorfunction(Deep.read)
    reading = Deep(lambda: ConnectFailed("nobody")).read()
    assert next(reading) == 1
    reading.close()


@pytest.mark.parametrize(
    "made",
    [
        *FORMATS.values(),
        *(reader.BatchReader, reader._FilteringBatchReader, reader.StreamReader, reader.RefusedStreamReader),
        *(writer.BatchWriter, writer.StreamWriter),
    ],
    ids=lambda made: made.__name__,
)
def test_every_method_that_spark_calls_is_at_the_boundary(made: type) -> None:
    interface = (DataSource, DataSourceReader, DataSourceStreamReader, DataSourceArrowWriter)
    named = {name for each in interface for name in vars(each) if not name.startswith("_")}
    silent = {"name", "stop", "simpleStreamReader"}
    assert named - silent <= CALLED
    for name in CALLED | (named - silent):
        method = getattr(made, name, None)
        if method is not None and method.__module__.startswith(("spark_streams.", "tests.")):
            assert hasattr(method, "__wrapped__"), name


@pytest.mark.parametrize("format", FORMATS)
def test_an_option_and_a_column_that_are_wrong(format: str) -> None:
    made, options = FORMATS[format], NOWHERE[format]
    failures: list[tuple[Callable[[], object], str]] = [
        (lambda: made({**options, "startingOfsets": "latest"}), "OptionError: option 'startingOfsets': "),
        (lambda: made(options).reader(StructType().add("nix", "string")), f"SchemaError: {format} has no column 'nix'"),
        (lambda: made(options).writer(StructType(), True), "OptionError: option 'mode': 'overwrite' cannot be done"),
    ]
    for call, words in failures:
        text = shown(call)
        assert len(frames_of_ours(text)) == 1 and f"spark_streams.errors.{words}" in text.splitlines()[-1]


@pytest.mark.skipif(not reader.HAS_ADMISSION_CONTROL, reason="what Spark asks a reader since 4.2")
@pytest.mark.parametrize("format", FORMATS)
def test_a_stream_that_is_refused_is_so_by_whatever_spark_asks_first(format: str) -> None:
    there = FORMATS[format]({**NOWHERE[format], "endingOffsets": "latest"})
    refused = there.streamReader(there.schema())
    assert isinstance(refused, reader.StreamReader) and len(inspect.signature(refused.latestOffset).parameters)
    calls: list[Callable[[], Any]] = [
        refused.initialOffset,
        refused.getDefaultReadLimit,
        refused.prepareForTriggerAvailableNow,
        lambda: refused.latestOffset({}, None),
        refused.reportLatestOffset,
        lambda: refused.partitions({}, {}),
        lambda: refused.commit({}),
    ]
    for call in calls:
        text = shown(call)
        assert "spark_streams.errors.OptionError: option 'endingOffsets': a stream has no end" in text.splitlines()[-1]
        assert len(frames_of_ours(text)) == 1
    refused.stop()
    with pytest.raises(OptionError):
        pickle.loads(pickle.dumps(refused)).initialOffset()
