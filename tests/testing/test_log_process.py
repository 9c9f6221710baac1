"""``spark_streams.testing`` without Spark: the process, the streams, the fixture."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_streams.testing import LogProcess, StreamFactory, eventually


def test_each_test_has_a_stream_of_its_own(reference_log: StreamFactory) -> None:
    first, second = reference_log.create("orders"), reference_log.create("orders")
    first.produce(["a", "b"])
    assert first.name != second.name
    assert first.name.startswith("orders-")
    assert (first.values(), second.values()) == (["a", "b"], [])


def test_rows_have_the_columns_that_sinks_take(reference_log: StreamFactory) -> None:
    stream = reference_log.create(partitions=2)
    count = stream.produce(
        [
            {"value": "to one", "partition": "1", "application_properties": {"type": "order"}},
            {"value": {"id": 7}, "partition": "0", "key": "alice", "properties": {"subject": "s"}},
            {"value": b"\xff", "partition": "0"},
        ]
    )
    assert count == 3
    table = stream.table(["partition", "value", "key", "application_properties"])
    assert table.column("partition").to_pylist() == ["0", "0", "1"]
    assert table.column("value").to_pylist() == [b'{"id":7}', b"\xff", b"to one"]
    assert table.column("key").to_pylist() == ["alice", None, None]
    assert table.column("application_properties").to_pylist() == [None, None, [("type", "order")]]
    assert stream.table(["properties"]).column("properties")[0].as_py()["subject"] == "s"


def test_equal_keys_share_a_partition(reference_log: StreamFactory) -> None:
    stream = reference_log.create(partitions=4)
    stream.produce({"value": str(n), "key": f"k{n % 3}"} for n in range(30))
    placed = stream.table(["key", "partition"]).to_pylist()
    assert len(placed) == 30
    assert len({(row["key"], row["partition"]) for row in placed}) == 3


def test_a_mapping_without_a_value_is_json(reference_log: StreamFactory) -> None:
    stream = reference_log.create()
    stream.produce([{"id": 1, "name": "ö"}, [1, None], 2.5])
    assert stream.values() == ['{"id":1,"name":"ö"}', "[1,null]", "2.5"]


def test_a_column_that_cannot_be_written_is_named(reference_log: StreamFactory) -> None:
    stream = reference_log.create()
    with pytest.raises(ValueError, match=r"column 'offset' cannot be written: expected value, key, partition"):
        stream.produce(["fine", {"value": "x", "offset": "1"}])
    assert stream.values() == []


@pytest.mark.parametrize("event", ["abc", b"abc", bytearray(b"abc"), {"value": "abc"}, {"id": 1}, 7, None])
def test_one_event_alone_is_not_taken_apart(reference_log: StreamFactory, event: Any) -> None:
    stream = reference_log.create()
    with pytest.raises(TypeError, match=rf"this is one {type(event).__name__}: write produce\(\[\.\.\.\]\)"):
        stream.produce(event)
    assert stream.values() == []


def test_the_nearest_column_is_named(reference_log: StreamFactory) -> None:
    stream = reference_log.create()
    with pytest.raises(ValueError, match=r"column 'aplication_properties' .* did you mean 'application_properties'\?"):
        stream.produce([{"value": "x", "aplication_properties": {}}])
    with pytest.raises(ValueError, match=r"no column 'valeu': did you mean 'value'\?"):
        stream.table(["key", "valeu"])
    with pytest.raises(TypeError, match=r"table\(\['value'\]\)"):
        stream.table("value")


def test_nothing_stands_beside_a_whole_message(reference_log: StreamFactory) -> None:
    stream = reference_log.create()
    with pytest.raises(ValueError, match="column 'key' cannot stand beside 'message'"):
        stream.produce([{"message": b"\x00\x53\x75\xa0\x02hi", "key": "k", "value": None}])
    assert stream.values() == []


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"partition": 2}, "partitions"),
        ({"timestamp_typ": "create"}, "timestamp_type"),
        ({"retention_bytes": 1}, "ret"),
    ],
)
def test_the_nearest_setting_is_named(reference_log: StreamFactory, given: dict[str, Any], meant: str) -> None:
    with pytest.raises(RuntimeError, match=rf"was not created: 400 .*'{next(iter(given))}'.* did you mean {meant}"):
        reference_log.create("orders", **given)


def test_arguments_are_a_list() -> None:
    with pytest.raises(TypeError, match=r"expected a list: \['--stream', 'orders'\]"):
        LogProcess(arguments="--stream orders")


def test_nothing_is_produced_of_nothing(reference_log: StreamFactory) -> None:
    stream = reference_log.create()
    assert stream.produce([]) == 0
    assert stream.ends() == {}


def test_events_keep_the_time_that_they_are_given(reference_log: StreamFactory) -> None:
    stream = reference_log.create(timestamp_type="create")
    sputnik = datetime(1957, 10, 4, 19, 28, 34, tzinfo=timezone.utc)
    stream.produce([{"value": "sputnik", "timestamp": sputnik}, "no time"])
    assert stream.table(["timestamp"]).column(0).to_pylist() == [sputnik, None]


def test_a_whole_message_is_stored_as_it_is(reference_log: StreamFactory) -> None:
    stream = reference_log.create()
    encoded = b"\x00\x53\x75\xa0\x02hi"  # one data section (AMQP 1.0 part 3 §3.2.6)
    stream.produce([{"message": encoded, "partition": "0"}])
    assert stream.values() == ["hi"]
    assert stream.table(["message"]).column(0)[0].as_py().endswith(encoded)


def test_retention_removes_the_oldest_events(reference_log: StreamFactory) -> None:
    stream = reference_log.create(segment_max_bytes=2_000, retention_max_bytes=2_000)
    for number in range(40):
        stream.produce([f"{number}" + "x" * 200])
    assert stream.ends() == {"0": f"{39:020}"}
    eventually(lambda: int(stream.begins()["0"]) > 0, "the first event is gone")


@pytest.mark.parametrize("history", [False, True])
def test_a_partition_is_split(reference_log: StreamFactory, history: bool) -> None:
    stream = reference_log.create()
    stream.produce({"value": str(n), "key": f"k{n}"} for n in range(20))
    assert stream.split(history=history) == ["1", "2"]
    stream.produce({"value": str(n), "key": f"k{n % 20}"} for n in range(20, 40))
    table = stream.table(["partition", "value"])
    assert sorted(int(value) for value in table.column("value").to_pylist()) == list(range(40))
    assert ("0" in table.column("partition").to_pylist()) is not history
    assert stream.split("1", 3) == ["3", "4", "5"]
    with pytest.raises(RuntimeError, match=r"was not split: 409 partition 1 is closed"):
        stream.split("1")


def test_a_stream_is_deleted_and_created_again(reference_log: StreamFactory) -> None:
    stream = reference_log.create(partitions=2, timestamp_type="create")
    stream.produce(["a", "b"])
    stream.delete()
    with pytest.raises(RuntimeError, match=r"was not deleted: 404 there is no feed"):
        stream.delete()
    stream.create()
    assert stream.values() == []
    stream.produce([{"value": "c", "timestamp": datetime(1957, 10, 4, tzinfo=timezone.utc)}])
    assert stream.table(["timestamp"]).column(0)[0].as_py().year == 1957


def test_a_stream_that_the_log_refuses(reference_log: StreamFactory) -> None:
    with pytest.raises(RuntimeError, match=r"stream 'orders-\w+' was not created: 400 .*partitions"):
        reference_log.create("orders", partitions=0)


def test_options_of_another_format(reference_log: StreamFactory) -> None:
    with pytest.raises(ValueError, match="'kafka' is no format: expected amqp-events"):
        reference_log.create().options("kafka")


def test_the_process_starts_again_with_what_it_had(tmp_path: Path) -> None:
    with LogProcess(tmp_path / "data") as process:
        stream = StreamFactory(process).create("orders", partitions=2)
        stream.produce(["a", "b", "c"])
        before, urls = process.pid, process.urls
        process.kill()
        assert process.pid is None
        process.start()
        assert process.pid != before
        assert process.urls == urls
        assert sorted(stream.values()) == ["a", "b", "c"]
        pid = process.pid
    assert pid is not None
    assert not psutil.pid_exists(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep a port for a process")
def test_the_ports_are_kept_while_the_log_is_down() -> None:
    with LogProcess() as process:
        ports = ports_of(process)
        process.kill()
        for port in ports:
            with pytest.raises(OSError, match="in use"), socket.socket() as other:
                other.bind(("127.0.0.1", port))
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=60)
        process.start()
        assert ports_of(process) == ports


def ports_of(process: LogProcess) -> set[int]:
    """Return the ports of all doors; a connection string has a url in it."""
    return {int(re.findall(r":(\d+)", url)[0]) for url in process.urls.values()}


def test_a_process_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ended with code \d+ as it started; it said:.*no-such-option"):
        LogProcess(arguments=["--no-such-option"]).start()


def test_nothing_is_left_of_temporary_data() -> None:
    with LogProcess() as process:
        StreamFactory(process).create()
        folder = process._data_dir
        assert os.listdir(folder)
    assert not folder.exists()


def test_eventually() -> None:
    answers = iter([False, None, 3])
    eventually(lambda: next(answers), "an answer")
    assert next(answers, "none") == "none"
    with pytest.raises(AssertionError, match=r"the moon did not hold within 0.1 s"):
        eventually(lambda: False, "the moon", 0.1)

    def two() -> bool:
        assert [1] == [2]
        return True

    with pytest.raises(AssertionError, match=r"\[1\] == \[2\]"):
        eventually(two, timeout_s=0.1)


def test_a_log_does_not_outlive_a_process_that_is_killed() -> None:
    program = """if True:
        import time
        from spark_streams.testing import LogProcess
        with LogProcess() as log:
            print(log.pid, flush=True)
            time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        log = psutil.Process(int(owner.stdout.readline()))
        assert "serve" in log.cmdline()
        owner.kill()
    log.wait(120)
